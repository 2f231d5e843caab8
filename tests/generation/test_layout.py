# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the tokens of a row are, by examples done by hand."""

import pytest
import torch

from hf_dparallel.generation.layout import Layout


M = 9


# New tokens, whole blocks; prompts; and of each the tokens, blocks, and where these begin, in blocks of 4.
@pytest.mark.parametrize(
    ("max_new_tokens", "whole_blocks", "prompts", "sequences", "block", "block_start"),
    [
        # Blocks follow the prompt, and the last one may be shorter.
        (
            5,
            False,
            [[1, 2, 3]],
            [[1, 2, 3, M, M, M, M, M]],
            [[-1, -1, -1, 0, 0, 0, 0, 1]],
            [[0, 0, 0, 3, 3, 3, 3, 7]],
        ),
        # Counted from the first token: the first block has a token of the prompt, and two masks complete the last one.
        (
            5,
            True,
            [[1, 2, 3, 4, 5]],
            [[1, 2, 3, 4, 5, M, M, M, M, M, M, M]],
            [[-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1]],
            [[0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]],
        ),
        # When infilling, blocks end with the prompt.
        (0, False, [[1, M, 2, M, M]], [[1, M, 2, M, M]], [[0, 1, 1, 1, 1]], [[0, 1, 1, 1, 1]]),
        # Padding is on the left, in no block.
        (2, False, [[0, 1], [1, 2]], [[0, 1, M, M], [1, 2, M, M]], [[-1, -1, 0, 0]] * 2, [[0, 0, 1, 1], [0, 0, 2, 2]]),
    ],
)
def test_tokens_and_blocks(max_new_tokens, whole_blocks, prompts, sequences, block, block_start):
    layout, ids = Layout(max_new_tokens, 4, whole_blocks), torch.tensor(prompts)
    placed = layout.place(ids, (ids != 0).long(), M)
    length = layout.length(int((ids[0] != 0).sum()))
    start = placed["sequences"].shape[1] - length
    # Columns that no row reaches may be left of all.
    cut = placed["sequences"].shape[1] - len(sequences[0])
    assert start >= cut and not placed["attention_mask"][0, :start].any()
    assert placed["sequences"][:, cut:].tolist() == sequences
    assert placed["block"][:, cut:].tolist() == block
    assert placed["block_start"][:, cut:].tolist() == block_start
    assert placed["masked"][:, cut:].tolist() == [[token == M for token in row] for row in sequences]
    answer = layout.answer(int((ids[0] != 0).sum()))
    assert answer.stop - answer.start == (max_new_tokens or ids.shape[1])
