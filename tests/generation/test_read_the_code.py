# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page for readers: its block is the method, and the names that it sends readers to exist."""

import re

import pytest
import torch

from ..pages import ROOT, python_blocks, read, run_blocks


PAGE = "docs/read_the_code.md"


def check_alike(decode, model, prompt_ids, **settings) -> None:
    """Compares the tokens and the passes of the block with those of `generate`."""
    ids, num_passes = decode(model, prompt_ids, **settings)
    out = model.generate(prompt_ids, stop_at_eos=False, return_dict_in_generate=True, **settings)
    assert torch.equal(out.sequences, ids)
    assert out.nfe.item() == num_passes


@pytest.mark.parametrize("entropy_threshold", [0.0, 0.6, 0.7, 1.0])
def test_its_block_decodes_as_generate_does(tiny_llada, entropy_threshold):
    decode = run_blocks(PAGE)["decode"]
    model = tiny_llada.double()
    settings = {"max_new_tokens": 20, "block_length": 8, "entropy_threshold": entropy_threshold}
    for prompt in ([2, 3, 4], [9], list(range(5, 30))):
        prompt_ids = torch.tensor([prompt])
        check_alike(decode, model, prompt_ids, **settings)


def test_its_block_waits_where_the_model_prefers_the_mask(tiny_llada):
    decode = run_blocks(PAGE)["decode"]
    model = tiny_llada.double()
    mask_token_id = model.config.mask_token_id
    with torch.no_grad():
        # The mask token becomes the likeliest one.
        model.lm_head.weight[mask_token_id] = 1.05 * model.lm_head.weight[60]
    prompt_ids = torch.tensor([[2, 3, 4]])
    predicted = model(torch.tensor([[2, 3, 4, *[mask_token_id] * 20]])).logits[0, 3:].argmax(dim=-1)
    assert (predicted == mask_token_id).any()

    settings = {"max_new_tokens": 20, "block_length": 8, "entropy_threshold": 1.0}
    check_alike(decode, model, prompt_ids, **settings)


def test_the_thresholds_of_this_file_save_passes(tiny_llada):
    decode = run_blocks(PAGE)["decode"]
    model = tiny_llada.double()
    passes = [decode(model, torch.tensor([[2, 3, 4]]), 20, 8, threshold)[1] for threshold in (0.0, 0.6, 0.7, 1.0)]
    assert passes[0] == 20
    assert passes == sorted(passes, reverse=True)
    assert len(set(passes)) >= 3


def test_names_that_it_sends_readers_to_are_in_the_files():
    assert len(python_blocks(PAGE)) == 1
    rows = re.findall(r"^\| `(hf_dparallel\S+)` \| (.*) \|$", read(PAGE), flags=re.MULTILINE)
    assert rows
    for file, text in rows:
        source = (ROOT / "src" / file).read_text()
        for name in re.findall(r"`([\w.]+)`", text):
            assert re.search(rf"\b{name}\b", source), f"{file} has no {name}"
