# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where the tokens of a row are, by examples done by hand."""

import pytest
import torch

from hf_dparallel.generation.layout import Layout


M = 9


# New tokens, whole blocks; a prompt; its tokens, blocks, and where these begin, in blocks of 4.
@pytest.mark.parametrize(
    ("max_new_tokens", "whole_blocks", "prompt", "sequence", "block", "block_start"),
    [
        # Blocks follow the prompt, and the last one may be shorter.
        (5, False, [1, 2, 3], [1, 2, 3, M, M, M, M, M], [-1, -1, -1, 0, 0, 0, 0, 1], [0, 0, 0, 3, 3, 3, 3, 7]),
        # Counted from the first token: the first block has a token of the prompt, and two masks complete the last one.
        (
            5,
            True,
            [1, 2, 3, 4, 5],
            [1, 2, 3, 4, 5, M, M, M, M, M, M, M],
            [-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1],
            [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8],
        ),
        # When infilling, blocks end with the prompt.
        (0, False, [1, M, 2, M, M], [1, M, 2, M, M], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1]),
    ],
)
def test_tokens_and_blocks(max_new_tokens, whole_blocks, prompt, sequence, block, block_start):
    layout = Layout(max_new_tokens, 4, whole_blocks)
    placed = layout.place(torch.tensor(prompt), M)
    assert layout.length(len(prompt)) == len(sequence) and placed["attention_mask"].all()
    assert placed["sequences"].tolist() == sequence
    assert placed["block"].tolist() == block and placed["block_start"].tolist() == block_start
    assert placed["masked"].tolist() == [token == M for token in sequence]
    answer = layout.answer(len(prompt))
    assert answer.stop - answer.start == (max_new_tokens or len(prompt))
