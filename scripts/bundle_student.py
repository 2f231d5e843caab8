# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Puts an adapter of the bundled teacher into the package, as the bundled student.

    hf-dparallel demo --output_dir demo_output
    python scripts/bundle_student.py demo_output/adapter

The folder of the student becomes a complete checkpoint: `from_pretrained` finds in it the adapter, in bf16, with its
recipe, and an index that names the weights of the teacher, which are in a folder of their own inside. All weights are
stored in bf16 and loaded in float32, which every CPU is fast in, and in which figures do not depend on the batch.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_SAFE_WEIGHTS_NAME,
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
)

from hf_dparallel.demo import STUDENT, TEACHER
from hf_dparallel.reports import read_json, write_json


def bundle(adapter: Path, teacher: Path, student: Path) -> None:
    """Writes the folder of the student; of the teacher in it, the type that it is loaded in and its special tokens."""
    model_config = read_json(teacher / CONFIG_NAME) | {"dtype": "float32"}
    for folder in (teacher, student):
        write_json(model_config, folder / CONFIG_NAME)
    # Else the Trainer says that it has set them.
    tokens = {name: model_config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(read_json(teacher / GENERATION_CONFIG_NAME) | tokens, teacher / GENERATION_CONFIG_NAME)
    weights = {
        name: weight.to(torch.bfloat16) for name, weight in load_file(adapter / ADAPTER_SAFE_WEIGHTS_NAME).items()
    }
    save_file(weights, student / ADAPTER_SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
    config = read_json(adapter / ADAPTER_CONFIG_NAME)
    write_json(config | {"base_model_name_or_path": "demo"}, student / ADAPTER_CONFIG_NAME)
    shutil.copy(adapter / GENERATION_CONFIG_NAME, student)
    for path in (*teacher.glob("tokenizer*.json"), *teacher.glob("*.jinja")):
        shutil.copy(path, student)
    location = (teacher / SAFE_WEIGHTS_NAME).relative_to(student).as_posix()
    names = sorted(load_file(teacher / SAFE_WEIGHTS_NAME))
    write_json({"metadata": {}, "weight_map": dict.fromkeys(names, location)}, student / SAFE_WEIGHTS_INDEX_NAME)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, help="folder of the adapter")
    bundle(parser.parse_args().adapter, Path(TEACHER), Path(STUDENT))
