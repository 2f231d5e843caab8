# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rows being decoded, by an example done by hand."""

import torch

from hf_dparallel.generation.canvas import Canvas
from hf_dparallel.generation.configuration import resolve

from ..helpers import EOS, make_llada


def test_an_answer_is_finished_when_all_up_to_its_end_is_decided():
    settings = {"max_new_tokens": 6, "block_length": 4, "pad_token_id": 0}
    canvas = Canvas(resolve(make_llada(n_layers=1), None, **settings))
    canvas.add({7: torch.tensor([2, 3])})
    columns = canvas.open_columns()[0]
    for tokens, accepted, num_decided in [
        ([9, 9, EOS, 9], [False, False, True, True], 0),
        ([9, EOS, 9, 9], [True, False, False, False], 1),
        ([9, 8, 9, 9], [False, True, False, False], 4),
    ]:
        assert not canvas.pop_finished()
        canvas.commit(columns, torch.tensor([tokens]), torch.tensor([accepted]))
        canvas.advance(torch.tensor([0]))
        canvas.read_status()
        assert canvas.status[0].num_decided == num_decided
    (row,) = canvas.pop_finished()
    assert row.tokens.tolist() == [9, 8, EOS, 0, 0, 0] and row.commit_step.tolist() == [1, 2, 0, -1, -1, -1]
    assert (row.index, row.nfe, row.num_tokens, row.tokens_per_forward) == (7, 3, 3, 1.0)
    assert not canvas
