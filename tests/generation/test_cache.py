# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Prefix and dual cache: against the official samplers, against the exact path, and row by row."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM

from ..helpers import exact_model, left_padded, make_dream, make_llada, with_equal_settings
from .naive import naive_generate


OFFICIAL_CACHES = {
    "dparallel.generate_with_prefix_cache": "prefix",
    "dparallel.generate_with_dual_cache": "dual",
}
NEW = {"max_new_tokens": 64, "stop_at_eos": False, "return_dict_in_generate": True}


def golden_runs(golden_dir, name):
    for line in (golden_dir / name / "generation.jsonl").read_text().splitlines():
        run = json.loads(line)
        # Without a threshold the official caches commit by entropy on a schedule, which is none of the commit rules.
        if run["function"] in OFFICIAL_CACHES and run["params"]["threshold"] is not None:
            params, cache = run["params"], OFFICIAL_CACHES[run["function"]]
            rule = {"block_length": params["block_length"], "entropy_threshold": params["threshold"]}
            yield run, rule | {"cache_implementation": cache}


@pytest.mark.parametrize(("name", "num_runs"), [("llada", 120), ("llada_gqa", 120)])
def test_equals_the_official_sampler(golden_dir, name, num_runs):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model").eval()
    runs = list(golden_runs(golden_dir, name))
    assert len(runs) == num_runs
    # The decoding of models with fewer key than query heads is the same: a part is enough.
    for kwargs, group in with_equal_settings(runs)[:: 5 if name == "llada_gqa" else 1]:
        ids, attention_mask = left_padded([run["prompt_ids"] for run in group])
        out = model.generate(ids, attention_mask=attention_mask, **kwargs, **NEW)
        assert out.sequences[:, ids.shape[1] :].tolist() == [run["generated_ids"] for run in group], kwargs
        # The official functions run one more pass over a block that the first pass has decided as a whole.
        blocks = out.commit_step.view(len(group), -1, kwargs["block_length"])
        decided_at_once = (blocks.amin(dim=2) == blocks.amax(dim=2)).sum(dim=1)
        assert (out.nfe + decided_at_once).tolist() == [run["nfe_forward_calls"] for run in group], kwargs


@pytest.mark.parametrize("make", [make_llada, make_dream])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_refresh_at_every_pass_is_the_exact_path(make, cache, attention):
    model = exact_model(make)
    model.set_attn_implementation(attention)
    ids, attention_mask = left_padded([[2, 3], [4, 5, 6, 7], [8]])
    kwargs = {"attention_mask": attention_mask, "block_length": 8, "entropy_threshold": 1.0, **NEW}
    try:
        exact = model.generate(ids, **kwargs)
        cached = model.generate(ids, cache_implementation=cache, cache_refresh_interval=1, **kwargs)
    finally:
        model.set_attn_implementation("sdpa")
    assert torch.equal(cached.sequences, exact.sequences) and torch.equal(cached.nfe, exact.nfe)


class FrozenCache:
    """Predicts as a model of several layers with a cache does.

    What a cached pass sees of the columns that it does not compute are their keys and values at the last full pass.
    Here they come from the hidden states of that pass, layer by layer.
    """

    def __init__(self, model, cache, refresh_interval):
        self.model, self.cache, self.refresh_interval = model, cache, refresh_interval
        self.kept: list[torch.Tensor] = []

    def __call__(self, row):
        place = torch.arange(len(row.tokens))
        computed = (place >= row.open.start) & ((place < row.open.stop) | (self.cache == "prefix"))
        if row.step == 0 or (self.refresh_interval and row.step % self.refresh_interval == 0):
            computed[:] = True
        logits, self.kept = forward_with_frozen_inputs(self.model, torch.tensor(row.tokens), computed, self.kept)
        return logits.softmax(-1)


def forward_with_frozen_inputs(model, sequence, computed, kept):
    """Runs the layers; where `computed` is false the input of each layer's keys and values is the kept one."""
    backbone = model.model
    position_ids = torch.arange(len(sequence))[None]
    hidden = backbone.embed_tokens(sequence[None])
    cos_sin = backbone.rotary_emb(hidden, position_ids)
    inputs = []
    for index, layer in enumerate(backbone.layers):
        seen = hidden if not kept else torch.where(computed[None, :, None], hidden, kept[index])
        inputs.append(seen)
        hidden = layer(seen, attention_mask=None, position_embeddings=cos_sin, position_ids=position_ids)
    return model.lm_head(backbone.norm(hidden))[0], inputs


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(2, 62), min_size=1, max_size=9), min_size=1, max_size=4),
    st.sampled_from(["prefix", "dual"]),
    st.sampled_from([2, 4, 8]),
    st.floats(0.0, 3.0),
    st.sampled_from([None, 2, 3]),
)
def test_rows_of_a_batch_equal_the_naive_cache(prompts, cache, block_length, threshold, refresh_interval):
    model = exact_model(make_llada)
    ids, attention_mask = left_padded(prompts)
    batch = model.generate(
        ids,
        attention_mask=attention_mask,
        max_new_tokens=16,
        block_length=block_length,
        entropy_threshold=threshold,
        cache_implementation=cache,
        cache_refresh_interval=refresh_interval,
        stop_at_eos=False,
    )
    for row, prompt in enumerate(prompts):
        predict = FrozenCache(model, cache, refresh_interval)
        expected = naive_generate(model, prompt, 16, block_length, entropy_threshold=threshold, predict=predict)
        assert batch[row, ids.shape[1] :].tolist() == expected.tokens


def test_windows_of_different_sizes_change_no_entropy():
    """Keys and values of one column too many would be told by the entropies only."""
    prompts, model = [[29], [38, 2, 15, 31, 54, 33, 54, 19], [4, 35, 33]], exact_model(make_llada)
    ids, attention_mask = left_padded(prompts)
    kwargs = {"block_length": 4, "max_active_blocks": 3, "block_add_threshold": 0.25, "entropy_threshold": 0.3}
    kwargs |= NEW | {"max_new_tokens": 24, "cache_implementation": "dual", "output_certainty": True}
    batch = model.generate(ids, attention_mask=attention_mask, **kwargs)
    for row, prompt in enumerate(prompts):
        alone = model.generate(torch.tensor([prompt]), **kwargs)
        for name in ("entropies", "confidences"):
            expected = getattr(alone, name)[0]
            found = getattr(batch, name)[row, : len(expected)]
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_a_dual_cache_pass_computes_the_block_only(tiny_llada):
    widths = []
    tiny_llada.model.layers[0].register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    out = tiny_llada.generate(
        torch.tensor([[2, 3, 4]]), block_length=8, entropy_threshold=0.0, cache_implementation="dual", **NEW
    )
    assert out.nfe.item() == 64
    assert widths == ([67] + [8] * 7) * 8


def test_other_models_take_no_cache(tiny_llada):
    tiny_llada._supports_window_cache = False
    with pytest.raises(ValueError, match="`cache_implementation='dual'` needs a model of this package"):
        tiny_llada.generate(torch.tensor([[2, 3, 4]]), cache_implementation="dual", block_length=8, **NEW)


def test_a_model_that_drops_what_is_cached_takes_no_cache(tiny_llada):
    tiny_llada.train().activation_checkpointing_enable()
    with pytest.raises(ValueError, match=r"`cache_implementation='dual'` needs `model.eval\(\)`: in training"):
        tiny_llada.generate(torch.tensor([[2, 3, 4]]), cache_implementation="dual", block_length=8, **NEW)


def test_refresh_interval_without_a_cache(tiny_llada):
    with pytest.raises(ValueError, match="`cache_refresh_interval=2` needs `cache_implementation`. Set"):
        tiny_llada.generate(torch.tensor([[2, 3, 4]]), cache_refresh_interval=2, block_length=8, **NEW)


def test_all_is_computed_when_a_block_opens_beside_another_one(tiny_llada):
    lengths = []
    tiny_llada.model.layers[0].register_forward_hook(lambda module, args, output: lengths.append(output.shape[1]))
    settings = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 0.0, "stop_at_eos": False}
    settings |= {"max_active_blocks": 2, "block_add_threshold": 0.25, "cache_implementation": "dual"}
    tiny_llada.generate(torch.tensor([[2, 3]]), **settings)
    assert lengths[:3] == [10, 10, 8]
