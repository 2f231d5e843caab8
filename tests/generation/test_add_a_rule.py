# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A commit rule is one place: the rules of docs/add_a_rule.md are known everywhere once their blocks have run."""

from unittest.mock import patch

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.configuration import resolve
from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS

from ..helpers import make_llada, refuses
from ..pages import python_blocks


PAGE = "docs/add_a_rule.md"


@pytest.fixture
def tables():
    """The settings and rules, and all as before afterwards."""
    with patch.dict(SETTINGS), patch.dict(commit_rules.RULES):
        yield SETTINGS, commit_rules.RULES


@pytest.fixture
def margin_rule(tables):
    """The first rule of the page, and what its second block has decoded."""
    namespace: dict = {}
    for source in python_blocks(PAGE)[:2]:
        exec(source, namespace)
    return namespace


def test_a_new_rule_is_known_to_configurations_and_docs(margin_rule, tmp_path):
    assert margin_rule["out"].nfe.max() < 64
    recipe = DiffusionGenerationConfig(margin_threshold=0.8)
    assert recipe.commit_rule() == "margin_threshold"
    recipe.save_pretrained(tmp_path)
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).settings() == {"margin_threshold": 0.8}
    with refuses("margin_threshold"):
        DiffusionGenerationConfig(margin_threshold=1.5)
    with refuses("entropy_threshold", "margin_threshold"):
        DiffusionGenerationConfig(margin_threshold=0.5, entropy_threshold=0.5)
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(entropy_threshold=0.5)
    assert resolve(model, margin_threshold=0.5).commit_rule() == "margin_threshold"
    setting = SETTINGS["margin_threshold"]
    assert setting.has_flag and setting.changes_answer


def test_a_new_rule_decodes(margin_rule):
    model, prompt = make_llada(), torch.tensor([[2, 3, 4]])
    common = {"max_new_tokens": 16, "block_length": 8, "stop_at_eos": False, "return_dict_in_generate": True}
    one_by_one = model.generate(prompt, margin_threshold=1.0, **common)
    assert one_by_one.nfe.item() == 16
    out = model.generate(prompt, margin_threshold=0.2, max_active_blocks=2, **common)
    assert out.nfe.item() < 16
    first = model(torch.tensor([[2, 3, 4] + [63] * 16])).logits[0, 3:11].softmax(-1).topk(2).values
    margin = first[:, 0] - first[:, 1]
    committed = (out.commit_step[0, :8] == 0).tolist()
    assert committed == ((margin >= 0.2) | (margin == margin.max())).tolist()
