# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the tokens of a row are, by examples done by hand."""

import pytest
import torch

from hf_dparallel.generation.layout import Layout


# New tokens, whole blocks; tokens of a prompt, and those that are given; blocks of 4, and where these begin.
@pytest.mark.parametrize(
    ("max_new_tokens", "whole_blocks", "length", "is_given", "block", "block_start"),
    [
        # Blocks follow the prompt, and the last one may be shorter.
        (5, False, 3, 3, [-1, -1, -1, 0, 0, 0, 0, 1], [0, 0, 0, 3, 3, 3, 3, 7]),
        # Counted from the first token: the first block has a token of the prompt, and two masks complete the last one.
        (
            5,
            True,
            5,
            5,
            [-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1],
            [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8],
        ),
        # When infilling, blocks end with the prompt.
        (0, False, 5, 0, [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]),
    ],
)
def test_tokens_and_blocks(max_new_tokens, whole_blocks, length, is_given, block, block_start):
    layout = Layout(max_new_tokens, 4, whole_blocks)
    width = len(block)
    placed = layout.place([length, 1], torch.arange(width))
    assert layout.length(length) == width
    assert placed.attention_mask.sum(dim=1).tolist() == [width, layout.length(1)]
    assert placed.position_ids[0].tolist() == list(range(width))
    assert placed.is_given[0].tolist() == [column < is_given for column in range(width)]
    assert placed.block[0].tolist() == block and placed.block_start[0].tolist() == block_start
    # In padding on the left of a shorter row.
    assert set(placed.block[1, : width - layout.length(1)].tolist()) <= {-1}
    answer = layout.answer(length)
    assert answer.stop - answer.start == (max_new_tokens or length)
