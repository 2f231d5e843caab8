# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Draws the rows of the tasks on which an autoregressive model's answers are timed.

`requests`: a request, answered by its fields as JSON. `counting`: a word problem of one or two steps, answered by
the steps. `chat`: open questions without an answer. All texts are written by hand. Splits share no wording and no
value of the slots place, task, item, song (so no answer of a request in `tune` or `test` stands in `train`), name,
thing and all topics of chat. Days, sizes, rooms, numbers and times are common, so the calculation of a problem may
recur. In the test of `chat`, 40 prompts have no slots, and each is its own wording. A round of rows deals each wording
once, in random order, without prompts that came before. When a round has nothing new, prompts may come again.
"""

import json
import operator
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


SPLITS = ("train", "tune", "test")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
FIELDS = {"reserve": "place people day time", "remind": "task day time"}
FIELDS |= {"order": "item count size", "play": "song room volume"}
TOPICS = ("idea", "land", "hobby", "dish", "animal", "job", "event", "object", "code")
# "## name: train # tune # test", or one for all. In requests, {n} is the number, and {on} the day, after "on" if it
# takes one. A problem of counting follows its steps, where x is the last result; {n} and {m} are people, {t} things.
TEXT = Path(__file__).with_name("exact_tasks.txt").read_text(encoding="utf-8")
TEXTS = {
    (name.strip(), split): [" ".join(text.split()) for text in texts.split("|")]
    for name, section in (part.split(":", 1) for part in TEXT.split("##"))
    for split, texts in zip(SPLITS, section.split("#") * 3, strict=False)
}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def draw_field(rng: random.Random, field: str, split: str) -> tuple[str, Any]:
    """Draws a field of a request as people say it, and its value."""
    if field == "time":
        hour, minute = rng.randint(8, 22), rng.choice(("00", "00", "15", "30", "45"))
        spoken = f"{(hour - 1) % 12 + 1}:{minute}".removesuffix(":00") + (" am" if hour < 12 else " pm")
        clock = f"{hour:02}:{minute}"
        return (clock if rng.random() < 0.2 else spoken), clock
    if field == "volume":
        return str(number := rng.randint(1, 99)), number
    if field in ("people", "count"):
        number = rng.randint(2, 10)
        return (NUMBERS[number - 2] if rng.random() < 0.6 else str(number)), number
    value = rng.choice(TEXTS[field, split])
    return value, value


def draw_request(rng: random.Random, split: str, action: str, wording: str) -> tuple[str, str]:
    spoken, values = {}, {"action": action}
    for field in FIELDS[action].split():
        words, values[field] = draw_field(rng, field, split)
        spoken["n" if field in ("people", "count", "volume") else field] = words
    day = spoken.get("day", "")
    spoken["on"] = day if day in ("today", "tomorrow") else f"on {day}"
    return wording.format(**spoken), json.dumps(values)


def request_schema() -> dict[str, Any]:
    """Returns the JSON schema of the answers to requests."""
    types = dict.fromkeys(("people", "count", "volume"), {"type": "integer"})
    types["size"], types["room"] = ({"enum": TEXTS[name, "train"]} for name in ("size", "room"))
    fields = {
        action: {name: types.get(name, {"type": "string"}) for name in of.split()} for action, of in FIELDS.items()
    }
    objects = [{"type": "object", "properties": {"action": {"const": k}, **of}} for k, of in fields.items()]
    return {"anyOf": objects}


def draw_problem(rng: random.Random, split: str, steps: str, wording: str) -> tuple[str, str]:
    """Draws numbers until each result is from 1 to 120, and products and quotients are simple, without a rest."""
    while True:
        numbers = {letter: rng.randint(2, 60) for letter in "abc"}
        known, lines = dict(numbers), []
        for left, sign, right in steps.split():
            first, second = known[left], known[right]
            known["x"] = result = OPERATIONS[sign](first, second)
            lines.append(f"{first} {sign} {second} = {result}.")
            too_hard = (sign == "*" and min(first, second) > 12) or (sign == "/" and second > 12)
            if too_hard or not 1 <= result <= 120 or (sign == "/" and (result == 1 or first % second)):
                break
        else:
            n, m = rng.sample(TEXTS["name", split], 2)
            problem = wording.format(n=n, m=m, t=rng.choice(TEXTS["thing", split]), **numbers)
            return problem, " ".join([*lines, f"The answer is {result}."])


def draw_question(rng: random.Random, split: str, _: str, wording: str) -> tuple[str, None]:
    slots = {"number": rng.choice(NUMBERS[1:6])}
    for topic in TOPICS:
        slots[topic], slots[f"{topic}2"] = rng.sample(TEXTS[topic, split], 2)
    return wording.format(**slots), None


def draw_rows(task: str, split: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yields rows without end, the same for the same arguments; `wording` is the index of a row's wording."""
    rng = random.Random(f"{task} {split} {seed}")
    draw = {"requests": draw_request, "counting": draw_problem, "chat": draw_question}[task]
    if task == "counting":
        wordings = [wording.split(": ", 1) for wording in TEXTS[task, split]]
    else:
        wordings = [(k, wording) for k in (FIELDS if task == "requests" else (task,)) for wording in TEXTS[k, split]]
    order = list(range(len(wordings)))
    seen: set[str] = set()
    while True:
        rng.shuffle(order)
        num_seen = len(seen)
        for index in order:
            text, answer = draw(rng, split, *wordings[index])
            text = re.sub(r"(^|[.?!] )([a-z])", lambda start: start[1] + start[2].upper(), text)
            if text not in seen:
                seen.add(text)
                yield {"prompt": [{"role": "user", "content": text}], "answer": answer, "wording": index}
        if len(seen) == num_seen:
            seen.clear()


def is_right(task: str, answer: str, text: str) -> bool:
    """Says if a text has the same JSON as the answer (requests), or the same last number (counting)."""
    if task == "requests":
        try:
            return json.loads(text) == json.loads(answer)
        except (ValueError, RecursionError):
            return False
    if task == "counting":
        found, right = (re.findall(r"-?\d[\d,]*(?:\.\d+)?", words)[-1:] for words in (text, answer))
        return [float(number.replace(",", "")) for number in found] == [float(number) for number in right]
    raise ValueError(f"task is {task!r}, but only answers of 'requests' and 'counting' are right or wrong.")
