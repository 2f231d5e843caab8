# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Keys and values that passes replace in part, against lists of them."""

import pytest
import torch

from hf_dparallel.generation.cache import CanvasCache
from hf_dparallel.generation.plan import Pass


ROWS, WIDTH = 3, 6
WINDOWS = [[0, 1, 2], [3, 4, 5], [1, 2, 3]]
NO_SCORES = torch.zeros(1, 0, dtype=torch.long)


def make_states(rows, columns, value):
    """Keys of one head, each another number."""
    return value + torch.arange(rows * columns * 2.0).view(rows, 1, columns, 2)


def make_cache():
    cache = CanvasCache(1)
    cache.fit(list(range(ROWS)), ROWS, WIDTH, torch.device("cpu"))
    cache.select(Pass(None, torch.arange(WIDTH).expand(ROWS, -1), NO_SCORES, WIDTH, start=0))
    keys = make_states(ROWS, WIDTH, 0.0)
    cache.layers[0].update(keys, -keys)
    return cache, keys.clone()


@pytest.mark.parametrize("rows", [None, [0, 1, 2], [2, 0]])
@pytest.mark.parametrize(
    # A pass over the same columns of all rows keeps them all.
    ("columns", "start", "kept"),
    [([[1, 2, 3]] * 3, 1, None), (WINDOWS, None, None), (WINDOWS, None, [True, False, True])],
)
def test_a_pass_replaces_its_columns_and_sees_the_others(rows, columns, start, kept):
    cache, expected = make_cache()
    num_rows = ROWS if rows is None else len(rows)
    columns = torch.tensor(columns[:num_rows])
    kept = None if kept is None else torch.tensor([kept] * num_rows)
    states = make_states(num_rows, 3, 100.0)
    index = None if rows is None else torch.tensor(rows)
    cache.select(Pass(index, columns, NO_SCORES, 5, start=start, kept=kept))
    keys, values = cache.layers[0].update(states, -states)

    for number, row in enumerate(range(ROWS) if rows is None else rows):
        for place, column in enumerate(columns[number].tolist()):
            if kept is None or kept[number, place]:
                expected[row, :, column] = states[number, :, place]
    assert torch.equal(cache.layers[0].keys, expected) and torch.equal(values, -keys)
    seen = expected[:, :, :5] if rows is None else expected[rows, :, :5]
    assert torch.equal(keys, seen)


@pytest.mark.parametrize("kept_rows", [[0, 1, 2], [2, 1], []])
@pytest.mark.parametrize("width", [4, WIDTH, 8])
def test_rows_leave_and_enter_at_the_right_edge(kept_rows, width):
    cache, keys = make_cache()
    new_rows = [10 + row for row in range(4 - len(kept_rows))]
    cache.fit([*kept_rows, *new_rows], 4, width, torch.device("cpu"))
    assert cache.layers[0].keys.shape == (4, 1, width, 2)
    size = min(width, WIDTH)
    for row, source in enumerate(kept_rows):
        assert torch.equal(cache.layers[0].keys[row, :, width - size :], keys[source, :, WIDTH - size :])
        assert not cache.layers[0].keys[row, :, : width - size].any()
    assert not cache.layers[0].keys[len(kept_rows) :].any()


def fill(cache, row_ids, num_lines, width, states):
    cache.fit(row_ids, num_lines, width, torch.device("cpu"))
    cache.select(Pass(None, torch.arange(1).expand(num_lines, -1), NO_SCORES, width, start=0))
    cache.layers[0].update(states, states)
    return cache.layers[0].keys


def test_the_next_rows_are_kept_in_the_same_memory_if_there_is_enough_of_it():
    cache = CanvasCache(1, is_static=True)
    states = torch.full((4, 1, 1, 2), torch.nan)
    first = fill(cache, [0, 1, 2], 4, 6, states)
    assert not first[:, :, 1:].any()

    cache.fit([2], 1, 6, torch.device("cpu"))
    assert cache.layers[0].keys.shape == (1, 1, 6, 2) and cache.layers[0].keys.data_ptr() == first.data_ptr()

    cache.reset()
    with torch.inference_mode():
        smaller = fill(cache, [0, 1], 2, 12, torch.ones(2, 1, 1, 2))
    assert smaller.shape == (2, 1, 12, 2) and smaller.data_ptr() == first.data_ptr()
    # Nothing of the rows before.
    assert smaller[:, :, :1].all() and not smaller[:, :, 1:].any()

    cache.reset()
    assert fill(cache, [0], 1, 6, torch.ones(1, 2, 1, 3)).data_ptr() == first.data_ptr()
    for rows, states in ((8, torch.ones(8, 1, 1, 2)), (1, torch.ones(1, 1, 1, 2, dtype=torch.float64))):
        cache.reset()
        assert fill(cache, list(range(rows)), rows, 6, states).dtype == states.dtype
        assert cache.layers[0].keys.data_ptr() != first.data_ptr()
