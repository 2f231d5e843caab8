# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Whether a block-causal model learns faster from rows of every block of an answer than from rows of one block.

    python benchmarks/block_rows.py --teacher block_teacher --trajectories block_seeds/seed-0/trajectories.parquet \
        --folder block_rows --output benchmarks/results/block_rows.json

Students of one teacher are distilled as in the demo, from the same trajectories, in different numbers of steps, with
both kinds of rows. What is in `folder` already is not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_dparallel import DataCollatorForSemiAutoregressiveMasking
from hf_dparallel.demo.pipeline import (
    BLOCK_LENGTH,
    MAX_NEW_TOKENS,
    DemoConfig,
    distil,
    evaluate_settings,
    load_teacher,
    make_answerer,
    word_problem_dataset,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


class OneBlockCollator(DataCollatorForSemiAutoregressiveMasking):
    """Makes rows without a clean copy, each of which teaches one of the blocks that a block-causal model decodes."""

    def _draw_active_spans(
        self, prompt_length: int, completion_length: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        first, end = prompt_length // self.block_length, -(-(prompt_length + completion_length) // self.block_length)
        start = int(torch.randint(first, end, (), generator=generator)) * self.block_length
        return [(max(start, prompt_length), start + self.block_length)]


COLLATORS = {"every block": DataCollatorForSemiAutoregressiveMasking, "one block": OneBlockCollator}


def make_collator(
    rows: str, trajectories: Dataset, tokenizer: PreTrainedTokenizerBase, seed: int
) -> DataCollatorForSemiAutoregressiveMasking:
    """Makes the collator for one kind of rows, with the demo's settings."""
    longest = max(map(len, trajectories["prompt_ids"])) + MAX_NEW_TOKENS
    return COLLATORS[rows](
        mask_token_id=tokenizer.mask_token_id,
        eos_token_id=tokenizer.eos_token_id,
        block_length=BLOCK_LENGTH,
        mask_ratio="random",
        # Whole blocks.
        max_length=-(-longest // BLOCK_LENGTH) * BLOCK_LENGTH,
        seed=seed,
        attention="block_causal" if rows == "every block" else "full",
    )


def measure(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: DemoConfig) -> dict[str, float]:
    """Measures passes and accuracy on held-out problems at the paper's entropy threshold."""
    problems = word_problem_dataset(config.num_problems, config.seed + 2, split="test")
    answerer = make_answerer(model, tokenizer, config)
    (metrics,) = evaluate_settings(answerer, problems, [{"entropy_threshold": 0.5}])
    return {"passes": round(metrics["nfe"], 2), "accuracy": round(metrics["accuracy"], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", required=True, help="folder of a block-causal teacher")
    parser.add_argument("--trajectories", required=True, help="its trajectories, as `hf-dparallel demo` writes them")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and figures")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--rows", nargs="+", default=list(COLLATORS), choices=list(COLLATORS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_train_steps", type=int, nargs="+", default=[35, 70, 140])
    parser.add_argument("--batch_size", type=int, default=16, help="sequences of a step")
    parser.add_argument("--num_problems", type=int, default=150)
    args = parser.parse_args()
    trajectories = Dataset.from_parquet(args.trajectories)
    tokenizer = load_teacher(torch.float32, args.teacher)[1]
    figures: list[dict[str, Any]] = []
    for num_steps in args.num_train_steps:
        for rows in args.rows:
            folder = args.folder / f"{rows.replace(' ', '-')}-{num_steps}"
            config = DemoConfig(
                str(folder), args.teacher, args.seed, num_train_steps=num_steps, num_problems=args.num_problems
            )
            path = folder / "figures.json"
            if not path.exists():
                set_seed(args.seed)
                collator = make_collator(rows, trajectories, tokenizer, args.seed)
                batch = {"data_collator": collator, "per_device_train_batch_size": args.batch_size}
                student = distil(trajectories, tokenizer, config, torch.float32, **batch)
                write_json(measure(student, tokenizer, config), path)
            figures.append({"rows": rows, "steps": num_steps, **json.loads(path.read_text())})
            print(figures[-1], flush=True)
    print(markdown_table(list(figures[0]), [list(row.values()) for row in figures]))
    if args.output is not None:
        settings = {name: str(value) for name, value in vars(args).items()}
        write_json({"rows": figures, "settings": settings, "environment": describe_environment()}, args.output)


if __name__ == "__main__":
    main()
