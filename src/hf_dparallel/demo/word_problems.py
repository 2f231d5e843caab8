# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Arithmetic word problems with worked answers: the language of the bundled teacher.

A question such as

    Gia has 14 stamps . Then Gia finds 6 more . Later Gia sells 5 stamps . How many stamps does Gia have now ?

has the answer

    We start with 14 . Then we get 6 more , so that is 14 + 6 = 20 . Now another 5 go : 20 - 5 = 15 . The answer is
    15 .

Every sentence is drawn from several phrasings that share words at different places. That is what makes the certainty
of a model of this language sequential, as in natural text: until the first words of a sentence stand, it cannot know
where the later ones go, though it may know all of them. Arithmetic stays easy (results between 0 and 40, one
number a token) so that a model of about a million parameters does it well.
"""

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass


NAMES = (
    "Ana",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gia",
    "Hugo",
    "Ida",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Ona",
    "Pia",
)
ITEMS = ("apples", "books", "cards", "coins", "eggs", "keys", "marbles", "nuts", "pens", "plums", "shells", "stamps")
LARGEST_NUMBER = 40

# Each entry is (weight, text). The first outweighs each of the others: greedy decoding writes it whatever the problem.
# The others together outweigh it: the model stays uncertain until it has begun to write. They differ in length, in a
# way that leaves the first one the likeliest also where only the end of a sentence or a number in it stands.
_START = (
    (5, "We start with {a} ."),
    (2, "First , we have {a} ."),
    (2, "{a} are there first ."),
    (2, "There are {a} at first ."),
    (2, "At the beginning we have {a} ."),
    (2, "It begins with {a} ."),
    (2, "At first there are {a} ."),
)
_STEP_OPENING = ((5, "Then "), (2, "Now "), (2, "Later "), (2, "From here "), (2, "Next , "))
_STEP_ACTION = {
    "+": (
        (7, "we get {b} more "),
        (2, "the count grows by {b} "),
        (2, "somebody brings {b} "),
        (2, "there are {b} more "),
        (2, "another {b} come "),
    ),
    "-": (
        (7, "we give {b} away "),
        (2, "the count falls by {b} "),
        (2, "somebody takes {b} "),
        (2, "there are {b} fewer "),
        (2, "another {b} go "),
    ),
}
_STEP_RESULT = (
    (5, ", so that is {a} {sign} {b} = {c} ."),
    (2, ", which makes {a} {sign} {b} = {c} ."),
    (2, ": this makes {a} {sign} {b} = {c} now ."),
    (2, ": {a} {sign} {b} = {c} ."),
    (2, "; in all {a} {sign} {b} = {c} ."),
)
_END = ((1, "The answer is {c} ."),)

_QUESTION_START = ("{name} has {a} {items} .", "There are {a} {items} in the bag of {name} .")
_QUESTION_STEP = {
    "+": ("{name} finds {b} more .", "{name} buys {b} {items} ."),
    "-": ("{name} loses {b} of them .", "{name} sells {b} {items} ."),
}
_QUESTION_OPENING = ("", "Then ", "Later ")
_QUESTION_END = ("How many {items} does {name} have now ?", "How many {items} are left ?")

_ANSWER = re.compile(r"The answer is (\d+) \.")


@dataclass(frozen=True)
class WordProblem:
    """A question, one worked answer to it, and the number that the answer must end with."""

    question: str
    solution: str
    answer: int


def vocabulary() -> list[str]:
    """All words of the language, sorted, the numbers last."""
    templates = [*_QUESTION_START, *_QUESTION_OPENING, *_QUESTION_END, *NAMES, *ITEMS, "+ -"]
    templates += [text for texts in _QUESTION_STEP.values() for text in texts]
    weighted = [_START, _STEP_OPENING, _STEP_RESULT, _END, *_STEP_ACTION.values()]
    templates += [text for options in weighted for _, text in options]
    words = {word for text in templates for word in text.split() if not word.startswith("{")}
    return sorted(words) + [str(number) for number in range(LARGEST_NUMBER + 1)]


def generate_word_problems(seed: int, split: str = "train") -> Iterator[WordProblem]:
    """Yields word problems without end, the same ones for the same `seed`.

    Args:
        seed (`int`): seed of the random draws.
        split (`str`, *optional*, defaults to `"train"`): `"train"` or `"test"`. About one question in ten belongs to
            the test split, by a hash of its text, so that no seed gives a question in both.
    """
    if split not in ("train", "test"):
        raise ValueError(f'`split` must be "train" or "test", got {split!r}.')
    rng = random.Random(seed)
    while True:
        problem = _draw_problem(rng)
        if (zlib.crc32(problem.question.encode()) % 10 == 0) == (split == "test"):
            yield problem


def extract_answer(text: str) -> int | None:
    """Returns the number in the last "The answer is ..." of `text`, or `None` if there is none."""
    found = _ANSWER.findall(text)
    return int(found[-1]) if found else None


def draw_equation(rng: random.Random, total: int | None = None) -> tuple[int, str, int, int]:
    """Draws `a, sign, b, c` with `a sign b = c`; `total` is `a`, if that is given."""
    total = rng.randint(0, LARGEST_NUMBER) if total is None else total
    sign = rng.choice("+-")
    if sign == "+" and total == LARGEST_NUMBER:
        sign = "-"
    if sign == "-" and total == 0:
        sign = "+"
    change = rng.randint(1, min(9, LARGEST_NUMBER - total if sign == "+" else total))
    return total, sign, change, total + change if sign == "+" else total - change


def _draw_problem(rng: random.Random) -> WordProblem:
    words = {"name": rng.choice(NAMES), "items": rng.choice(ITEMS)}
    total = rng.randint(3, LARGEST_NUMBER)
    question = [rng.choice(_QUESTION_START).format(a=total, **words)]
    solution = [_draw(rng, _START).format(a=total)]
    for _ in range(rng.choice((2, 3, 3))):
        start, sign, change, total = draw_equation(rng, total)
        numbers = {"a": start, "b": change, "c": total, "sign": sign}
        question.append((rng.choice(_QUESTION_OPENING) + rng.choice(_QUESTION_STEP[sign])).format(**numbers, **words))
        step = _draw(rng, _STEP_OPENING) + _draw(rng, _STEP_ACTION[sign]) + _draw(rng, _STEP_RESULT)
        solution.append(step.format(**numbers))
    question.append(rng.choice(_QUESTION_END).format(**words))
    solution.append(_draw(rng, _END).format(c=total))
    return WordProblem(" ".join(question), " ".join(solution), total)


def _draw(rng: random.Random, options: tuple[tuple[int, str], ...]) -> str:
    return rng.choices([text for _, text in options], [weight for weight, _ in options])[0]
