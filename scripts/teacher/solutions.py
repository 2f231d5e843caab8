# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the bundled teacher replies to a problem: worked answers, and where it stops.

    We start with 14 . Then we add 6 : 14 + 6 = 20 . Then we take 25 away : we can only count from 0 to 198 .

Every sentence is drawn from several phrasings that share words at different places: the model cannot know where the
later words of a sentence go until the first ones stand, as in natural text. The first phrasing of each part is the
likeliest, whatever else is known, so that decoding writes the same sentences for all problems. All replies but small
talk begin with "We", and those that do not solve go on with "can only": no refusal mixes with a solution.
"""

import random
import re
from collections.abc import Iterable, Sequence


# Of a number in a question, and of a result.
LARGEST_GIVEN, LARGEST_RESULT = 99, 198
OTHER = "We can only add and take away ."
TOO_LARGE = "We can only take numbers up to 99 ."
# One sentence for both ends, so that no reply begins with one and ends with the other.
STOP = "we can only count from 0 to 198 ."

# Each entry is (weight, text).
START = ((8, "We start with {a} ."), (2, "We have {a} at first ."), (1, "We begin with {a} ."))
STEP_OPENING = ((8, "Then we "), (2, "Now we "), (2, "Next , we "), (1, "After that we "))
STEP_ACTION = {
    "+": ((6, "add {b} "), (2, "get {b} more "), (1, "count {b} more ")),
    "-": ((6, "take {b} away "), (2, "lose {b} of them "), (1, "count {b} less ")),
}
STEP_RESULT = ((7, ": "), (2, ", so that is "), (2, ", which makes "))
END = "The answer is {c} ."
# Decoding writes the first phrasing in every step. In long problems an answer that is told so throughout has to be a
# common sight, as its length decides in which block each step stands.
STEPS_OF_LONG, FIRST_WEIGHT_OF_LONG = 5, 6.0


def write_solution(rng: random.Random, start: int, changes: Sequence[tuple[str, int]]) -> tuple[str, int | None]:
    """Writes a worked answer to a problem that begins with `start`; each change is a sign and a number.

    Returns it with the number that it comes to, or None if it stops where the count leaves 0 to 198.
    """
    first_weight = 1.0 if len(changes) < STEPS_OF_LONG else FIRST_WEIGHT_OF_LONG
    solution, total = [_draw(rng, START, first_weight).format(a=start)], start
    for sign, change in changes:
        parts = (STEP_OPENING, STEP_ACTION[sign], STEP_RESULT)
        opening, action, result = (_draw(rng, part, first_weight) for part in parts)
        step = opening + action.format(b=change)
        start, total = total, total + change if sign == "+" else total - change
        if not 0 <= total <= LARGEST_RESULT:
            return " ".join([*solution, f"{step}: {STOP}"]), None
        solution.append(f"{step}{result}{start} {sign} {change} = {total} .")
    return " ".join([*solution, END.format(c=total)]), total


def _draw(rng: random.Random, options: tuple[tuple[int, str], ...], first_weight: float) -> str:
    weights, texts = zip(*options, strict=True)
    return rng.choices(texts, [first_weight * weights[0], *weights[1:]])[0]


def templates() -> list[str]:
    """Returns all parts of the replies to problems, with gaps in braces."""
    parts = [START, STEP_OPENING, *STEP_ACTION.values(), STEP_RESULT]
    return [OTHER, TOO_LARGE, STOP, END, "+ - =", *(text for part in parts for _, text in part)]


def _squeeze(text: str) -> str:
    """Removes spaces: text is written with one before each mark, and decoded without."""
    return "".join(text.split())


def _either(texts: Iterable[str]) -> str:
    escaped = (re.escape(_squeeze(text)).replace(r"\{", "{").replace(r"\}", "}") for text in texts)
    return "(?:" + "|".join(re.sub("{.}", r"\\d+", text) for text in escaped) + ")"


_STEP = _either(text for _, text in STEP_OPENING)
_STEP += _either(text for part in STEP_ACTION.values() for _, text in part)
_SOLUTION = re.compile(
    _either(text for _, text in START)
    + rf"(?:{_STEP}{_either(text for _, text in STEP_RESULT)}\d+[+-]\d+=\d+\.)*"
    + rf"(?:{_either([END])}|{_STEP}:{_either([STOP])})"
)


def is_whole(text: str, others: Iterable[str] = ()) -> bool:
    """Returns whether a reply is a solution from its first to its last sentence, a refusal, or one of `others`."""
    text = _squeeze(text)
    return bool(_SOLUTION.fullmatch(text)) or text in map(_squeeze, (OTHER, TOO_LARGE, *others))
