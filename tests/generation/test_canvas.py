# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rows being decoded, against lists of what each of them holds."""

import random

import pytest
import torch

from hf_dparallel.generation.canvas import Canvas
from hf_dparallel.generation.configuration import resolve

from ..helpers import EOS, MASK, left_padded, make_llada


BLOCK = 4


def make_canvas(max_new_tokens=6, **how) -> Canvas:
    settings = {"max_new_tokens": max_new_tokens, "block_length": BLOCK, "pad_token_id": 0}
    return Canvas(resolve(make_llada(n_layers=1), None, **settings), **how)


def add(canvas, rows: dict[int, list[int]]) -> None:
    canvas.add(list(rows), *left_padded(list(rows.values())))


@pytest.mark.parametrize(("max_new_tokens", "whole_blocks"), [(6, False), (6, True), (0, False)])
def test_a_row_is_the_same_whatever_rows_enter_and_leave(max_new_tokens, whole_blocks):
    prompts = {0: [2, 3, MASK], 1: [4] * 9 + [MASK], 2: [MASK], 3: [5] * 6 + [MASK, 6]}
    attention = "block_causal" if whole_blocks else "full"
    canvas = make_canvas(max_new_tokens, attention=attention)

    def check(*row_ids):
        assert canvas.row_ids == list(row_ids)
        for row, row_id in enumerate(row_ids):
            prompt, start = prompts[row_id], canvas.prompt_start(row)
            length = len(prompt) + max_new_tokens
            length += -length % BLOCK if whole_blocks else 0
            assert canvas.width - start == length
            first = len(prompt) // BLOCK * BLOCK if whole_blocks else len(prompt)
            # When infilling, blocks end where the prompt ends.
            first = first if max_new_tokens else -(-len(prompt) % BLOCK)
            before_answer = len(prompt) if max_new_tokens else 0
            tokens = prompt + [MASK] * (length - len(prompt))
            places = range(-before_answer, length - before_answer)
            assert canvas.attention_mask[row].tolist() == [0] * start + [1] * length
            assert canvas.sequences[row, start:].tolist() == tokens
            assert canvas.position_ids[row, start:].tolist() == list(range(length))
            assert canvas.block[row, start:].tolist() == [(place - first) // BLOCK for place in range(length)]
            assert (canvas.block[row, :start] < 0).all() and not canvas.masked[row, :start].any()
            assert canvas.masked[row, start:].tolist() == [
                token == MASK and place >= 0 for token, place in zip(tokens, places, strict=True)
            ]
            assert canvas.is_given[row].tolist() == [True] * start + [place < 0 for place in places]
            answer = canvas.answer(row)
            assert answer == slice(start + before_answer, start + len(prompt) + max_new_tokens)
        assert canvas.is_padded == any(map(canvas.prompt_start, range(len(canvas))))

    add(canvas, {0: prompts[0], 1: prompts[1]})
    check(0, 1)
    add(canvas, {2: prompts[2]})
    check(0, 1, 2)
    canvas.remove([1])
    check(0, 2)
    add(canvas, {3: prompts[3]})
    check(0, 2, 3)


@pytest.mark.parametrize("max_active_blocks", [1, 2])
def test_a_row_opens_its_next_block_when_the_one_before_is_decided(max_active_blocks):
    """Or, with several, when it is decided to the given fraction."""
    canvas = make_canvas(max_new_tokens=10)
    canvas.config.max_active_blocks, canvas.config.block_add_threshold = max_active_blocks, 0.5
    add(canvas, {0: [2, 3], 1: [4]})
    masks, last = {0: set(range(10)), 1: set(range(10))}, {0: 0, 1: 0}
    draw, num_passes = random.Random(0), 0
    while canvas:
        for row, row_id in enumerate(canvas.row_ids):
            first, status = min(masks[row_id]) // BLOCK, canvas.status[row]
            is_open = {place for place in masks[row_id] if first <= place // BLOCK <= last[row_id]}
            start = canvas.answer(row).start
            assert (canvas.is_open[row].nonzero().flatten() - start).tolist() == sorted(is_open)
            assert (status.open_from, status.open_to, status.num_open) == (first, last[row_id], len(is_open))
            assert (status.num_decided, canvas.status[row].nfe) == (min(masks[row_id]), num_passes)
            assert canvas.open_edges(row) == (start + first * BLOCK, start + min((last[row_id] + 1) * BLOCK, 10))
        columns, is_mask = canvas.open_columns()
        accepted = torch.tensor([[mask and draw.random() < 0.4 for mask in line] for line in is_mask.tolist()])
        tokens = columns + 10  # each its own, and none an end token
        canvas.commit(columns, tokens, accepted)
        num_passes += 1
        for row, row_id in enumerate(canvas.row_ids):
            masks[row_id] -= set((columns[row][accepted[row]] - canvas.answer(row).start).tolist())
            left = [len({place for place in masks[row_id] if place // BLOCK == block}) for block in range(3)]
            first = next((block for block in range(3) if left[block]), 3)
            last[row_id] = max(last[row_id], first)
            is_half_decided = last[row_id] < 2 and left[last[row_id]] <= BLOCK / 2
            last[row_id] += is_half_decided and last[row_id] - first < max_active_blocks - 1
        canvas.advance(torch.zeros(len(canvas), dtype=torch.long))
        for decoded in canvas.pop_finished():
            assert not masks[decoded.index] and (decoded.nfe, decoded.num_tokens) == (num_passes, 10)
            assert (decoded.tokens >= 10).all() and decoded.commit_step.max() == num_passes - 1


def test_an_answer_is_finished_when_all_up_to_its_end_is_decided():
    canvas = make_canvas()
    add(canvas, {7: [2, 3]})
    columns = canvas.open_columns()[0]
    for tokens, accepted, num_decided in [
        ([9, 9, EOS, 9], [False, False, True, True], 0),
        ([9, EOS, 9, 9], [True, False, False, False], 1),
        ([9, 8, 9, 9], [False, True, False, False], 4),
    ]:
        assert not canvas.pop_finished()
        canvas.commit(columns, torch.tensor([tokens]), torch.tensor([accepted]))
        canvas.advance(torch.tensor([0]))
        assert canvas.status[0].num_decided == num_decided
    (row,) = canvas.pop_finished()
    assert row.tokens.tolist() == [9, 8, EOS, 0, 0, 0] and row.commit_step.tolist() == [1, 2, 0, -1, -1, -1]
    assert (row.index, row.nfe, row.num_tokens, row.tokens_per_forward) == (7, 3, 3, 1.0)
    assert not canvas and canvas.width == 6
