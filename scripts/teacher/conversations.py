# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Conversations about counting things: the language of the long testbed.

Problems of up to eight steps in varied wording, follow-up questions in a chat, bare sums, small talk, and an honest
refusal of everything else. The worked answers are those of [`word_problems`], which never name a person or a thing: so
names and things that the vocabulary does not hold do no harm. A verb or a number that it does not hold does, and is
refused.
"""

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hf_dparallel.demo.word_problems import LARGEST_NUMBER, draw_equation, write_solution

from .wording import UNKNOWN, VERBS, Teller, answer_words, as_typed, wording_templates


MAX_STEPS = 8
# The first phrasing of each part has 62 to 78 %. Where none is much likelier than the others, a model this small
# decides on words of two that do not fit together.
FIRST_WEIGHT = 4.0
# In problems of so many steps and more it has 89 to 95 %. Decoding writes the likeliest phrasing in every step, which
# is the longest: an answer that is told so throughout, and ends a block later than others, has to be a common sight.
STEPS_OF_LONG = 6
FIRST_WEIGHT_OF_LONG = 20.0
REFUSAL = "I only know problems about counting things ."

_SUMS = (
    "What is {a} {sign} {b} ?",
    "{a} {sign} {b} = ?",
    "How much is {a} {sign} {b} ?",
    "{a} {sign} {b}",
    "Please compute {a} {sign} {b} .",
)
# By reply, the texts that it answers.
_SMALL_TALK = {
    "Hello ! Ask me a problem about counting things .": (
        "Hello",
        "Hello !",
        "Hi",
        "Hi !",
        "Hi there",
        "Hey",
        "Good morning",
        "Good evening !",
        "Hello , how are you ?",
        "How are you ?",
    ),
    "I solve problems about counting things , of up to 8 steps , with numbers from 0 to 40 . For example : Mia has 14"
    " pens . Mia finds 6 more . How many pens does Mia have now ?": (
        "What can you do ?",
        "What can I ask you ?",
        "What do you know ?",
        "How can you help me ?",
        "Help",
        "Can you help me ?",
        "What are you good at ?",
        "Give me an example .",
        "What should I ask ?",
        "What kind of problems do you solve ?",
        "Can you count ?",
    ),
    "I am a very small model , and I count things .": (
        "Who are you ?",
        "What are you ?",
        "What is your name ?",
        "Are you a model ?",
        "Tell me about yourself .",
        "Are you a person ?",
    ),
    "You are welcome !": (
        "Thanks",
        "Thank you !",
        "Thank you very much .",
        "Thanks a lot !",
        "Great , thanks .",
        "Very good !",
    ),
    "Goodbye !": ("Bye", "Goodbye !", "Bye bye !", "See you later .", "Good night !"),
}
# Words that hold sentences of other kinds together: with them known, such a sentence is not a row of unknown words.
_COMMON_WORDS = (
    "the a an is are was were be do does did can could will would should may must not no yes it its this that these"
    " those my your our who what where when why which how long far old much tell me about write story poem sing say"
    " think like want love know need go come see look make let please explain because or but with without from for to"
    " of in on at by as than very world day night year time people man woman child dog cat house city country capital"
    " water food color name word number book film music weather today tomorrow best first last one two three s t m re"
    " ' ( ) \" - + = : ; , . ! ?"
)
_VERB_FORMS = {word for sign in "+-" for verb in VERBS[sign] for form in verb for word in form.split()} - {"away"}


@dataclass(frozen=True)
class Conversation:
    """Messages up to a question, one right reply to it, and the number that the reply must end with, if any.

    `kind` is `"problem"`, `"follow-up"`, `"sum"`, `"small talk"` or `"other"`.
    """

    messages: tuple[dict[str, str], ...]
    reply: str
    kind: str
    answer: int | None = None

    def turns(self) -> tuple[dict[str, str], ...]:
        """The messages with the reply, for a conversation that goes on."""
        return (*self.messages, {"role": "assistant", "content": self.reply})


def conversation_vocabulary() -> list[str]:
    """All words of the language, as they are written, in small letters and with a capital; the numbers last."""
    texts = [*wording_templates(), *_SUMS, *_SMALL_TALK, *(text for asked in _SMALL_TALK.values() for text in asked)]
    words = {word for text in [*texts, _COMMON_WORDS, REFUSAL] for word in text.split()}
    words = {word for word in words if not (word.startswith("{") or word.isdigit())}
    words |= {word.lower() for word in words} | {word[0].upper() + word[1:] for word in words} | set(answer_words())
    return sorted(words) + [str(number) for number in range(LARGEST_NUMBER + 1)]


def generate_conversations(
    seed: int,
    split: str = "train",
    kinds: Mapping[str, float] | None = None,
    steps: Sequence[int] = range(1, MAX_STEPS + 1),
) -> Iterator[Conversation]:
    """Yields conversations without end, the same ones for the same arguments.

    Args:
        seed (`int`): seed of the random draws.
        split (`str`, *optional*, defaults to `"train"`): `"train"` or `"test"`. About one conversation in ten belongs
            to the test split, by a hash of its text, so that no seed gives it in both. Small talk is in both.
        kinds (`Mapping`, *optional*): by kind, how often it is drawn: those of [`Conversation`], and `"later"`, in
            which one of them follows upon another. Problems alone by default.
        steps (`Sequence`, *optional*): how many steps a problem may have, drawn evenly.
    """
    if split not in ("train", "test"):
        raise ValueError(f'`split` must be "train" or "test", got {split!r}.')
    rng = random.Random(seed)
    kinds = kinds or {"problem": 1.0}
    while True:
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        conversation = _DRAWS[kind](rng, steps)
        text = " ".join(message["content"] for message in conversation.messages)
        is_held_out = zlib.crc32(text.encode()) % 10 == 0
        if conversation.kind == "small talk" or is_held_out == (split == "test"):
            yield conversation


def _draw_problem(rng: random.Random, steps: Sequence[int]) -> Conversation:
    return _tell_problem(rng, steps, Teller(rng))


def _tell_problem(rng: random.Random, steps: Sequence[int], teller: Teller) -> Conversation:
    num_steps = rng.choice(steps)
    total = start = rng.randint(0 if num_steps < 2 else 3, LARGEST_NUMBER)
    changes = []
    told = {start}
    for _ in range(num_steps):
        # The numbers of a problem mostly differ, so that each is found by the one before it, and not by counting.
        draws = [_draw_change(rng, total) for _ in range(4)]
        sign, change, total = next((draw for draw in draws if draw[1] not in told), draws[0])
        told.add(change)
        changes.append((sign, change))
    return _conversation(teller.question(start, changes), _solve(rng, start, changes), "problem", total)


def _draw_follow_up(rng: random.Random, steps: Sequence[int]) -> Conversation:
    """Some of the questions that lead to the last one have nothing to do with it."""
    teller = Teller(rng)
    history = _tell_problem(rng, range(4), teller)
    messages, total = history.turns(), history.answer or 0
    for _ in range(rng.choice((1, 1, 1, 2))):
        if rng.random() < 0.2:
            messages += rng.choice((_draw_small_talk, _draw_other))(rng, steps).turns()
        start = total
        sign, change, total = _draw_change(rng, start)
        asked = {"role": "user", "content": teller.follow_up(sign, change)}
        last = Conversation((*messages, asked), _solve(rng, start, [(sign, change)]), "follow-up", total)
        messages = last.turns()
    return last


def _draw_later(rng: random.Random, steps: Sequence[int]) -> Conversation:
    """What is asked in a chat that has begun, and has nothing to do with it."""
    first = rng.choice((_draw_problem, _draw_small_talk, _draw_other))(rng, range(1, 3))
    last = rng.choice((_draw_problem, _draw_problem, _draw_sum, _draw_small_talk, _draw_other))(rng, range(1, 4))
    return Conversation((*first.turns(), *last.messages), last.reply, last.kind, last.answer)


def _draw_sum(rng: random.Random, steps: Sequence[int]) -> Conversation:
    start = rng.randint(0, LARGEST_NUMBER)
    sign, change, total = _draw_change(rng, start)
    question = rng.choice(_SUMS).format(a=start, sign=sign, b=change)
    return _conversation(question, f"{start} {sign} {change} = {total} . The answer is {total} .", "sum", total)


def _draw_small_talk(rng: random.Random, steps: Sequence[int]) -> Conversation:
    reply, asked = rng.choice(list(_SMALL_TALK.items()))
    return _conversation(as_typed(rng.choice(asked), rng), reply, "small talk")


def _draw_other(rng: random.Random, steps: Sequence[int]) -> Conversation:
    words = _loose_words(rng) if rng.random() < 0.55 else _spoiled_problem(rng)
    return _conversation(as_typed(" ".join(words), rng), REFUSAL, "other")


def _loose_words(rng: random.Random) -> list[str]:
    share = rng.choice((0.2, 0.5, 0.8))
    known = _COMMON_WORDS.split()
    words = [rng.choice(known) if rng.random() < share else UNKNOWN for _ in range(rng.randint(1, 14))]
    if rng.random() < 0.4:
        words.insert(rng.randint(0, len(words)), str(rng.randint(0, LARGEST_NUMBER)))
    return [*words, *rng.choice((".", "?", "!", ""))]


def _spoiled_problem(rng: random.Random) -> list[str]:
    """A problem without numbers, with unknown verbs, or with an unknown number."""
    words = _draw_problem(rng, range(1, 4)).messages[0]["content"].split()
    numbers = [index for index, word in enumerate(words) if word.isdigit()]
    verbs = [index for index, word in enumerate(words) if word in _VERB_FORMS]
    way = rng.choice(("no numbers", "unknown verbs", "unknown number"))
    if way == "no numbers":
        return [word for word in words if not word.isdigit()]
    for index in verbs if way == "unknown verbs" and verbs else [rng.choice(numbers)]:
        words[index] = UNKNOWN
    return words


_DRAWS: dict[str, Callable[[random.Random, Sequence[int]], Conversation]] = {
    "problem": _draw_problem,
    "follow-up": _draw_follow_up,
    "later": _draw_later,
    "sum": _draw_sum,
    "small talk": _draw_small_talk,
    "other": _draw_other,
}


def _draw_change(rng: random.Random, total: int) -> tuple[str, int, int]:
    """Sign, number and the new total; most numbers are small."""
    _, sign, change, new_total = draw_equation(rng, total, largest=9 if rng.random() < 0.8 else 20)
    return sign, change, new_total


def _solve(rng: random.Random, start: int, changes: Sequence[tuple[str, int]]) -> str:
    first_weight = FIRST_WEIGHT if len(changes) < STEPS_OF_LONG else FIRST_WEIGHT_OF_LONG
    return write_solution(rng, start, changes, first_weight=first_weight)


def _conversation(question: str, reply: str, kind: str, answer: int | None = None) -> Conversation:
    return Conversation(({"role": "user", "content": question},), reply, kind, answer)
