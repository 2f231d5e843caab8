# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Nemotron-Labs-Diffusion: its published weights, and its sampler, written out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, Ministral3Config, Ministral3ForCausalLM

from ..helpers import MASK, exact_model, make_nemotron


def test_published_files_are_those_of_ministral3_under_other_names(tmp_path):
    """With blocks of one token it is autoregressive; scales of a cache are left out."""
    model = make_nemotron()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in weights} == {"encoder", "diffusion_head"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["block_size"] == 4
    scales = {f"encoder.layers.0.self_attn.{name}_proj.{name}_scale": torch.ones(1) for name in "kv"}
    save_file(weights | scales, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_implementation": "flex_attention"}))

    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, block_length=1, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config._attn_implementation == "sdpa"
    causal = Ministral3ForCausalLM(Ministral3Config(**make_nemotron().config.to_dict())).eval()
    causal.load_state_dict(model.state_dict())
    ids = torch.arange(2, 34)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, causal(ids).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def official_sampler(model, prompt, num_blocks, threshold):
    """Tokens and forward passes: a causal one gives the first token of a block, others decide the rest."""
    tokens, block_length, num_passes = list(prompt), model.config.block_length, 0

    def predict(ids, num_open):
        nonlocal num_passes
        num_passes += 1
        visible = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        visible[len(ids) - num_open :, len(ids) - num_open :] = True
        mask = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
        probabilities = model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0].softmax(-1)
        probabilities[:, MASK] = 0
        return probabilities.max(dim=-1)

    for _ in range(num_blocks):
        block = [int(predict(tokens, 0).indices[-1]), *[MASK] * (block_length - 1)]
        while MASK in block:
            confidence, likeliest = (
                values[-block_length:].tolist() for values in predict(tokens + block, block_length)
            )
            masks = [place for place, token in enumerate(block) if token == MASK]
            best = max(masks, key=confidence.__getitem__)
            for place in masks:
                if place == best or confidence[place] >= threshold:
                    block[place] = likeliest[place]
        tokens += block
    return tokens[len(prompt) :], num_passes


@pytest.mark.parametrize("use_cache", [None, False])
def test_decodes_as_the_official_sampler(use_cache):
    """Its tokens, in as many passes, in batches of several lengths."""
    model, settings = exact_model(make_nemotron), {"stop_at_eos": False, "max_new_tokens": 16, "batch_size": 3}
    prompts = [[2 + (7 * row + k) % 60 for k in range(1 + row % 5)] for row in range(5)]
    for threshold in (0.02, 0.2, 0.9):
        expected = [official_sampler(model, prompt, 4, threshold) for prompt in prompts]
        how = {"confidence_threshold": threshold, "use_cache": use_cache} | settings
        assert [(row.tokens.tolist(), row.nfe) for row in model.generate_many(prompts, **how)] == expected
