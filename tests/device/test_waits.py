# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How often a pass of the loop waits for the device."""

import pytest
import torch

from hf_dparallel.generation.decoder import Decoder

from ..helpers import Recorder, left_padded
from ..simulated_device import SimulatedDevices
from .helpers import small_dream, small_llada, small_sdar


# Settings, and the waits of a pass that no row enters or leaves, at most. Numbers here only ever fall.
LLADA = {
    "plain": ({}, 1),
    "several blocks": ({"max_active_blocks": 3, "block_add_threshold": 0.5}, 1),
    "sampling": ({"temperature": 1.0}, 1),
    "entropy bound": ({"entropy_threshold": None, "entropy_bound": 0.5}, 1),
    "certainty": ({"output_certainty": True, "return_dict_in_generate": True}, 1),
    "suffix": ({"suffix_length": 4}, 1),
    "verified": ({"revocation_threshold": 0.6}, 1),
    "soft": ({"entropy_threshold": None, "soft_threshold": 0.3}, 1),
    "prefix": ({"cache_implementation": "prefix"}, 2),
    "dual": ({"cache_implementation": "dual"}, 2),
    "a stream of tokens and drafts": ({"prompts": [[4, 5, 6, 7, 8]], "streamer": Recorder()}, 2),
}
SDAR = {
    "block": ({}, 1),
    "rows out of step": ({"prompts": [[2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13], [14] * 12]}, 1),
    "no block cache": ({"use_cache": False}, 1),
    "editing": ({"editing_threshold": 0.5, "max_post_steps": 1}, 1),
}
DREAM = {name: LLADA[name] for name in ("dual", "verified")}
MODELS = ((small_llada, LLADA), (small_dream, DREAM), (small_sdar, SDAR))
CASES = [(make, name, *case) for make, cases in MODELS for name, case in cases.items()]
COMMON = {"max_new_tokens": 12, "block_length": 4, "entropy_threshold": 0.7, "stop_at_eos": False}


@pytest.fixture
def steady_passes(monkeypatch):
    """Labels each pass with its number, and lists the passes that no row entered or left."""
    step, steady, num_passes, has_changed = Decoder.step, [], 0, True

    def labelled_step(decoder):
        nonlocal num_passes, has_changed
        num_passes += 1
        SimulatedDevices.current.label = num_passes
        finished = step(decoder)
        SimulatedDevices.current.label = None
        # The first pass after rows have left makes the cache smaller.
        if not finished and not has_changed:
            steady.append(num_passes)
        has_changed = bool(finished)
        return finished

    monkeypatch.setattr(Decoder, "step", labelled_step)
    return steady


@pytest.mark.parametrize(("make_model", "name", "settings", "limit"), CASES)
def test_a_pass_waits_no_more_than_reached(make_model, name, settings, limit, steady_passes):
    settings = COMMON | settings
    prompts = settings.pop("prompts", [[2, 3], [4, 5, 6, 7, 8], [9]])
    with SimulatedDevices() as devices:
        ids, mask = (tensor.to("cuda") for tensor in left_padded(prompts, pad=1))
        torch.manual_seed(0)
        given = {name: value for name, value in settings.items() if value is not None}
        devices.move(make_model()).generate(ids, attention_mask=mask, **given)
    waits = [devices.waits_of(label) for label in steady_passes]
    assert len(waits) >= 5 and max(map(len, waits)) <= limit, (name, max(waits, key=len))
