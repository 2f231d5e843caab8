# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the bundled model can do, and how tokens per pass grow with the length of the answer.

    python benchmarks/counting_teacher.py --output counting.json
    python benchmarks/counting_teacher.py --model demo-student --thresholds --output counting_student.json

Held-out problems of 1 to 3 and of 4 to 8 steps, follow-up questions, and what people typed: sentences of other kinds,
problems of one step, and whole chats (`counting_prompts.json`), in which the model's own replies are the history.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo import path_of
from hf_dparallel.demo.pipeline import BLOCK_LENGTH
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.decoding import evaluate_decoding
from hf_dparallel.generation.configuration import recipe_of


# The language of the bundled teacher is not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from teacher.conversations import MAX_STEPS, REFUSAL
from teacher.testbed import conversation_dataset, reply_reward


# The longest replies to problems of up to three steps have 59 tokens, those of eight 137.
SHORT, LONG = 64, 160
TYPED = json.loads(Path(__file__).with_name("counting_prompts.json").read_text())
FIGURES = ("accuracy", "nfe", "tokens_per_forward", "num_prompts")


class Bench:
    """A model with its tokenizer and the rule that it decodes by."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]):
        self.model, self.tokenizer, self.settings = model, tokenizer, settings

    def evaluate(self, dataset: Dataset, max_new_tokens: int) -> dict[str, float]:
        """Accuracy and passes."""
        metrics = evaluate_decoding(self.model, self.tokenizer, dataset, reply_reward, self.recipe(max_new_tokens))
        return {name: metrics[name] for name in FIGURES}

    def recipe(self, max_new_tokens: int) -> DiffusionGenerationConfig:
        lengths = {"max_new_tokens": max_new_tokens, "block_length": BLOCK_LENGTH}
        return recipe_of(self.model).updated(**lengths, **self.settings)

    def abilities(self, num_prompts: int) -> dict[str, dict[str, float]]:
        """The figures that the bundled model is to reach."""
        other = [[{"role": "user", "content": text}] for text in TYPED["other"]]
        questions, answers = zip(*TYPED["one_step"], strict=True)
        one_step = [[{"role": "user", "content": text}] for text in questions]
        groups = {
            "1 to 3 steps": (conversation_dataset(num_prompts, 1, "test", steps=range(1, 4)), SHORT),
            "4 to 8 steps": (conversation_dataset(num_prompts, 2, "test", steps=range(4, MAX_STEPS + 1)), LONG),
            "follow-ups": (conversation_dataset(num_prompts, 3, "test", "follow-up"), SHORT),
            "other sentences": (Dataset.from_dict({"prompt": other, "answer": [REFUSAL] * len(other)}), SHORT),
            "typed problems": (Dataset.from_dict({"prompt": one_step, "answer": answers}), SHORT),
        }
        return {name: self.evaluate(dataset, max_new_tokens) for name, (dataset, max_new_tokens) in groups.items()}

    def chats(self) -> list[list[dict[str, str]]]:
        """Every turn of every chat: what was asked, what the reply should be, and what it was."""
        return [self._chat(turns) for turns in TYPED["chats"]]

    def growth(self, num_prompts: int) -> dict[str, dict[str, float]]:
        """Accuracy, passes and tokens per pass by the number of steps."""
        return {
            str(steps): self.evaluate(conversation_dataset(num_prompts, 4, "test", steps=[steps]), LONG)
            for steps in range(1, MAX_STEPS + 1)
        }

    def _chat(self, turns: list[list[str]]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        replies = []
        for question, expected in turns:
            messages.append({"role": "user", "content": question})
            inputs = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            out = self.model.generate(**inputs, generation_config=self.recipe(SHORT))
            ids = out[0, inputs["input_ids"].shape[1] :]
            reply = self.tokenizer.decode(ids, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": reply})
            (right,) = reply_reward([reply], [expected])
            replies.append({"question": question, "expected": expected, "reply": reply, "right": right == 1.0})
        return replies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="Name or folder, decoded by its own recipe.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num_prompts", type=int, default=200, help="Held-out conversations of each group.")
    thresholds = "Of confidence, for the growth with the number of steps. None: the model's own recipe."
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.9], help=thresholds)
    args = parser.parse_args()
    folder = path_of(args.model)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = Bench(model, tokenizer, {})
    growing = {
        f"confidence_threshold {value}": Bench(model, tokenizer, {"confidence_threshold": value})
        for value in args.thresholds
    } or {"its own recipe": own}
    report = {
        "abilities": own.abilities(args.num_prompts),
        "chats": own.chats(),
        "growth": {title: bench.growth(args.num_prompts // 4) for title, bench in growing.items()},
        "environment": describe_environment(),
    }
    args.output.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(report["abilities"], indent=2))


if __name__ == "__main__":
    main()
