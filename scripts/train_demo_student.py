# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Distils the bundled teacher into the bundled student: an adapter for all kinds of its conversations.

    python scripts/train_demo_student.py --output_dir demo_student
    python scripts/bundle_student.py demo_student/adapter

It is the demo's distillation on other prompts: problems of 1 to 8 steps, follow-up questions, sums, small talk and
what is to be refused.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from transformers import set_seed

from hf_dparallel import DiffusionGenerationConfig, filter_trajectories, generate_trajectories
from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.conversations import generate_conversations
from hf_dparallel.demo.pipeline import BLOCK_LENGTH, TRAJECTORY_RECIPE, DemoConfig, distil, load_teacher
from hf_dparallel.demo.testbed import as_dataset, reply_reward


KINDS = {"problem": 0.6, "follow-up": 0.14, "later": 0.08, "sum": 0.04, "small talk": 0.05, "other": 0.09}
# Half of the problems are short.
STEPS = [*(1, 2, 3) * 5, *(4, 5, 6, 7, 8) * 3]
MAX_NEW_TOKENS = 160
STUDENT_RECIPE = {"entropy_threshold": 0.5}


def make_trajectories(args: argparse.Namespace) -> Dataset:
    """The teacher's own right replies. A run that was stopped goes on where it was."""
    teacher, tokenizer = load_teacher(torch.float32, args.teacher)
    conversations = generate_conversations(args.seed, "train", KINDS, STEPS)
    prompts = as_dataset(islice(conversations, args.num_trajectories))
    recipe = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **TRAJECTORY_RECIPE)
    rows = generate_trajectories(
        teacher, tokenizer, prompts, recipe, batch_size=16, output_dir=args.output_dir / "trajectories"
    )
    kept = filter_trajectories(rows, tokenizer, reply_reward)
    print(f"Kept {len(kept)} of {len(rows)}.")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, default=TEACHER)
    parser.add_argument("--num_trajectories", type=int, default=1536)
    parser.add_argument("--num_train_steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    trajectories = make_trajectories(args)
    teacher, tokenizer = load_teacher(torch.float32, args.teacher)
    config = DemoConfig(str(args.output_dir), str(args.teacher), seed=args.seed, num_train_steps=args.num_train_steps)
    longest_prompt = max(map(len, trajectories["prompt_ids"]))
    distil(trajectories, tokenizer, config, torch.float32, max_length=longest_prompt + MAX_NEW_TOKENS)
    settings = teacher.generation_config.to_diff_dict() | {"max_new_tokens": MAX_NEW_TOKENS} | STUDENT_RECIPE
    DiffusionGenerationConfig(**settings).save_pretrained(args.output_dir / "adapter")


if __name__ == "__main__":
    main()
