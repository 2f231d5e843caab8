# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trains two adapters on one base model, switches between them, and merges one into the weights.

    python examples/adapters.py --trajectories trajectories/filtered.parquet --output_dir runs/adapters
    python examples/adapters.py --model Dream-org/Dream-v0-Instruct-7B --trajectories dream.parquet \
        --output_dir runs/dream-adapters
    python examples/adapters.py --model demo --trajectories trajectories/filtered.parquet --output_dir runs/demo \
        --max_length 128 --max_new_tokens 64

`demo` is a tiny model that comes with the package; `hf-dparallel trajectories demo` makes its trajectories.
One adapter is trained with the certainty loss, the other without, which is the ablation of the paper's Table 3. The
file is what `hf-dparallel trajectories` or examples/convert_trajectories.py writes. examples/distill.py has the other
arguments of the training; here are only those that a first try needs.
"""

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer
from hf_dparallel.demo import path_of


CERTAINTY_WEIGHTS = {"dparallel": 2.0, "consistency_only": 0.0}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="GSAI-ML/LLaDA-8B-Instruct", help="on the Hub, a folder, or demo")
    parser.add_argument("--trajectories", required=True, help="a .parquet file")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--num_train_epochs", type=float, default=1.0)
    parser.add_argument("--max_length", type=int, default=384, help="of prompt and answer; longer rows are left out")
    parser.add_argument("--max_new_tokens", type=int, default=256, help="the most tokens of an answer")
    parser.add_argument("--lora_r", type=int, default=32)
    return parser.parse_args()


def train(name: str, trajectories: Dataset, tokenizer, args: argparse.Namespace) -> str:
    """Trains an adapter and returns its folder. The base model is loaded anew: the trainer puts the adapter in it."""
    folder = str(Path(args.output_dir, name))
    settings = CertaintyForcingConfig(
        output_dir=folder,
        num_train_epochs=args.num_train_epochs,
        max_length=args.max_length,
        certainty_weight=CERTAINTY_WEIGHTS[name],
        report_to="none",
    )
    trainer = CertaintyForcingTrainer(
        AutoModelForMaskedLM.from_pretrained(args.model, dtype="auto", device_map="auto"),
        settings,
        train_dataset=trajectories,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=args.lora_r, lora_alpha=args.lora_r),
    )
    trainer.train()
    trainer.save_model()
    return folder


def count_passes(model, row: dict, max_new_tokens: int) -> int:
    """Counts the forward passes of the answer to a row's prompt."""
    prompt = torch.tensor([row["prompt_ids"]], device=model.device)
    out = model.generate(prompt, max_new_tokens=max_new_tokens, entropy_threshold=0.5, return_dict_in_generate=True)
    return out.nfe.item()


def main() -> None:
    args = parse_args()
    args.model = path_of(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    trajectories = Dataset.from_parquet(args.trajectories)
    folders = {name: train(name, trajectories, tokenizer, args) for name in CERTAINTY_WEIGHTS}

    # One base model in memory, two adapters, one of which is active at a time.
    model = AutoModelForMaskedLM.from_pretrained(args.model, dtype="auto", device_map="auto").eval()
    print(f"no adapter: {count_passes(model, trajectories[0], args.max_new_tokens)} forward passes")
    for name, folder in folders.items():
        model.load_adapter(folder, adapter_name=name)
    for name in folders:
        model.set_adapter(name)
        print(f"{name}: {count_passes(model, trajectories[0], args.max_new_tokens)} forward passes")

    # Merged, the student is a checkpoint like any other, under the published names of the weights.
    merged = AutoModelForMaskedLM.from_pretrained(args.model, dtype="auto", device_map="auto")
    merged = PeftModel.from_pretrained(merged, folders["dparallel"]).merge_and_unload()
    merged.save_pretrained(Path(args.output_dir, "merged"))
    tokenizer.save_pretrained(Path(args.output_dir, "merged"))
    student = AutoModelForMaskedLM.from_pretrained(Path(args.output_dir, "merged"), dtype="auto", device_map="auto")
    print(f"merged: {count_passes(student.eval(), trajectories[0], args.max_new_tokens)} forward passes")


if __name__ == "__main__":
    main()
