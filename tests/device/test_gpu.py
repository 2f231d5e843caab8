# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What only a real device shows: kernels, compiled code with CUDA graphs, and where PyTorch really waits.

Needs torch, transformers, peft and pytest, and nothing else:
`python -m pytest -o addopts= -m gpu tests/device/test_gpu.py`.
"""

import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig

from ..helpers import left_padded, lora, make_dream, make_llada, make_rows, make_sdar, make_trainer


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = "cuda"
PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
SETTINGS = {"max_new_tokens": 16, "block_length": 4, "entropy_threshold": 1.0, "stop_at_eos": False}
CACHES = pytest.mark.parametrize("cache", [None, "prefix", "dual"])


def decode(model, **settings):
    ids, mask = (tensor.to(model.device) for tensor in left_padded(PROMPTS, pad=1))
    out = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **(SETTINGS | settings))
    return [out[name].tolist() for name in ("sequences", "nfe", "commit_step")]


@pytest.mark.parametrize("make_model", [make_llada, make_dream])
@CACHES
def test_answers_are_those_of_the_cpu(make_model, cache):
    # In float64 no rounding turns a comparison.
    model = make_model().double()
    expected = decode(model, cache_implementation=cache)
    assert decode(model.to(DEVICE), cache_implementation=cache) == expected


@pytest.mark.parametrize(
    ("make_model", "cache"), [(make_llada, None), (make_llada, "prefix"), (make_llada, "dual"), (make_sdar, "block")]
)
def test_compiled_code_gives_the_same_answers(make_model, cache):
    torch.compiler.reset()
    counters.clear()
    model = make_model().double().to(DEVICE)
    expected = decode(model, cache_implementation=cache)
    # Runs as it is, is recorded as a CUDA graph, and is replayed.
    for _ in range(3):
        assert decode(model, cache_implementation=cache, compile_config=CompileConfig()) == expected
    assert not counters["inductor"]["cudagraph_skips"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_is_not_seen_in_bfloat16(attention):
    model = make_llada().to(DEVICE, torch.bfloat16)
    model.set_attn_implementation(attention)
    ids, mask = (tensor.to(DEVICE) for tensor in left_padded(PROMPTS, pad=1))
    with torch.no_grad():
        batch = model(ids, attention_mask=mask).logits
        alone = model(ids[2:, -1:]).logits
    torch.testing.assert_close(batch[2:, -1:], alone, rtol=0.05, atol=0.05 * alone.abs().max().item())


@pytest.mark.parametrize("cache", [None, "dual"])
def test_the_host_waits_as_often_as_counted(cache):
    """The limits of test_waits.py, with some waits for what a call begins and ends with."""
    model = make_llada().to(DEVICE)
    ids = torch.tensor([[2, 3]], device=DEVICE)
    settings = SETTINGS | {"entropy_threshold": None, "max_new_tokens": 64, "cache_implementation": cache}
    model.generate(ids, **settings)
    torch.set_warn_always(True)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            model.generate(ids, **settings)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.set_warn_always(False)
    assert 0 < len(waits) <= (1 if cache is None else 2) * 64 + 32, {str(warning.message) for warning in waits}


def test_a_training_step_is_that_of_the_cpu(tmp_path):
    rows = make_rows(4)
    trainer = make_trainer(tmp_path, make_llada().double(), peft_config=lora(), train_dataset=rows)
    model, batch = trainer.model.train(), trainer.data_collator(rows)

    def step(device):
        model.to(device).zero_grad()
        trainer._sums = {"train": 0}
        loss = trainer.compute_loss(model, {name: tensor.to(device) for name, tensor in batch.items()})
        loss.backward()
        return [loss.item(), *(p.grad.norm().item() for p in model.parameters() if p.grad is not None)]

    expected = step("cpu")
    assert step(DEVICE) == pytest.approx(expected, rel=1e-4)
