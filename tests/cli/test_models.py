# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel models`: what it says of a family is what the family's classes say."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from hf_dparallel_cli.models import read_published, read_ready


PUBLISHED = read_published()


def test_every_family_is_listed():
    registered = MODEL_FOR_MASKED_LM_MAPPING._extra_content
    ours = [config for config in registered if config.__module__.startswith("hf_dparallel.models")]
    # Nobody has published a converted Qwen3-MoE yet.
    assert {row["model_type"] for row in PUBLISHED} | {"a2d-qwen3-moe"} == {config.model_type for config in ours}


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["family"])
def test_attention_and_shift_are_those_of_the_class(row):
    block_length = row.get("block_length")
    # The configurations of A2D do not say these by themselves.
    said = {name: row[name] for name in ("block_length", "shift_logits") if row.get(name)}
    config = AutoConfig.for_model(row["model_type"], **said)
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    assert row["attention"].replace("-", "_") == model.attention
    assert row["shift_logits"] == model.shift_logits and block_length == getattr(model.config, "block_length", None)


def test_checkpoints_are_listed_once():
    names = [each["name"] for row in PUBLISHED for each in row["checkpoints"]]
    assert len({*names}) == len(names) and all(name.count("/") == 1 for name in names)


def test_the_command_lists_them(hf):
    code, out, err = hf("models")
    assert (code, err) == (0, "")
    assert all(f"  {each['name']} " in out for row in PUBLISHED for each in row["checkpoints"])
    assert all(f"  {row['name']} ({row['size']})\n" in out and f"    {row['source']}\n" in out for row in read_ready())
    for row in (row for row in read_ready() if "published" in row):
        assert f"    Published: {row['published']} ({row['published_in']})\n" in out
    assert "Dream, attention: full, shifted. " in out and "LLaDA2, attention: block-causal, blocks of 32. " in out
