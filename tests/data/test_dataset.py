# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data from text and chats."""

import pytest
from datasets import Dataset, DatasetDict
from transformers.utils import logging

from hf_dparallel.data.dataset import prepare_dataset, tokenize_row

from ..fixtures.chat_templates import TEMPLATES, make_byte_tokenizer
from ..helpers import make_tokenizer


LLADA = TEMPLATES["llada"]
BOS_BEFORE_ALL = "{{ bos_token }}" + LLADA.template.replace("{% set content = bos_token + content %}", "")
# It has no generation prompt, and raises without a message.
WITH_A_SYSTEM_MESSAGE = (
    "{% if messages[0]['role'] == 'system' %}{{ bos_token }}{% endif %}{% for message in messages %}"
    "{{ message['content'] + '<|eot_id|>' }}{% endfor %}"
)


def make_chat_tokenizer(template=LLADA.template, eos=LLADA.eos):
    return make_byte_tokenizer(template, eos, LLADA.special)


def chat(*contents):
    return [{"role": ("user", "assistant")[turn % 2], "content": content} for turn, content in enumerate(contents)]


@pytest.mark.parametrize("template", [BOS_BEFORE_ALL, WITH_A_SYSTEM_MESSAGE])
def test_the_answer_of_a_chat_ends_where_the_model_ends_it(template):
    tokenizer = make_chat_tokenizer(template)
    prompt, completion = chat("What", "It", "What is 2+2?"), chat("", "It is 4")[1:]
    row = tokenize_row({"prompt": prompt, "completion": completion}, tokenizer)
    assert tokenizer.decode(row["completion_ids"]) == "It is 4<|eot_id|><|endoftext|>"
    assert row["prompt_ids"] == tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]


def test_the_end_of_a_tokenizer_without_one():
    tokenizer = make_chat_tokenizer(eos=None)
    rows = Dataset.from_dict({"prompt": ["What"], "completion": ["It"]})
    ids = tokenizer("It")["input_ids"]
    assert prepare_dataset(rows, "rows", tokenizer, eos_token_id=1)["completion_ids"][:] == [[*ids, 1]]
    with pytest.raises(ValueError, match="`processing_class` has no EOS token"):
        prepare_dataset(rows, "rows", tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "What", "completion": ""}, "Row 1 of `rows`: It has a prompt and no `completion`"),
    ],
)
def test_bad_text(row, message):
    rows = Dataset.from_list([{"prompt": "What", "completion": "It"}, row])
    with pytest.raises(ValueError, match=message):
        prepare_dataset(rows, "rows", make_chat_tokenizer())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": chat("What"), "completion": chat("", "")[1:]},
            "Message 0 of `completion`, of the assistant, must not be empty: `content` is ''",
        ),
        ({"prompt": chat("What"), "completion": chat("", "4", "What", "It")[1:]}, "must be one message of .*'user'"),
        ({"messages": chat("What", "It", "What")}, "`messages` must end with a message of the assistant"),
        ({"messages": None}, "`messages` has an empty prompt"),
    ],
)
def test_bad_messages(row, message):
    with pytest.raises(ValueError, match=message):
        tokenize_row(row, make_chat_tokenizer())


@pytest.mark.parametrize("completion", ["It <|endoftext|>", "It <|endoftext|> \n"])
def test_a_completion_ends_with_its_first_end_token(completion):
    tokenizer = make_chat_tokenizer()
    row = tokenize_row({"prompt": "What", "completion": completion}, tokenizer)
    assert tokenizer.decode(row["completion_ids"]) == "It <|endoftext|>"


def test_text_after_the_end_of_an_answer_is_refused():
    """It would be left out."""
    for row in (
        {"prompt": "What", "completion": "It <|endoftext|> is"},
        {"messages": chat("What", "It <|endoftext|> is")},
    ):
        with pytest.raises(ValueError, match=r"`completion` goes on after its end token '<\|endoftext\|>': ' is'"):
            tokenize_row(row, make_chat_tokenizer())


@pytest.mark.parametrize("make", [list, Dataset.from_list])
def test_rows_of_more_than_the_largest_length_are_left_out(make, caplog, monkeypatch):
    rows = make([{"prompt_ids": [1, 2, 3], "completion_ids": [4] * count} for count in (3, 2, 1)])
    monkeypatch.setattr(logging.get_logger("hf_dparallel"), "propagate", True)
    kept = prepare_dataset(rows, "rows", None, max_length=5)
    assert [len(row["completion_ids"]) for row in kept] == [2, 1]
    assert "1 of 3 rows of `rows` are left out: they are longer than max_length=5. The longest has 6" in caplog.text
    with pytest.raises(ValueError, match="max_length=3. Raise it to 6"):
        prepare_dataset(rows, "rows", None, max_length=3)


@pytest.mark.parametrize("ids", [[1.0], [], [[1]], None, "a", [1, None], [1, -1], 1])
def test_ids_are_integers(ids):
    with pytest.raises(ValueError, match="completion_ids"):
        prepare_dataset([{"prompt_ids": [1], "completion_ids": ids}], "rows", None)


def test_rows_are_checked():
    def check(row):
        if row["completion_ids"] == [3]:
            raise ValueError("It must not be 3.")

    rows = Dataset.from_dict({"prompt_ids": [[1], [1]], "completion_ids": [[2], [3]]})
    with pytest.raises(ValueError, match="Row 1 of `rows`: It must not be 3."):
        prepare_dataset(rows, "rows", None, check_row=check)


def test_blank_completions_are_refused():
    with pytest.raises(ValueError, match="must not be blank"):
        tokenize_row({"prompt": "5", "completion": "  "}, make_tokenizer())


def test_several_splits_are_refused():
    splits = DatasetDict(train=Dataset.from_dict({"prompt": ["5"], "completion": ["6"]}))
    with pytest.raises(ValueError, match="`rows` must have rows, got a DatasetDict of 'train'. Use one split of it."):
        prepare_dataset(splits, "rows", make_tokenizer())
