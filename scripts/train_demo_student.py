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
from peft import LoraConfig
from transformers import AutoModelForMaskedLM, AutoTokenizer, set_seed

from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DiffusionGenerationConfig,
    filter_trajectories,
    generate_trajectories,
)
from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.conversations import generate_conversations
from hf_dparallel.demo.pipeline import BLOCK_LENGTH, TRAJECTORY_RECIPE
from hf_dparallel.demo.testbed import as_dataset, reply_reward


KINDS = {"problem": 0.6, "follow-up": 0.14, "later": 0.08, "sum": 0.04, "small talk": 0.05, "other": 0.09}
# Half of the problems are short.
STEPS = [*(1, 2, 3) * 5, *(4, 5, 6, 7, 8) * 3]
MAX_NEW_TOKENS = 160
STUDENT_RECIPE = {"entropy_threshold": 0.5}


def make_trajectories(args: argparse.Namespace) -> Dataset:
    """The teacher's own right replies. A run that was stopped goes on where it was."""
    teacher = AutoModelForMaskedLM.from_pretrained(args.teacher, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    conversations = generate_conversations(args.seed, "train", KINDS, STEPS)
    prompts = as_dataset(islice(conversations, args.num_trajectories))
    recipe = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **TRAJECTORY_RECIPE)
    rows = generate_trajectories(
        teacher, tokenizer, prompts, recipe, batch_size=16, output_dir=args.output_dir / "trajectories"
    )
    kept = filter_trajectories(rows, tokenizer, reply_reward)
    print(f"Kept {len(kept)} of {len(rows)}.")
    return kept


def distil(trajectories: Dataset, args: argparse.Namespace) -> None:
    """Trains the adapter, and writes it with its recipe."""
    model = AutoModelForMaskedLM.from_pretrained(args.teacher, dtype=torch.float32)
    config = CertaintyForcingConfig(
        str(args.output_dir / "checkpoints"),
        max_steps=args.num_train_steps,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        lr_scheduler_type="linear",
        warmup_steps=10,
        block_length=BLOCK_LENGTH,
        mask_ratio="random",
        max_length=max(map(len, trajectories["prompt_ids"])) + MAX_NEW_TOKENS,
        bf16=False,
        activation_checkpointing=False,
        use_cpu=True,
        save_strategy="no",
        seed=args.seed,
    )
    trainer = CertaintyForcingTrainer(
        model,
        config,
        train_dataset=trajectories,
        processing_class=AutoTokenizer.from_pretrained(args.teacher),
        peft_config=LoraConfig(r=32, lora_alpha=64),
    )
    trainer.train()
    folder = args.output_dir / "adapter"
    trainer.save_model(str(folder))
    recipe = DiffusionGenerationConfig(
        **model.generation_config.to_diff_dict() | {"max_new_tokens": MAX_NEW_TOKENS} | STUDENT_RECIPE
    )
    recipe.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, default=TEACHER)
    parser.add_argument("--num_trajectories", type=int, default=1536)
    parser.add_argument("--num_train_steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    distil(make_trajectories(args), args)


if __name__ == "__main__":
    main()
