# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which trajectories reward functions keep."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from trl.rewards import accuracy_reward

from hf_dparallel import filter_trajectories, numeric_answer_reward
from hf_dparallel.data.rewards import score_completions

from ..helpers import make_prompts, make_tokenizer


def trajectories_with(completions: list[str], **columns) -> Dataset:
    tokenizer = make_tokenizer()
    ids = [tokenizer(text)["input_ids"] for text in completions]
    return Dataset.from_dict({"prompt": ["1"] * len(ids), "completion_ids": ids, **columns})


def test_filter_keeps_right_answers():
    rows = trajectories_with(["3 4", "3 5", "4"], answer=["#### 4", "4", "4"])
    kept = filter_trajectories(rows, make_tokenizer(), numeric_answer_reward)
    assert [row["completion_ids"] for row in kept] == [rows[0]["completion_ids"], rows[2]["completion_ids"]]


def test_filter_passes_what_trl_passes_and_needs_every_function():
    rows = trajectories_with(["3 4", "3 5"], answer=["4", "5"], messages=[[{"role": "user", "content": "1"}]] * 2)
    rows = rows.remove_columns("prompt")
    seen = {}

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        seen.update(prompts=prompts, completions=completions)
        return [0.4, None]

    kept = filter_trajectories(rows, make_tokenizer(), [reward, numeric_answer_reward], min_reward=0.5)
    assert kept["answer"][:] == ["5"]
    assert seen["completions"][0] == [{"role": "assistant", "content": "3 4"}]
    assert seen["prompts"][0] == [{"role": "user", "content": "1"}]


def test_no_rows_have_no_rewards():
    rows = trajectories_with(["3"], answer=["3"]).select([])
    assert score_completions(rows, make_tokenizer(), lambda completions, **kwargs: [1.0] * len(completions)) == []


def test_filter_with_the_math_reward_of_trl():
    tokenizer = make_tokenizer()
    rows = trajectories_with([r"\boxed{4}", "4", "5"], solution=["$4$", "$4$", "$4$"])
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    assert len(filter_trajectories(rows, tokenizer, accuracy_reward)) == 1


def test_filter_that_leaves_nothing_says_what_the_completions_look_like():
    rows = trajectories_with(["3 4"], answer=["9"])
    with pytest.raises(ValueError, match=r"None of 1 trajectories has a reward of at least `min_reward=1.0`.*'3 4'"):
        filter_trajectories(rows, make_tokenizer(), numeric_answer_reward)


def test_filter_needs_completions():
    with pytest.raises(ValueError, match=r"must have the column `completion_ids`, got \['prompt', 'answer'\]"):
        filter_trajectories(make_prompts(1), make_tokenizer(), numeric_answer_reward)


@pytest.mark.parametrize("reference", [None, "", "unknown"])
def test_numeric_answer_reward_without_a_number_to_compare_with(reference):
    assert numeric_answer_reward(["4"], answer=[reference]) == [None]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so $1,250.", 1250),
        ("#### 1,250,000.5", 1250000.5),
        ("-3", -3),
        ("it is 2.50 now", 2.5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("$.50", 0.5),
        ("...5", 5),
        ("No.5", 5),
        ("1,2", 2),
        ("1, 2", 2),
        ("1,2500", 2500),
        ("1234,567", 567),
        (r"\boxed{1{,}250}", 1250),
        (r"\boxed{1\,250\,000}", 1250000),
        (r"1,\!250", 1250),
        (r"(1{,}2)", 2),
        ("between 10-15", 15),
        ("5%-10%", 10),
        ("10 - 15", 15),
        ("f(x)-4", 4),
        ("The answer is \u22125.", -5),
        ("x=\u20135", -5),
        ("\u22121,250.5", -1250.5),
        ("pages 10\u201315", 15),
        ("10 \u2212 15", 15),
        ("= - 7", -7),
        ("- 7", -7),
        ("Answers:\n- 7", 7),
        ("1\u202f250", 1250),
        ("1 250 000", 1250000),
        ("1234 567", 567),
        ("1.5e3", 1500),
        ("2E-1.", 0.2),
        ("3e1000000000", 1000000000),
        ("the answer is 3/4", 0.75),
        (r"-\frac{3}{4}", -0.75),
        ("3/0", 0),
        ("on 10/15/2024", 2024),
        ("2,5", 2.5),
        ("12,34", 34),
        (r"\boxed{42}. Check: 6 * 7 is right", 42),
        (r"\boxed{\frac{1}{2}}, not 1", 0.5),
        (r"\boxed{none} 4", 4),
        ("Answer: 42 (see step 3)", 42),
        ("It is (about 3).", 3),
        ("x=-4", -4),
        ("3 .", 3),
        ([{"role": "assistant", "content": "The answer is 7 ."}], 7),
    ],
)
def test_numeric_answer_reward_reads_numbers_as_people_write_them(text, number):
    assert numeric_answer_reward([text], answer=[number]) == [1.0]
    assert numeric_answer_reward([text], answer=[number + 1]) == [0.0]
    assert numeric_answer_reward(["none"], answer=[number]) == [0.0]


def test_numbers_of_any_length_are_compared_exactly():
    assert numeric_answer_reward(["9007199254740993"], answer=["9007199254740992"]) == [0.0]
    assert numeric_answer_reward(["9" * 5000], answer=["9" * 5000]) == [1.0]
    assert numeric_answer_reward(["1/3", "42.0"], answer=["2/6", 42]) == [1.0, 1.0]
    assert numeric_answer_reward(["1" * 40 + "2"], answer=["1" * 40 + "3"]) == [0.0]


@pytest.mark.parametrize(("written", "other"), [("\u22125", "5"), ("1/4", "3/4"), (r"\frac{1}{2}", "2"), ("1e3", "3")])
def test_no_number_is_read_as_another(written, other):
    for completion, answer in ((written, other), (other, written)):
        assert numeric_answer_reward([completion], answer=[answer]) == [0.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (numeric_answer_reward, "`numeric_answer_reward` cannot be called .*missing a required argument: 'answer'"),
        (lambda prompts, completions, completion_ids: [1.0], r"got an unexpected keyword argument 'solution'"),
    ],
)
def test_a_reward_function_gets_the_columns_it_takes(function, message):
    rows = trajectories_with(["3 4"], solution=["4"])
    with pytest.raises(ValueError, match=f"(?s){message}.*Rename the column"):
        filter_trajectories(rows, make_tokenizer(), function)


async def asynchronous(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda completions, **kwargs: [1.0] * 2, "2 of them"),
        (lambda completions, **kwargs: [1.0] * 6, "6 of them"),
        (lambda completions, **kwargs: 1.0, "float"),
        (asynchronous, "coroutine"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_reward_function_returns_a_reward_for_each_row(function, got):
    with pytest.raises(ValueError, match=f"for each of the 4 completions, got {got}"):
        filter_trajectories(trajectories_with(["1", "2", "3", "4"]), make_tokenizer(), function)


def test_a_stream_is_refused():
    rows = trajectories_with(["3 4"], answer=["4"])
    for given in (rows.to_iterable_dataset(), DatasetDict(train=rows)):
        with pytest.raises(TypeError, match=rf"must be a `datasets.Dataset`, got {type(given).__name__}"):
            filter_trajectories(given, make_tokenizer(), numeric_answer_reward)


@pytest.mark.parametrize("convert", [list, torch.tensor, tuple])
def test_rewards_may_be_numbers_of_any_kind(convert):
    rows = trajectories_with(["1", "2", "3"])
    kept = filter_trajectories(rows, make_tokenizer(), lambda completions, **kwargs: convert([1.0, 0.5, 2.0]))
    assert kept["completion_ids"][:] == [rows["completion_ids"][0], rows["completion_ids"][2]]


def test_nan_says_nothing():
    rows = trajectories_with(["1", "2"])
    functions = [lambda completions, **kwargs: [1.0, 1.0], lambda completions, **kwargs: [0.0, float("nan")]]
    for ordered in (functions, functions[::-1]):
        assert len(filter_trajectories(rows, make_tokenizer(), ordered)) == 1
