# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Writes requests in plain words, and their fields as JSON: the task of benchmarks/real_model.py.

    python examples/make_a_teacher/requests_to_json.py --output_dir runs/requests

    Could you get us a table for four at Luigi's on Friday at 7:30 pm?
    {"action": "reserve", "place": "Luigi's", "people": 4, "day": "Friday", "time": "19:30"}

It writes three files of rows: `train.jsonl` with conversations, `prompts.jsonl` with questions for a teacher,
and `test.jsonl` with questions whose wordings neither of them has.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from roman_numerals import write_rows


NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "today", "tomorrow")
PLACES = [
    "Luigi's",
    "the Blue Door",
    "Chez Marie",
    "Golden Lotus",
    "the Old Mill",
    "Taco Corner",
    "Bella Vista",
    "the Harbour Grill",
    "Sakura",
    "Green Leaf",
    "the Copper Pot",
    "Maison Blanche",
    "Curry House",
    "the Lantern",
    "Casa Lupe",
    "Olive Tree",
]
TASKS = [
    "call the dentist",
    "water the plants",
    "pay the rent",
    "pick up the parcel",
    "send the report",
    "book the flights",
    "buy milk",
    "take out the bins",
    "renew the passport",
    "feed the cat",
    "email the plumber",
    "return the library books",
    "charge the bike",
    "check the oven",
    "print the tickets",
    "wash the car",
]
ITEMS = [
    "pizza margherita",
    "veggie burger",
    "iced coffee",
    "chicken wrap",
    "blueberry muffin",
    "tomato soup",
    "spring roll",
    "cheese sandwich",
    "orange juice",
    "chocolate cake",
    "caesar salad",
    "lemon tea",
]
SIZES = ("small", "medium", "large")
SONGS = [
    "Blue Moon",
    "Hey Jude",
    "Yesterday",
    "Let It Be",
    "Clocks",
    "Africa",
    "Imagine",
    "Halo",
    "Thriller",
    "Hallelujah",
    "Wonderwall",
    "Waterloo",
]
ROOMS = ("kitchen", "bedroom", "living room", "bathroom", "garage", "office")

# For each action its fields, wordings of the data, and wordings of the test.
REQUESTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "reserve": (
        "place people day time",
        (
            "Book a table for {people} at {place} on {day} at {time}.",
            "Could you get us a table at {place} for {people} people, {day} at {time}?",
            "I need a reservation for {people} at {place}, {day}, {time}.",
            "We are {people} and want to eat at {place} on {day}. Make it {time}, please.",
            "Reserve {people} seats at {place} for {day} at {time}",
            "Please arrange dinner at {place} for {people} of us at {time} on {day}.",
            "On {day} at {time} we'd like to go to {place}, {people} of us. Can you book that?",
            "table for {people} {place} {day} {time}",
            "Can {place} seat {people} guests on {day} at {time}? If so, book it.",
        ),
        (
            "My friends and I, {people} in total, would love to have a meal at {place} at {time} on {day}.",
            "Is there room for {people} at {place} {day} around {time}? Go ahead and reserve.",
            "For {day} I want {place} to hold a table at {time}. There will be {people} of us.",
        ),
    ),
    "remind": (
        "task day time",
        (
            "Remind me to {task} on {day} at {time}.",
            "On {day} at {time} I have to {task}. Don't let me forget.",
            "Set a reminder for {time} on {day}: {task}",
            "Please make sure that I {task} {day} at {time}.",
            "I must {task} by {time} on {day}, remind me.",
            "Ping me {day} at {time} to {task}.",
            "Add to my list: {task}, {day}, {time}",
            "Can you tell me to {task} when it is {time} on {day}?",
            "Don't forget that I want to {task} at {time}, {day}.",
        ),
        (
            "It would be great if you nudged me at {time} on {day} so that I {task}.",
            "{day}, {time}: I need to {task}. A reminder please!",
            "I always forget to {task}. Could you alert me on {day} at {time}?",
        ),
    ),
    "order": (
        "item count size",
        (
            "Order {count} {size} portions of {item}.",
            "I'd like {count} times {item}, {size}.",
            "Can I get {count} of the {item}, size {size}?",
            "{count} {item}, {size} ones please",
            "Get me {item}, {count} of them, all {size}.",
            "Please add {count} {size} servings of {item} to my order.",
            "We want {item} in {size}. Make that {count}.",
            "Send {count} {size} {item} to my place.",
            "How about {count} orders of {item}? {size} size.",
        ),
        (
            "Everyone here is hungry: bring us {count} {item}, and {size} ones at that.",
            "My order is {item}, the {size} one, times {count}.",
            "Let's have {size} {item}, {count} in all.",
        ),
    ),
    "play": (
        "song room volume",
        (
            "Play {song} in the {room} at volume {volume}.",
            "Put on {song} in the {room}, volume {volume}.",
            "In the {room} I want to hear {song}. Volume {volume}.",
            "Turn the {room} speaker to {volume} and play {song}.",
            "I feel like {song} right now, {room}, at {volume}",
            "Start {song} on the {room} speaker with the volume at {volume}.",
            "Set volume {volume} in the {room}, then play {song}.",
            "Can we listen to {song} in the {room}? Level {volume} please.",
            "{song}, {room}, volume {volume}!",
        ),
        (
            "Let {song} sound through the {room} with volume {volume}.",
            "The {room} is too quiet. Give me {song} at level {volume}.",
            "With the {room} speaker at {volume}, start playing {song}.",
        ),
    ),
}


def draw_time(rng: random.Random) -> tuple[str, str]:
    """Draws a time of the day as people say it, and as a clock shows it."""
    hour, minute = rng.randint(8, 22), rng.choice((0, 0, 15, 30, 45))
    clock = f"{hour:02}:{minute:02}"
    half = "am" if hour < 12 else "pm"
    spoken = f"{(hour - 1) % 12 + 1}" + (f":{minute:02}" if minute else "") + f" {half}"
    return (clock if rng.random() < 0.2 else spoken), clock


def draw_field(rng: random.Random, field: str) -> tuple[str, Any]:
    """Draws a field as the request says it, and its value."""
    if field == "time":
        return draw_time(rng)
    if field in ("people", "count"):
        number = rng.randint(2, 10)
        return (NUMBERS[number - 2] if rng.random() < 0.6 else str(number)), number
    if field == "volume":
        number = rng.randint(1, 99)
        return str(number), number
    options = {"place": PLACES, "day": DAYS, "task": TASKS, "item": ITEMS, "size": SIZES, "song": SONGS, "room": ROOMS}
    value = rng.choice(options[field])
    return value, value


def draw_row(rng: random.Random, is_test: bool) -> dict[str, Any]:
    """Draws a request and its fields."""
    action, (names, wordings, test_wordings) = rng.choice(list(REQUESTS.items()))
    fields = {name: draw_field(rng, name) for name in names.split()}
    request = rng.choice(test_wordings if is_test else wordings)
    request = request.format(**{name: spoken for name, (spoken, _) in fields.items()})
    answer = json.dumps({"action": action} | {name: value for name, (_, value) in fields.items()})
    prompt = {"role": "user", "content": request}
    return {"prompt": [prompt], "answer": answer, "messages": [prompt, {"role": "assistant", "content": answer}]}


def draw_rows(seed: int, is_test: bool = False) -> Iterator[dict[str, Any]]:
    """Yields rows without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield draw_row(rng, is_test)


def same_fields_reward(completions: list[Any], answer: list[str], **kwargs) -> list[float]:
    """Gives 1.0 for a completion that is JSON with the fields and values of `answer`, else 0.0."""

    def read(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return None

    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(read(text) == json.loads(reference)) for text, reference in zip(texts, answer, strict=True)]


def write_files(
    argv: Sequence[str] | None,
    description: str,
    draw: Callable[[int], Iterator[dict[str, Any]]],
    draw_tests: Callable[[int], Iterator[dict[str, Any]]],
    *columns: str,
) -> None:
    """Writes the three files of a task; `columns` are more of the test's. `draw` and `draw_tests` take the seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_rows", type=int, default=8000, help="Conversations in train.jsonl.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_rows(args.output_dir / "train.jsonl", draw(args.seed), args.num_rows, "messages")
    write_rows(args.output_dir / "prompts.jsonl", draw(args.seed + 1), 2000, "prompt", "answer")
    write_rows(args.output_dir / "test.jsonl", draw_tests(args.seed), 800, "prompt", "answer", *columns)


def main(argv: Sequence[str] | None = None) -> None:
    write_files(argv, __doc__.splitlines()[0], draw_rows, partial(draw_rows, is_test=True))


if __name__ == "__main__":
    main()
