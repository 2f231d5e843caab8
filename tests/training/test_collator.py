# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.

import pytest
import torch
from torch.utils.data import DataLoader

from hf_dparallel import DataCollatorForSemiAutoregressiveMasking
from hf_dparallel.training.window_collator import WindowCollator

from ..helpers import refuses


MASK, EOS = 0, 99


def make_collator(**settings):
    defaults = {"mask_token_id": MASK, "eos_token_id": EOS, "block_length": 4, "max_length": 24}
    return DataCollatorForSemiAutoregressiveMasking(**(defaults | settings))


def make_row(prompt_length, completion_length, first=1):
    ids = list(range(first, first + prompt_length + completion_length - 1))
    return {"prompt_ids": ids[:prompt_length], "completion_ids": [*ids[prompt_length:], EOS]}


ROWS = [make_row(3, 10), make_row(5, 1, 20), make_row(2, 22, 30), make_row(7, 8, 60)]


def padded(row, length=24):
    ids = row["prompt_ids"] + row["completion_ids"]
    return ids + [EOS] * (length - len(ids))


def test_literal_tensors():
    collator = make_collator(block_length=2, max_length=8, seed=6)
    batch = collator([{"prompt_ids": [1, 2], "completion_ids": [11, 12, 13, EOS]}])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[1, 2, 11, 12, 0, 99, 0, 0], [1, 2, 11, 12, 13, 0, 0, 0]],
        "attention_mask": [[1] * 8, [1] * 8],
        "labels": [[-100, -100, -100, -100, 13, -100, -100, -100], [-100, -100, -100, -100, -100, 99, -100, -100]],
    }
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_literal_tensors_when_everything_is_masked():
    # With probability 1 nothing is left to chance but the block, and here there is one block.
    collator = make_collator(block_length=4, max_length=7, mask_ratio=1.0)
    batch = collator([{"prompt_ids": [1, 2], "completion_ids": [11, EOS]}])
    assert batch["input_ids"].tolist() == [[1, 2, 0, 0, 0, 0, 0], [1, 2, 11, 99, 99, 99, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 11, 99, 99, 99, -100], [-100] * 7]


def test_literal_tensors_of_random_masking():
    collator = make_collator(max_length=6, mask_ratio=1.0, masking="random", complementary_masking=False)
    batch = collator([{"prompt_ids": [1, 2], "completion_ids": [11, EOS]}])
    assert batch["input_ids"].tolist() == [[1, 2, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, 11, 99, 99, 99]]


def active_block(row, view_pair, block_length, max_length):
    """The block that two complementary views share, and a check that all else is as it should be."""
    prompt_length, clean = len(row["prompt_ids"]), padded(row, max_length)
    (first, second), (labels, other_labels) = view_pair
    scored = [i for i in range(max_length) if labels[i] != -100 or other_labels[i] != -100]
    block = (scored[0] - prompt_length) // block_length
    start, end = prompt_length + block * block_length, min(prompt_length + (block + 1) * block_length, max_length)
    assert scored == list(range(start, end))
    assert all((labels[i] == -100) != (other_labels[i] == -100) for i in scored)
    for view, view_labels in ((first, labels), (second, other_labels)):
        assert view[:start] == clean[:start]
        assert view[end:] == [MASK] * (max_length - end)
        for i in range(start, end):
            assert (view[i], view_labels[i]) in ((MASK, clean[i]), (clean[i], -100))
    return block


@pytest.mark.parametrize("block_length", [1, 3, 4, 32])
@pytest.mark.parametrize("mask_ratio", [0.5, 0.1, 1.0, "random"])
def test_two_views_cover_the_active_block(block_length, mask_ratio):
    for seed in range(5):
        collator = make_collator(block_length=block_length, mask_ratio=mask_ratio, seed=seed)
        batch = {name: tensor.tolist() for name, tensor in collator(ROWS).items()}
        for index, row in enumerate(ROWS):
            pair = [(batch[name][index], batch[name][index + len(ROWS)]) for name in ("input_ids", "labels")]
            block = active_block(row, pair, block_length, 24)
            assert 0 <= block < -(-len(row["completion_ids"]) // block_length)


@pytest.mark.parametrize(("completion_length", "num_blocks"), [(1, 1), (4, 1), (5, 2), (8, 2), (16, 4)])
def test_blocks_with_completion_tokens_are_drawn_uniformly(completion_length, num_blocks):
    row = make_row(3, completion_length)
    collator = make_collator()
    counts = [0] * num_blocks
    for epoch in range(400):
        collator.set_epoch(epoch)
        labels = collator([row])["labels"]
        start = int((labels != -100).any(dim=0).nonzero()[0])
        counts[(start - 3) // 4] += 1
    assert min(counts) > 0.7 * 400 / num_blocks


@pytest.mark.parametrize("mask_ratio", [0.2, 0.5, 0.8, "random"])
def test_tokens_are_masked_with_the_given_probability(mask_ratio):
    collator = make_collator(block_length=16, mask_ratio=mask_ratio, complementary_masking=False)
    fractions = []
    for epoch in range(300):
        collator.set_epoch(epoch)
        fractions.append((collator([make_row(3, 16)])["labels"] != -100).sum().item() / 16)
    expected = 0.5 if mask_ratio == "random" else mask_ratio
    assert sum(fractions) / 300 == pytest.approx(expected, abs=0.05)
    # Drawn anew for each row, the fraction itself is uniform rather than binomial.
    assert (min(fractions) < 0.1 and max(fractions) > 0.9) == (mask_ratio == "random")


def test_random_masking_covers_the_response():
    collator = make_collator(masking="random")
    batch = collator(ROWS)
    for index, row in enumerate(ROWS):
        scored, start = batch["labels"][[index, index + len(ROWS)]] != -100, len(row["prompt_ids"])
        assert scored.sum(dim=0).tolist() == [0] * start + [1] * (24 - start)
        for view in (index, index + len(ROWS)):
            masked = batch["input_ids"][view] == MASK
            assert torch.equal(masked, batch["labels"][view] != -100)


def trajectory_row(steps, prompt_length=2):
    ids = list(range(10, 10 + len(steps)))
    return {"prompt_ids": [1] * prompt_length, "completion_ids": [*ids[:-1], EOS], "commit_step": steps}


@pytest.mark.parametrize(("mask_ratio", "num_masked"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.6, 3), (1.0, 4)])
def test_trajectory_masking_masks_what_was_committed_last(mask_ratio, num_masked):
    collator = make_collator(masking="trajectory", mask_ratio=mask_ratio, max_length=12)
    row = trajectory_row([3, 0, 2, 1, 5, 7, 4, 6])
    blocks = set()
    for epoch in range(20):
        collator.set_epoch(epoch)
        first, second = (collator([row])["labels"][view, 2:] != -100 for view in range(2))
        block = int((first | second).nonzero()[0]) // 4
        steps = torch.tensor(row["commit_step"])[4 * block : 4 * block + 4]
        masked = first[4 * block : 4 * block + 4]
        assert masked.sum() == num_masked
        assert sorted(steps[masked].tolist()) == sorted(steps.tolist())[4 - num_masked :]
        assert torch.equal(second[4 * block : 4 * block + 4], ~masked)
        blocks.add(block)
    assert blocks == {0, 1}


def test_trajectory_masking_puts_tokens_of_one_pass_in_random_order():
    collator = make_collator(masking="trajectory", complementary_masking=False, max_length=8)
    drawn = set()
    for epoch in range(40):
        collator.set_epoch(epoch)
        drawn.add(tuple((collator([trajectory_row([0, 1, 1, 1])])["labels"][0, 2:6] != -100).tolist()))
    assert drawn == {(False, True, True, False), (False, True, False, True), (False, False, True, True)}


def test_trajectory_masking_takes_padding_for_committed_with_the_end():
    collator = make_collator(masking="trajectory", mask_ratio=0.75, complementary_masking=False, max_length=6)
    for epoch in range(10):
        collator.set_epoch(epoch)
        # The end token and the padding after it were committed in pass 3, the first token in pass 5.
        labels = collator([trajectory_row([5, 3])])["labels"][0, 2:]
        assert labels[0] == 10 and (labels[1:] == EOS).sum() == 2


def test_trajectory_masking_of_all_blocks_gives_the_states_of_consistency_distillation():
    """Any number of tokens decided, in the teacher's order; all that remain are scored."""
    settings = {"masking": "trajectory", "mask_ratio": "random", "complementary_masking": False}
    collator = make_collator(block_length=8, max_length=10, **settings)
    row = trajectory_row([0, 1, 2, 3, 4, 5, 6, 7])
    counts = set()
    for epoch in range(200):
        collator.set_epoch(epoch)
        scored = collator([row])["labels"][0, 2:] != -100
        assert scored.tolist() == sorted(scored.tolist())
        counts.add(int(scored.sum()))
    assert counts == set(range(1, 9))


@pytest.mark.parametrize("steps", [[0], list(range(11))])
def test_steps_that_do_not_fit(steps):
    row = trajectory_row(list(range(8))) | {"commit_step": steps}
    with pytest.raises(ValueError, match=f"`commit_step` .* {len(steps)} for 8"):
        make_collator(masking="trajectory")([row])


@pytest.mark.parametrize("steps", [None, [None] * 8, [0.5] * 8, [-1] * 8, 1])
def test_steps_that_are_none(steps):
    row = trajectory_row(list(range(8))) | {"commit_step": steps}
    with pytest.raises(ValueError, match="`commit_step` .*out `masking`"):
        make_collator(masking="trajectory")([row])


def test_masks_do_not_depend_on_the_batch():
    batch = make_collator()(ROWS)
    for index, row in enumerate(ROWS):
        alone = make_collator()([row])
        for name, tensor in batch.items():
            assert torch.equal(tensor[[index, index + len(ROWS)]], alone[name])


def test_the_first_view_does_not_depend_on_the_second():
    single = make_collator(complementary_masking=False)
    assert single.num_views == 1
    assert torch.equal(single(ROWS)["input_ids"], make_collator()(ROWS)["input_ids"][: len(ROWS)])


def test_masks_are_a_function_of_row_epoch_and_seed():
    torch.manual_seed(1)
    collator = make_collator(seed=3)
    first = collator(ROWS)["input_ids"]
    torch.manual_seed(2)
    assert torch.equal(collator(ROWS)["input_ids"], first)
    collator.set_epoch(1)
    assert not torch.equal(collator(ROWS)["input_ids"], first)
    collator.set_epoch(0)
    assert torch.equal(collator(ROWS)["input_ids"], first)
    assert not torch.equal(make_collator(seed=4)(ROWS)["input_ids"], first)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    make_collator(mask_ratio="random")(ROWS)
    assert torch.equal(torch.get_rng_state(), before)


def test_row_types():
    as_tensors = [{name: torch.tensor(ids) for name, ids in row.items()} for row in ROWS]
    as_arrays = [{name: ids.numpy().astype("uint16") for name, ids in row.items()} for row in as_tensors]
    for rows in (as_tensors, as_arrays):
        assert torch.equal(make_collator()(rows)["input_ids"], make_collator()(ROWS)["input_ids"])


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_workers_see_the_epoch(persistent_workers):
    rows = ROWS * 2
    collator = make_collator()
    plain = DataLoader(rows, batch_size=3, collate_fn=collator)
    workers = DataLoader(rows, batch_size=3, collate_fn=collator, num_workers=2, persistent_workers=persistent_workers)
    epochs = []
    for epoch in range(2):
        collator.set_epoch(epoch)
        epochs.append(torch.cat([batch["input_ids"].flatten() for batch in workers]))
        assert torch.equal(epochs[-1], torch.cat([batch["input_ids"].flatten() for batch in plain]))
    assert not torch.equal(*epochs)


# The setting that the error is about is the first one.
@pytest.mark.parametrize(
    "settings",
    [
        {"block_length": 0},
        {"block_length": 2.5},
        {"max_length": -1},
        *({"mask_ratio": ratio} for ratio in (0.0, 1.5, "half", None)),
        {"masking": "blocks"},
    ],
)
def test_bad_settings(settings):
    with refuses([*settings][0]) as caught:
        make_collator(**settings)
    assert caught.value.value == [*settings.values()][0]


@pytest.mark.parametrize(
    ("row", "setting", "value"),
    [
        (make_row(10, 15), "max_length", 24),
        ({"prompt_ids": [1, MASK], "completion_ids": [1]}, "mask_token_id", 0),
        ({"prompt_ids": [1], "completion_ids": [MASK, 1]}, "mask_token_id", 0),
        ({"prompt_ids": [1, 100], "completion_ids": [1]}, "vocab_size", 100),
    ],
)
def test_rows_that_do_not_go_with_the_settings(row, setting, value):
    with refuses(setting) as caught:
        make_collator(vocab_size=100)([ROWS[0], row])
    assert caught.value.value == value


def test_a_row_without_completion():
    with pytest.raises(ValueError, match="`completion_ids` .*got None"):
        make_collator()([ROWS[0], {"prompt_ids": [1], "text": "a"}])


def test_windows_of_a_causal_past_have_a_mask():
    with refuses("block_length", "at least 2"):
        WindowCollator(MASK, EOS, block_length=1)


def test_masks_further_from_the_beginning_of_a_window_weigh_less():
    collator = WindowCollator(MASK, EOS, block_length=4)
    batch = collator(
        [{"prompt_ids": [1, 2], "completion_ids": [3, 4, 5, 6, 7]}, {"prompt_ids": [1], "completion_ids": [2]}]
    )
    assert batch["weights"].shape == batch["labels"].shape == (2, 6)
    torch.testing.assert_close(batch["weights"][0], torch.tensor([1, 0.8, 0.64, 1, 0.8, 0.64]))
