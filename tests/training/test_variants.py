# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A variant of the training is one file: without it everything else works, and its settings are unknown."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hf_dparallel


VARIANTS = {
    "on_policy": ["on_policy_ratio"],
    "overconfidence": ["overconfidence_weight"],
    "schedules": ["initial_block_length", "initial_mask_ratio"],
    "soft_targets": ["near_steps", "teacher_temperature"],
}

_TRAIN = """
import sys
from datasets import Dataset
from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer, LLaDAConfig, LLaDAForMaskedDiffusion
from hf_dparallel.generation.configuration import recipe_of

folder, gone, *others = sys.argv[1:]
sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "mlp_hidden_size": 16, "vocab_size": 16}
model = LLaDAForMaskedDiffusion(LLaDAConfig(**sizes, mask_token_id=15, eos_token_id=1, pad_token_id=1))
args = CertaintyForcingConfig(folder, max_steps=1, max_length=16, block_length=4, use_cpu=True, report_to="none")
rows = Dataset.from_dict({"prompt_ids": [[2, 3]] * 2, "completion_ids": [[4, 5, 1]] * 2})
trainer = CertaintyForcingTrainer(model, args, rows)
trainer.train()
trainer.save_model()
assert recipe_of(LLaDAForMaskedDiffusion.from_pretrained(folder)).block_length == 4
for name in gone.split(","):
    assert not hasattr(args, name), name
    try:
        CertaintyForcingConfig(folder, **{name: 1})
    except TypeError as error:
        assert name in str(error)
    else:
        raise AssertionError(f"{name} is known")
assert all(hasattr(args, name) for name in others)
"""


def test_every_file_is_listed():
    folder = Path(hf_dparallel.__file__).parent / "training" / "variants"
    assert {path.stem for path in folder.glob("*.py")} == {"__init__", *VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_can_be_deleted(tmp_path, variant):
    package = tmp_path / "hf_dparallel"
    shutil.copytree(Path(hf_dparallel.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "cli"))
    (package / "training" / "variants" / f"{variant}.py").unlink()
    others = [name for other, names in VARIANTS.items() if other != variant for name in names]
    arguments = [tmp_path / "out", ",".join(VARIANTS[variant]), *others]
    result = subprocess.run(
        [sys.executable, "-c", _TRAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr[-2000:]
