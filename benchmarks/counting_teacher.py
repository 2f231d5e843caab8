# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the bundled model can do, and how its passes grow with the length of the answer.

    python benchmarks/counting_teacher.py --output counting.json
    python benchmarks/counting_teacher.py --model demo-student --output counting_student.json

Held-out problems of 1 to 3 steps, alone and as the third of a chat, and of 4 to 8 steps, follow-up questions, and what
people typed, in words that the training does not have (`counting_prompts.json`): everyday problems, follow-up
questions, what is out of reach, sentences of other kinds, and what visitors of a page tried. The *blind* prompts are
by an author who had seen neither the language nor the other prompts, and nobody read them while the language grew.

What is not right is *garbled* (neither a whole reply of the language nor a refusal), *made up* (it ends with another
number than the right one, or with one where there is none) or refused.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel.demo import path_of
from hf_dparallel.environment import describe_environment
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.reports import write_json


# The language of the bundled teacher is not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from teacher.conversations import MAX_STEPS, SMALL_TALK
from teacher.solutions import OTHER, is_whole
from teacher.testbed import conversation_dataset, reply_reward


# The longest replies to problems of up to three steps have 63 tokens, those of eight 152.
SHORT, LONG = 64, 160
BLOCK_LENGTH = 32
TYPED = json.loads(Path(__file__).with_name("counting_prompts.json").read_text())

Messages = list[dict[str, str]]
# Messages, and the end of a right reply.
Prompts = Sequence[tuple[Messages, str]]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    max_new_tokens: int = SHORT,
    **settings: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Returns shares of right, garbled and made-up replies, passes, and what was wrong; and the replies."""
    lengths = {"max_new_tokens": max_new_tokens, "block_length": BLOCK_LENGTH}
    answerer = Answerer(model, tokenizer, recipe_of(model).updated(**lengths, **settings))
    chats = [messages for messages, _ in prompts]
    encoded = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
    answers = dict(answerer.rows(sorted(enumerate(encoded), key=lambda row: len(row[1]))))
    replies = [
        tokenizer.decode(answers[row].tokens[: answers[row].num_tokens], skip_special_tokens=True)
        for row in range(len(prompts))
    ]
    verdicts = [verdict(reply, expected) for reply, (_, expected) in zip(replies, prompts, strict=True)]
    figures: dict[str, Any] = {
        kind: fmean(kind == one for one in verdicts) for kind in ("right", "garbled", "made up")
    }
    figures |= {"nfe": fmean(answer.nfe for answer in answers.values()), "num_prompts": len(prompts)}
    figures["wrong"] = [
        [messages[-1]["content"], reply, kind]
        for messages, reply, kind in zip(chats, replies, verdicts, strict=True)
        if kind != "right"
    ]
    return figures, replies


def evaluate_chats(ask: Callable[[Prompts], Any], chats: Sequence[Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """Measures the last turn of chats of the same length, with the model's own replies before it."""
    histories: list[Messages] = [[] for _ in chats]
    figures: dict[str, Any] = {}
    for turn in zip(*chats, strict=True):
        for history, (question, _) in zip(histories, turn, strict=True):
            history.append({"role": "user", "content": question})
        figures, replies = ask([(history, expected) for history, (_, expected) in zip(histories, turn, strict=True)])
        for history, reply in zip(histories, replies, strict=True):
            history.append({"role": "assistant", "content": reply})
    return figures


def verdict(reply: str, expected: str) -> str:
    """Returns right, garbled, made up or refused."""
    if reply_reward([reply], [expected]) == [1.0]:
        return "right"
    if not is_whole(reply, SMALL_TALK):
        return "garbled"
    return "made up" if "The answer is" in reply else "refused"


def asked(rows: Any) -> Prompts:
    return [([{"role": "user", "content": text}], expected) for text, expected in rows]


def drawn(num_prompts: int, seed: int, **draws: Any) -> Prompts:
    dataset = conversation_dataset(num_prompts, seed, "test", **draws)
    return list(zip(dataset["prompt"], dataset["answer"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="Name or folder, decoded by its own recipe.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num_prompts", type=int, default=200, help="Held-out conversations of each group.")
    args = parser.parse_args()
    folder, num = path_of(args.model), args.num_prompts
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    ask = partial(evaluate, model, AutoTokenizer.from_pretrained(folder))
    short = drawn(num, 1, steps=range(1, 4))
    groups: dict[str, tuple[Prompts, int]] = {
        "everyday problems": (asked(TYPED["everyday"]), SHORT),
        "out of reach": (asked(TYPED["out_of_reach"]), SHORT),
        "other sentences": (asked([text, OTHER] for text in TYPED["other"]), SHORT),
        "visitors": (asked(TYPED["visitors"]), SHORT),
        "blind": (asked(TYPED["blind"]), SHORT),
        "1 to 3 steps": (short, SHORT),
        "4 to 8 steps": (drawn(num, 2, steps=range(4, MAX_STEPS + 1)), LONG),
        "follow-ups": (drawn(num, 3, kind="follow-up"), SHORT),
        **{f"{steps} steps": (drawn(num // 4, 4, steps=[steps]), LONG) for steps in range(1, MAX_STEPS + 1)},
    }
    report = {name: ask(*group)[0] for name, group in groups.items()}
    in_turn = [(messages[-1]["content"], expected) for messages, expected in short]
    report["third problem of a chat"] = evaluate_chats(ask, [*zip(*[iter(in_turn)] * 3, strict=False)])
    report["typed follow-ups"] = evaluate_chats(ask, TYPED["follow_ups"])
    report["blind follow-ups"] = evaluate_chats(ask, TYPED["blind_follow_ups"])
    write_json({"abilities": report, "environment": describe_environment()}, args.output)
    for name, figures in report.items():
        print(name, {kind: value for kind, value in figures.items() if kind != "wrong"})


if __name__ == "__main__":
    main()
