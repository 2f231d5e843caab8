# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Distils the bundled teacher into the bundled student: an adapter for all kinds of its conversations.

    python scripts/train_demo_student.py --output_dir demo_student --teacher counting_teacher/model
    python scripts/train_demo_student.py --bundle demo_student/adapter      # puts it into the package

It is the demo's distillation on other prompts: problems of 1 to 8 steps, follow-up questions, sums, small talk and
what is to be refused. The training is in bf16.

The folder of the bundled student is a complete checkpoint: `from_pretrained` finds in it the adapter with its recipe,
and an index that names the weights of the teacher, which are in a folder of their own inside. All weights are stored
in bf16 and loaded in float32, which every CPU is fast in, and in which figures do not depend on the batch.
"""

import argparse
import shutil
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from teacher.conversations import generate_conversations
from teacher.testbed import as_dataset, reply_reward
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_dparallel import DiffusionGenerationConfig, filter_trajectories, generate_trajectories
from hf_dparallel.demo import STUDENT, TEACHER
from hf_dparallel.demo.pipeline import DemoConfig, distil, load_teacher
from hf_dparallel.reports import read_json, write_json


KINDS = {"problem": 0.49, "follow-up": 0.13, "chat": 0.2, "sum": 0.08, "small talk": 0.05, "other": 0.17}
# Half of the problems are short.
STEPS = [*(1, 2, 3) * 5, *(4, 5, 6, 7, 8) * 3]
MAX_NEW_TOKENS = 160
BLOCK_LENGTH = 32
TRAJECTORY_RECIPE = {"confidence_threshold": 0.8}
# Of the rows of the training; few are longer, and are left out.
MAX_LENGTH = 256
# At the demo's, which is twice as high, it lost four of a hundred everyday problems that its teacher solves.
LEARNING_RATE = 1e-3
# At 0.3 it takes a tenth fewer passes, and loses two of a hundred long problems. Verification takes back tokens that
# contradict each other.
STUDENT_RECIPE = {"entropy_threshold": 0.15, "revocation_threshold": 0.5}


def make_trajectories(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: DemoConfig) -> Dataset:
    """Returns the teacher's right replies. A stopped run goes on where it was."""
    conversations = generate_conversations(config.seed, "train", KINDS, STEPS)
    prompts = as_dataset(islice(conversations, config.num_trajectories))
    recipe = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **TRAJECTORY_RECIPE)
    folder = Path(config.output_dir) / "trajectories"
    rows = generate_trajectories(teacher, tokenizer, prompts, recipe, config.batch_size, folder)
    kept = filter_trajectories(rows, tokenizer, reply_reward)
    print(f"Kept {len(kept)} of {len(rows)}.")
    return kept


def bundle(adapter: Path, teacher: Path, student: Path) -> None:
    """Writes the folder of the student; of the teacher in it, the type that it is loaded in and its special tokens."""
    model_config = read_json(teacher / "config.json") | {"dtype": "float32"}
    for folder in (teacher, student):
        write_json(model_config, folder / "config.json")
    # Else the Trainer says that it has set them.
    tokens = {name: model_config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(read_json(teacher / "generation_config.json") | tokens, teacher / "generation_config.json")
    weights = load_file(adapter / "adapter_model.safetensors")
    weights = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(weights, student / "adapter_model.safetensors", metadata={"format": "pt"})
    config = read_json(adapter / "adapter_config.json")
    write_json(config | {"base_model_name_or_path": "demo"}, student / "adapter_config.json")
    shutil.copy(adapter / "generation_config.json", student)
    for path in (*teacher.glob("tokenizer*.json"), *teacher.glob("*.jinja")):
        shutil.copy(path, student)
    location = (teacher / "model.safetensors").relative_to(student).as_posix()
    names = sorted(load_file(teacher / "model.safetensors"))
    write_json(
        {"metadata": {}, "weight_map": dict.fromkeys(names, location)}, student / "model.safetensors.index.json"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output_dir", type=Path, help="folder for trajectories and adapter")
    what.add_argument("--bundle", type=Path, help="folder of an adapter that becomes the bundled student")
    parser.add_argument("--teacher", type=Path, default=TEACHER)
    parser.add_argument("--num_trajectories", type=int, default=3072)
    parser.add_argument("--num_train_steps", type=int, default=450)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.bundle:
        bundle(args.bundle, Path(TEACHER), Path(STUDENT))
        return
    set_seed(args.seed)
    config = DemoConfig(
        output_dir=str(args.output_dir),
        teacher=str(args.teacher),
        seed=args.seed,
        num_trajectories=args.num_trajectories,
        num_train_steps=args.num_train_steps,
    )
    teacher, tokenizer = load_teacher(torch.float32, args.teacher)
    trajectories = make_trajectories(teacher, tokenizer, config)
    settings = {"block_length": BLOCK_LENGTH, "max_length": MAX_LENGTH, "learning_rate": LEARNING_RATE}
    distil(trajectories, tokenizer, config, torch.bfloat16, **settings)
    recipe = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **STUDENT_RECIPE)
    recipe.save_pretrained(args.output_dir / "adapter")


if __name__ == "__main__":
    main()
