# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Conversations about counting things: the language of the long testbed.

Problems of up to eight steps in varied wording, follow-up questions in a chat, bare sums, small talk, and an honest
refusal of everything else. The worked answers never name a person or a thing: so names, things and mistyped words that
the vocabulary does not hold do no harm.
"""

import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .solutions import LARGEST_GIVEN, LARGEST_RESULT, OTHER, STOP, TOO_LARGE, templates, write_solution
from .wording import QUESTIONS, UNKNOWN, WORDINGS, Teller, as_typed, wording_templates, words_of


MAX_STEPS = 8

_NO_SUMS = WORDINGS["no_sums"]
# By reply, the texts that it answers.
SMALL_TALK = WORDINGS["small_talk"]
# Words that hold sentences of other kinds together: with them known, such a sentence is not a row of unknown words.
_COMMON_WORDS = (
    "the a an is are was were be do does did can could will would should may must not no yes it its this that these"
    " those my your our who what where when why which how long far old much tell me about write story poem sing say"
    " think like want love know need go come see look make let please explain because or but with without from for to"
    " of in on at by as than very world day night year time people man woman child dog cat house city country capital"
    " water food color name word number book film music weather today tomorrow best first last one two three s t m re"
    " each every hundred thousand million x times divided half double"
    " ' ( ) \" - + = * / : ; , . ! ?"
)


@dataclass(frozen=True)
class Conversation:
    """Messages up to a question, one right reply to it, and the number that the reply must end with, if any.

    `kind` is `"problem"`, `"follow-up"`, `"sum"`, `"small talk"` or `"other"`. A problem without an answer leads out
    of the numbers that the model knows; its reply stops there.
    """

    messages: tuple[dict[str, str], ...]
    reply: str
    kind: str
    answer: int | None = None

    def turns(self) -> tuple[dict[str, str], ...]:
        """Adds the reply to the messages, for a conversation that goes on."""
        return (*self.messages, {"role": "assistant", "content": self.reply})


def conversation_vocabulary() -> list[str]:
    """Returns all words of the language, in lower case."""
    texts = [*wording_templates(), *templates(), *_NO_SUMS, *SMALL_TALK]
    texts += [_COMMON_WORDS, *(text for asked in SMALL_TALK.values() for text in asked)]
    return sorted({word.lower() for word in words_of(texts) if not word.isdigit()})


def reply_capitals() -> list[str]:
    """Returns the words of replies with a capital."""
    return sorted(word for word in words_of([*templates(), *SMALL_TALK]) if word != word.lower())


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
        kinds (`Mapping`, *optional*): by kind, how often it is drawn: those of [`Conversation`], `"limit"`, a problem
            that leads out of reach, and `"later"` and `"chat"`, where one of them follows upon another. Problems alone
            by default.
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


def _tell_problem(rng: random.Random, steps: Sequence[int], teller: Teller, stops: float = 0.1) -> Conversation:
    num_steps = rng.choice(steps)
    total = start = _draw_number(rng, 0 if num_steps < 2 else 3)
    changes = []
    told = {start}
    for step in range(num_steps):
        # The numbers of a problem mostly differ, so that each is found by the one before it, and not by counting.
        is_stop = step == num_steps - 1 and rng.random() < stops
        draws = [draw_change(rng, total, is_stop) for _ in range(4)]
        sign, change, total = next((draw for draw in draws if draw[1] not in told), draws[0])
        told.add(change)
        changes.append((sign, change))
    return _answered(rng, (), teller.question(start, changes), start, changes, "problem")


def _draw_limit(rng: random.Random, steps: Sequence[int]) -> Conversation:
    return _tell_problem(rng, steps, Teller(rng), stops=1.0)


def _draw_follow_up(rng: random.Random, steps: Sequence[int]) -> Conversation:
    """Draws a follow-up, sometimes after questions that have nothing to do with it."""
    teller = Teller(rng)
    last = _tell_problem(rng, range(4), teller, stops=0.0)
    for _ in range(rng.choice((1, 1, 1, 2))):
        messages, total = last.turns(), last.answer or 0
        if rng.random() < 0.2:
            messages += rng.choice((_draw_small_talk, _draw_other))(rng, steps).turns()
        sign, change, _ = draw_change(rng, total, is_stop=rng.random() < 0.05)
        last = _answered(rng, messages, teller.follow_up(sign, change), total, [(sign, change)], "follow-up")
        if last.answer is None:
            break
    return last


def _draw_later(rng: random.Random, steps: Sequence[int]) -> Conversation:
    """Draws a question that has nothing to do with the chat before it."""
    first = rng.choice((_draw_problem, _draw_small_talk, _draw_other))(rng, range(1, 3))
    last = rng.choice((_draw_problem, _draw_problem, _draw_sum, _draw_small_talk, _draw_other))(rng, range(1, 4))
    return Conversation((*first.turns(), *last.messages), last.reply, last.kind, last.answer)


def _draw_chat(rng: random.Random, steps: Sequence[int]) -> Conversation:
    first = rng.choice((_draw_problem, _draw_problem, _draw_follow_up, _draw_small_talk, _draw_other))
    last = rng.choice((_draw_problem, _draw_problem, _draw_problem, _draw_sum, _draw_other))(rng, range(1, 5))
    return Conversation((*first(rng, range(1, 5)).turns()[-2:], *last.messages), last.reply, last.kind, last.answer)


def _draw_sum(rng: random.Random, steps: Sequence[int]) -> Conversation:
    start = _draw_number(rng)
    *first, total = draw_change(rng, start, is_stop=rng.random() < 0.15)
    changes = [(first[0], first[1])]
    if 0 <= total <= LARGEST_RESULT and rng.random() < 0.2:
        changes.append(draw_change(rng, total)[:2])
    return _answered(rng, (), Teller(rng).sum(start, changes), start, changes, "sum")


def _draw_small_talk(rng: random.Random, steps: Sequence[int]) -> Conversation:
    reply, asked = rng.choice(list(SMALL_TALK.items()))
    return _conversation((), as_typed(rng.choice(asked), rng), reply, "small talk")


def _draw_other(rng: random.Random, steps: Sequence[int]) -> Conversation:
    kind, teller = rng.random(), Teller(rng)
    if kind < 0.2:
        return _conversation((), as_typed(" ".join(_loose_words(rng)), rng), OTHER, "other")
    if kind < 0.65:
        text = rng.choice(rng.choice((_NO_SUMS, QUESTIONS["?"], QUESTIONS["?"], QUESTIONS["?"])))
        nouns = rng.choice((UNKNOWN, UNKNOWN, teller.items))
        numbers = {gap: _draw_number(rng) for gap in "abcdxy"}
        text = text.format(**numbers, name=teller.name, other=teller.other, items=teller.items, unknown=nouns)
        return _conversation((), as_typed(text, rng), OTHER, "other")
    if kind < 0.71:
        return _conversation((), teller.unclear(_draw_number(rng), _draw_number(rng, 1)), OTHER, "other")
    question = rng.choice((_draw_problem, _draw_problem, _draw_sum))(rng, range(1, 4)).messages[0]["content"]
    if kind < 0.76:
        return _conversation((), re.sub(r" ?\b\d+", "", question).strip() or "?", OTHER, "other")
    numbers = list(re.finditer(r"\b\d+", question))
    if not numbers:
        return _draw_other(rng, steps)
    number = rng.choice(numbers)
    reply, instead = TOO_LARGE, _too_large(rng)
    if kind < 0.84:
        reply, instead = OTHER, rng.choice(("some", "a few", "several", f"{number[0]} . {rng.randint(1, 9)}"))
    question = question[: number.start()] + instead + question[number.end() :]
    return _conversation((), question, reply, "other")


def _too_large(rng: random.Random) -> str:
    if rng.random() < 0.08:
        return rng.choice(("a hundred", "two hundred", "a thousand", "a million", "one hundred"))
    digits = rng.choice((3, 3, 3, 4, 5))
    number = rng.randrange(10 ** (digits - 1), 10**digits, rng.choice((1, 1, 10, 100)))
    return f"{number:,}" if rng.random() < 0.2 else str(number)


def _loose_words(rng: random.Random) -> list[str]:
    share = rng.choice((0.2, 0.5, 0.8))
    known = _COMMON_WORDS.split()
    words = [rng.choice(known) if rng.random() < share else UNKNOWN for _ in range(rng.randint(1, 14))]
    if rng.random() < 0.3:
        words.insert(rng.randint(0, len(words)), str(rng.randint(0, LARGEST_GIVEN)))
    return [*words, *rng.choice((".", "?", "!", ""))]


_DRAWS: dict[str, Callable[[random.Random, Sequence[int]], Conversation]] = {
    "problem": _draw_problem,
    "limit": _draw_limit,
    "follow-up": _draw_follow_up,
    "later": _draw_later,
    "chat": _draw_chat,
    "sum": _draw_sum,
    "small talk": _draw_small_talk,
    "other": _draw_other,
}


def _draw_number(rng: random.Random, smallest: int = 0) -> int:
    """Draws a number, mostly below 25."""
    return rng.randint(smallest, rng.choice((24, LARGEST_GIVEN)))


def draw_change(rng: random.Random, total: int, is_stop: bool = False) -> tuple[str, int, int]:
    """Draws sign, number and new total, which is out of reach if the problem is to stop here and that can be."""
    largest = rng.choice((9, 9, 20, LARGEST_GIVEN))
    sign = "+" if total == 0 else "-" if total >= LARGEST_RESULT else rng.choice("+-")
    if is_stop and rng.random() < 0.7:
        sign = "-" if total < LARGEST_GIVEN else "+"
    room = LARGEST_RESULT - total if sign == "+" else total
    if is_stop and room < LARGEST_GIVEN:
        change = rng.randint(room + 1, rng.choice((min(room + 9, LARGEST_GIVEN), LARGEST_GIVEN)))
    else:
        change = rng.randint(1, min(largest, room))
    return sign, change, total + change if sign == "+" else total - change


def _answered(
    rng: random.Random,
    history: tuple[dict[str, str], ...],
    question: str,
    start: int,
    changes: Sequence[tuple[str, int]],
    kind: str,
) -> Conversation:
    reply, answer = write_solution(rng, start, changes)
    return _conversation(history, question, reply, kind, answer)


def _conversation(
    history: tuple[dict[str, str], ...], question: str, reply: str, kind: str, answer: int | None = None
) -> Conversation:
    return Conversation((*history, {"role": "user", "content": question}), reply, kind, answer)


def last_words(conversation: Conversation) -> str:
    """Returns the end of a right reply: a number, the sentence where a problem stops, or the whole reply."""
    if conversation.answer is not None:
        return str(conversation.answer)
    return STOP if conversation.reply.endswith(STOP) else conversation.reply
