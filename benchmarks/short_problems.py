# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The questions of the short teacher in `benchmarks/short_teacher`, a LLaDA of 1.3 million parameters, such as

    Gia has 14 stamps . Then Gia finds 6 more . Later Gia sells 5 stamps . How many stamps does Gia have now ?

It learned them with answers whose every sentence is drawn from several wordings, and questions of two and three steps
alone (`git show 97b3d50a:src/hf_dparallel/demo/word_problems.py`).
"""

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from datasets import Dataset


NAMES = (
    "Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo",
    "Ida", "Jon", "Kim", "Leo", "Mia", "Nils", "Ona", "Pia",
)  # fmt: skip
ITEMS = ("apples", "books", "cards", "coins", "eggs", "keys", "marbles", "nuts", "pens", "plums", "shells", "stamps")
LARGEST_NUMBER = 40
START = ("{name} has {a} {items} .", "There are {a} {items} in the bag of {name} .")
STEPS = {
    "+": ("{name} finds {b} more .", "{name} buys {b} {items} ."),
    "-": ("{name} loses {b} of them .", "{name} sells {b} {items} ."),
}
OPENINGS = ("", "Then ", "Later ")
END = ("How many {items} does {name} have now ?", "How many {items} are left ?")


def problems(split: str, first: int, count: int, num_steps: Sequence[int] = (2, 3, 3)) -> Dataset:
    """Returns problems number `first` to `first + count` of a split, "train" or "test", with `prompt` and `answer`.

    No question comes twice, within a split or in both.
    """
    rows = [
        {"prompt": [{"role": "user", "content": question}], "answer": str(answer)}
        for question, answer in islice(_all_problems(split, num_steps), first, first + count)
    ]
    return Dataset.from_list(rows)


def typed(seed: int) -> Dataset:
    """Returns a third of 200 everyday problems that people typed, in words that no training has."""
    everyday = json.loads(Path(__file__).with_name("counting_prompts.json").read_text(encoding="utf-8"))["everyday"]
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": answer} for text, answer in everyday[seed::3]]
    return Dataset.from_list(rows)


def _all_problems(split: str, num_steps: Sequence[int]) -> Iterator[tuple[str, int]]:
    rng = random.Random(0)
    seen = set()
    while True:
        question, answer = _draw_problem(rng, num_steps)
        is_test = zlib.crc32(question.encode()) % 10 == 0
        if question not in seen and is_test == (split == "test"):
            seen.add(question)
            yield question, answer


def _draw_problem(rng: random.Random, num_steps: Sequence[int]) -> tuple[str, int]:
    words = {"name": rng.choice(NAMES), "items": rng.choice(ITEMS)}
    total = rng.randint(3, LARGEST_NUMBER)
    question = [rng.choice(START).format(a=total, **words)]
    for _ in range(rng.choice(num_steps)):
        sign = rng.choice("+-")
        if total == 0:
            sign = "+"
        elif total == LARGEST_NUMBER:
            sign = "-"

        room = LARGEST_NUMBER - total if sign == "+" else total
        change = rng.randint(1, min(9, room))
        total += change if sign == "+" else -change
        step = rng.choice(OPENINGS) + rng.choice(STEPS[sign])
        question.append(step.format(b=change, **words))

    question.append(rng.choice(END).format(**words))
    return " ".join(question), total
