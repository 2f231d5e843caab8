# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Writes counting problems in people's words, for a model that reads real words: a task of benchmarks/real_model.py.

    Ida had 23 stamps, gave 4 away and found 12. How many now?
    23 - 4 = 19. 19 + 12 = 31. The answer is 31.

The problems and the refusals are those of the bundled teacher (scripts/teacher), of up to three steps. Words that it
does not know are random words of other problems here, and replies are shorter. It writes `train.jsonl`,
`prompts.jsonl` and `test.jsonl`, as requests_to_json.py does; after 400 held-out problems, the test has those that
people typed (see counting_teacher.py), the blind author's first.
"""

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any


sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("scripts", "examples/make_a_teacher"))
from requests_to_json import write_files
from teacher.conversations import Conversation, generate_conversations, last_words
from teacher.solutions import STOP
from teacher.wording import SIGN_WORDS, UNKNOWN, in_words, wording_templates, words_of


KINDS = {"problem": 0.55, "sum": 0.10, "small talk": 0.04, "other": 0.16, "limit": 0.06}
STEPS = (0, *(1,) * 6, *(2,) * 6, *(3,) * 3)
NUM_DRAWN = 400
NUMBER_WORDS = {word for number in range(100) for word in in_words(number).split()}
WORDS = sorted(
    word
    for word in words_of(wording_templates()) - SIGN_WORDS - NUMBER_WORDS
    if word.isalpha() and word.islower() and len(word) > 3
)


def draw_rows(seed: int, split: str = "train") -> Iterator[dict[str, Any]]:
    """Yields rows without end, the same for the same seed."""
    rng = random.Random(seed)
    for conversation in generate_conversations(seed, split, KINDS, STEPS):
        question = conversation.messages[-1]["content"]
        question = re.sub(UNKNOWN, lambda _: rng.choice(WORDS), question, flags=re.IGNORECASE)
        prompt = {"role": "user", "content": as_people_write(question)}
        reply = {"role": "assistant", "content": short_reply(conversation)}
        answer = as_people_write(last_words(conversation))
        yield {"prompt": [prompt], "answer": answer, "messages": [prompt, reply], "kind": conversation.kind}


def typed_rows(kind: str) -> Iterator[dict[str, Any]]:
    """Yields what people typed."""
    for text, answer in json.loads(Path(__file__).with_name("counting_prompts.json").read_text("utf-8"))[kind]:
        yield {"prompt": [{"role": "user", "content": text}], "answer": as_people_write(answer), "kind": kind}


def as_people_write(text: str) -> str:
    """Takes the spaces of the bundled model's language from before and around marks."""
    return re.sub(r" ([.,?!:;)])", r"\1", text.replace(" ' ", "'")).replace("( ", "(")


def short_reply(conversation: Conversation) -> str:
    """Leaves of a worked answer the sums, the one where it stops, and the last sentence.

    We start with 14 . Then we add 6 : 14 + 6 = 20 . Then we take 25 away : we can only count from 0 to 198 .
    14 + 6 = 20. 20 - 25: we can only count from 0 to 198.
    """
    reply = conversation.reply
    sentences = [f"{each} ." for each in re.findall(r"\d+ [+-] \d+ = \d+", reply)]
    if reply.endswith(STOP):
        *_, step, _ = re.split(r" [.:] ", reply)
        start = re.findall(r"\d+", " ".join(sentences) or reply)[-1 if sentences else 0]
        sign = "-" if re.search("away|lose|less", step) else "+"
        last = f"{start} {sign} {re.findall(r'[0-9]+', step)[0]} : {STOP}"
    else:
        last = reply if conversation.answer is None else f"The answer is {conversation.answer} ."
    return as_people_write(" ".join([*sentences, last]))


def same_end_reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
    """Gives 1.0 for a reply that ends with the right number or, if `answer` is a text, with it; else 0.0."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    ends = [f"The answer is {end}." if end.isdigit() else end for end in answer]
    return [float(text.strip().endswith(end)) for text, end in zip(texts, ends, strict=True)]


def draw_tests(seed: int) -> Iterator[dict[str, Any]]:
    """Yields held-out problems, then those that people typed."""
    return chain(islice(draw_rows(seed, "test"), NUM_DRAWN), typed_rows("blind"), typed_rows("everyday"))


def main(argv: Sequence[str] | None = None) -> None:
    write_files(argv, __doc__.splitlines()[0], draw_rows, draw_tests, "kind")


if __name__ == "__main__":
    main()
