# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Compares attentions and lengths of blocks by a short training each, of the model that real_model.py converts.

    python benchmarks/real_trials.py --folder runs/counting --output benchmarks/results/real_trials.json

All take the same rows from the same weights. A *causal past* is that of Nemotron-Labs-Diffusion: decided tokens are
causal, as in the Llama, and the open block sees them and itself.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from datasets import load_dataset
from make_a_teacher import EXAMPLE, run
from real_model import BATCH_SIZE, FAST, MAX_NEW_TOKENS, SMALL, TASKS
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import (
    DiffusionGenerationConfig,
    NemotronDiffusionConfig,
    NemotronDiffusionForMaskedDiffusion,
    generate_trajectories,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import write_json


class Trial(NamedTuple):
    attention: str
    block_length: int
    shift_logits: bool = False
    # Whether an adapter is trained, not the whole model.
    use_peft: bool = False


TRIALS = [
    Trial("block_causal", 4),
    Trial("causal_past", 4),
    Trial("block_causal", 4, shift_logits=True),
    Trial("block_causal", 4, shift_logits=True, use_peft=True),
    Trial("block_causal", 32),
]
NOT_COPIED = ("architectures", "block_length", "model_type", "rope_parameters", "shift_logits", "transformers_version")


def make_start(start: Path, folder: Path, trial: Trial) -> None:
    """Writes the converted Llama with another attention."""
    model = AutoModelForMaskedLM.from_pretrained(start, dtype=torch.float32)
    if trial.attention == "causal_past":
        shared = {name: value for name, value in model.config.to_diff_dict().items() if name not in NOT_COPIED}
        # Ministral 3 also scales queries far from the start; not here.
        rope = model.config.rope_parameters | {"llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 8192}
        config = NemotronDiffusionConfig(**shared, block_size=trial.block_length, rope_parameters=rope)
        causal = NemotronDiffusionForMaskedDiffusion(config)
        causal.load_state_dict(model.state_dict())
        model = causal
    model.config.block_length = trial.block_length
    model.config.shift_logits = trial.shift_logits
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(start).save_pretrained(folder)


def share_of_right_sums(texts: Sequence[str]) -> float:
    """Returns how many of all sums that the texts write are right, whether or not the problem asks for them."""
    sums = [each for text in texts for each in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", text)]
    return fmean(int(start) + int(sign + change) == int(total) for start, sign, change, total in sums) if sums else 0.0


def try_out(args: argparse.Namespace, trial: Trial) -> dict[str, Any]:
    """Trains a copy, and decodes held-out problems whose answer is a number."""
    task = TASKS["counting"]
    marks = "-shifted" * trial.shift_logits + "-adapter" * trial.use_peft
    folder = args.folder / f"{trial.attention}-{trial.block_length}{marks}"
    if not (folder / "start").exists():
        make_start(args.folder / "start", folder / "start", trial)
    run(
        folder / "teacher" / ("adapter_model.safetensors" if trial.use_peft else "model.safetensors"),
        *("train", "--config", str(EXAMPLE / "block_causal.yaml"), "--model", str(folder / "start"), *SMALL),
        *("--max_length", str(task.max_length), "--dataset_name", str(args.folder / "rows" / "grouped.jsonl")),
        *("--output_dir", str(folder / "teacher"), "--max_steps", str(args.num_steps)),
        *("--learning_rate", "5e-4" if trial.use_peft else "3e-4", "--train_sampling_strategy", "sequential"),
        *("--use_peft", str(trial.use_peft), "--lora_r", "16", "--lora_alpha", "32"),
    )
    model = AutoModelForMaskedLM.from_pretrained(folder / "teacher", dtype=FAST).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    problems = load_dataset("json", data_files=str(args.folder / "rows" / "test.jsonl"), split="train")
    problems = problems.filter(lambda row: row["answer"].isdigit()).select(range(args.num_problems))
    lengths = {"max_new_tokens": MAX_NEW_TOKENS, "block_length": trial.block_length, "block_origin": "answer"}
    found: dict[str, Any] = trial._asdict()
    for title, rule in (("one token", {"denoising_steps": MAX_NEW_TOKENS}), ("0.9", {"confidence_threshold": 0.9})):
        settings = DiffusionGenerationConfig(**lengths, **rule)
        rows = generate_trajectories(model, tokenizer, problems, settings, batch_size=BATCH_SIZE)
        texts = tokenizer.batch_decode(rows["completion_ids"][:], skip_special_tokens=True)
        found[title] = {
            "accuracy": fmean(task.reward(texts, problems["answer"][:])),
            "sums": share_of_right_sums(texts),
            "nfe": fmean(rows["nfe"][:]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="That of real_model.py, with its start and rows.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num_steps", type=int, default=60)
    parser.add_argument("--num_problems", type=int, default=64)
    args = parser.parse_args()
    sys.path.insert(0, str(EXAMPLE))
    report: dict[str, Any] = {"environment": describe_environment(), "num_steps": args.num_steps, "trials": []}
    for trial in TRIALS:
        report["trials"].append(try_out(args, trial))
        write_json(report, args.output)
        print(report["trials"][-1], flush=True)


if __name__ == "__main__":
    main()
