# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""docs/migration.md names settings that exist. (test_readme.py parses its commands.)"""

import dataclasses
import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from hf_dparallel import CertaintyForcingConfig, DiffusionGenerationConfig, DiffusionGenerationOutput
from hf_dparallel_cli import program
from hf_dparallel_cli.training import ARGUMENTS
from hf_dparallel_rules.settings import suggest

from .helpers import make_llada


PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """The rows of the table under a heading: our name, some with a value, and the other cells."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `([^`]+)` \|(.*)", section, flags=re.MULTILINE)


def settings(heading: str) -> list[str]:
    """The names, some with a value, in the first column of the table under a heading."""
    return [setting for setting, _ in rows(heading)]


def test_settings_of_decoding_exist():
    known = DiffusionGenerationConfig()
    outputs = {field.name for field in dataclasses.fields(DiffusionGenerationOutput)}
    found = settings("Decoding")
    assert len(found) >= 15
    for setting in found:
        if "=" in setting:
            DiffusionGenerationConfig(**eval(f"dict({setting})"))
        else:
            assert hasattr(known, setting) or setting in outputs, setting


def test_names_of_others_are_answered_with_ours():
    flags, ours = {param.name for param in program.commands["generate"].params}, defaultdict(set)
    for setting, cells in rows("Decoding"):
        for name in re.findall(r"`(\w+)[`,]", cells):
            if setting.partition("=")[0] in flags and name not in flags and not name.startswith("generate_with"):
                ours[name].add(setting.partition("=")[0])
    assert len(ours) >= 10
    for name, settings_of_ours in ours.items():
        assert settings_of_ours & set(re.findall(r"`(\w+)`", suggest(name, flags))), name


def test_settings_of_training_exist():
    names = {field.name for kind in ARGUMENTS for field in dataclasses.fields(kind)}
    found = settings("Training")
    assert len(found) >= 10
    for setting in found:
        name = setting.partition("=")[0]
        assert name in names, setting
        if "=" in setting:
            CertaintyForcingConfig("student", use_cpu=True, **eval(f"dict({setting})"))


def official_generate(model, prompt, steps, gen_length, block_length, threshold, mask_id):
    """The official dParallel sampler in a few lines: entropies in nats, at least one token in each pass."""
    canvas = torch.cat([prompt, torch.full((1, gen_length), mask_id)], dim=1)
    nfe = 0
    for start in range(prompt.shape[1], canvas.shape[1], block_length):
        block = slice(start, start + block_length)
        quota = gen_length // steps
        while (canvas[:, block] == mask_id).any():
            nfe += 1
            probabilities = model(canvas).logits[0, block].double().softmax(-1)
            masked = canvas[0, block] == mask_id
            if threshold is None:
                certainty = torch.where(masked, probabilities.amax(-1), -torch.inf)
                commit = torch.zeros_like(masked)
                commit[certainty.topk(min(quota, int(masked.sum()))).indices] = True
            else:
                entropy = torch.where(masked, torch.special.entr(probabilities).sum(-1), torch.inf)
                commit = (entropy <= threshold) & masked
                commit[entropy.argmin()] = True
            canvas[0, block] = torch.where(commit, probabilities.argmax(-1), canvas[0, block])
    return canvas, nfe


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"steps": 16, "threshold": 0.5}, {"entropy_threshold": 0.5}),
        ({"steps": 16, "threshold": 2.0}, {"entropy_threshold": 2.0}),
        ({"steps": 8, "threshold": None}, {"denoising_steps": 8}),
    ],
)
@torch.no_grad()
def test_their_arguments_and_ours_give_the_same_tokens(theirs, ours):
    model = make_llada()
    prompt = torch.tensor([[5, 6, 7]])
    canvas, nfe = official_generate(model, prompt, gen_length=16, block_length=8, mask_id=63, **theirs)
    settings = {"max_new_tokens": 16, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}
    out = model.generate(prompt, **settings, **ours)
    assert out.sequences.equal(canvas) and out.nfe.tolist() == [nfe]
