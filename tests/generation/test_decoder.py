# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The decoder as a server uses it: rows that come and go between passes, and how far each has come."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.generation.hooks.history import CertaintyHistory
from hf_dparallel.generation.hooks.standard import make_hooks

from ..helpers import exact_model, make_dream, make_llada, make_sdar


SETTINGS = {"max_new_tokens": 16, "block_length": 4, "entropy_threshold": 1.0, "pad_token_id": 0}
prompt = st.lists(st.integers(2, 62), min_size=1, max_size=12)


def make_decoder(model, **settings) -> Decoder:
    config = resolve(model, None, **(SETTINGS | settings))
    return Decoder(model, config, make_hooks(config))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.sampled_from([make_llada, make_dream]),
    # By prompt: the pass before which it is added, and how many passes later it is given up.
    st.lists(st.tuples(prompt, st.integers(0, 6), st.none() | st.integers(1, 4)), min_size=1, max_size=6),
    st.sampled_from([None, "prefix", "dual"]),
    st.booleans(),
    st.integers(0, 62),
)
def test_rows_that_come_and_go_change_no_other(make, requests, cache, stop_at_eos, eos):
    model = exact_model(make)
    kwargs = {"cache_implementation": cache, "stop_at_eos": stop_at_eos, "eos_token_id": eos}
    decoder = make_decoder(model, **kwargs)
    finished, seen = {}, {}
    with torch.no_grad():
        for number in range(100):
            gone = [n for n, (_, start, life) in enumerate(requests) if life is not None and start + life == number]
            decoder.remove(set(gone) & set(decoder.canvas.row_ids))
            new = {n: torch.tensor(ids) for n, (ids, start, _) in enumerate(requests) if start == number}
            if new:
                decoder.add_prompts(new)
            finished |= {row.index: row for row in decoder.step()}
            for row_id, status in zip(decoder.canvas.row_ids, decoder.canvas.status, strict=True):
                assert status.nfe == number + 1 - requests[row_id][1]
                before = seen.get(row_id, [])
                seen[row_id] = status.final_tokens(0)
                assert seen[row_id] == before + status.final_tokens(len(before))
    assert not decoder and len(finished) + len([life for *_, life in requests if life is not None]) >= len(requests)
    for index, (ids, _, life) in enumerate(requests):
        assert life is not None or index in finished
        alone = model.generate(torch.tensor([ids]), return_dict_in_generate=True, **(SETTINGS | kwargs))
        new_tokens = alone.sequences[0, len(ids) :].tolist()
        answer = new_tokens[: new_tokens.index(eos) + 1] if eos in new_tokens else new_tokens
        assert answer[: len(seen.get(index, []))] == seen.get(index, [])
        if index in finished:
            row = finished[index]
            assert row.tokens.tolist() == new_tokens and row.nfe == alone.nfe[0] and row.num_tokens == len(answer)


@pytest.mark.parametrize(("make", "cache"), [(make_llada, "dual"), (make_sdar, None)])
def test_the_work_of_the_host_is_linear_in_the_rows(make, cache):
    """A row costs no more calls of this package's functions among many than among few."""
    model, counts = make(), []

    def count(frame, event, argument):
        counts[-1] += event == "call" and "hf_dparallel" in frame.f_code.co_filename

    for rows in (2, 8):
        counts.append(0)
        sys.setprofile(count)
        try:
            model.generate(torch.full((rows, 3), 2), **(SETTINGS | {"cache_implementation": cache}))
        finally:
            sys.setprofile(None)
    assert counts[1] <= 4 * counts[0]


def test_progress_shows_each_token_once_everything_before_it_is_decided(tiny_llada):
    out = tiny_llada.generate(torch.tensor([[2, 3]]), return_dict_in_generate=True, **SETTINGS, stop_at_eos=False)
    decoder = make_decoder(tiny_llada, eos_token_id=62)
    decoder.add_prompts({7: torch.tensor([2, 3])})
    lengths = []
    with torch.no_grad():
        while not decoder.step():
            lengths.append(len(decoder.canvas.status[0].final_tokens(0)))
    steps = out.commit_step[0].cummax(dim=0).values
    assert lengths == [(steps <= number).sum().item() for number in range(len(lengths))]


def test_a_removed_row_leaves_nothing_behind(tiny_llada):
    config = resolve(tiny_llada, None, output_certainty=True, return_dict_in_generate=True, **SETTINGS)
    hooks = make_hooks(config)
    (history,) = (hook for hook in hooks if isinstance(hook, CertaintyHistory))
    decoder = Decoder(tiny_llada, config, hooks, lambda row: torch.Generator().manual_seed(row))
    with torch.no_grad():
        decoder.add_prompts({0: torch.tensor([2, 3]), 1: torch.tensor([4])})
        decoder.step()
        decoder.remove([0])
        kept = (decoder.canvas.row_ids, decoder.generators, decoder._entered, history._passes)
        assert all(list(rows) == [1] for rows in kept)
        decoder.remove([1])
        assert not decoder and not decoder.generators and not decoder._entered and not history._passes
        assert decoder.step() == []
