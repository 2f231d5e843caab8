# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How a pass is run: the head, the masks, and keys and values from earlier passes."""

import pytest
import torch
from transformers import CompileConfig

from hf_dparallel.generation.configuration import resolve


def test_the_head_runs_on_open_masks_only(tiny_llada):
    scored = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: scored.append(output.shape[1]))
    tiny_llada.generate(torch.tensor([[2, 3]]), max_new_tokens=16, block_length=8, stop_at_eos=False)
    assert scored == [8, 7, 6, 5, 4, 3, 2, 1] * 2


@pytest.mark.parametrize("compile_config", [None, CompileConfig()])
def test_a_decoder_with_rows_has_a_cache_of_its_own(tiny_llada, compile_config):
    config = resolve(tiny_llada, max_new_tokens=8, cache_implementation="dual", compile_config=compile_config)
    decoders = [tiny_llada.make_decoder(config, []) for _ in range(3)]
    first, second, third = decoders

    def enter(decoder):
        decoder.add_prompts({0: torch.tensor([2, 3]), 1: torch.tensor([4])})
        decoder.runner.fit()
        return decoder.runner.cache

    caches = [enter(first), enter(second)]
    assert caches[0] is not caches[1]
    first.remove([0])
    assert first.runner.cache is caches[0]
    # The cache is free when all rows have left, for one decoder.
    first.remove([1])
    assert first.runner.cache is None
    assert (enter(third) is caches[0]) == (compile_config is not None)
    assert enter(first) not in [*caches, third.runner.cache]
