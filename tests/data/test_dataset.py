# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training data from text and chats."""

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_dparallel.data.dataset import prepare_dataset, tokenize_row


# As GSAI-ML/LLaDA-8B-Instruct has it, with its generation prompt at the end of every conversation.
LLADA_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
BOS_BEFORE_ALL = "{{ bos_token }}" + LLADA_TEMPLATE.replace("{% set content = bos_token + content %}", "")
CONDITIONAL = LLADA_TEMPLATE.replace("{{ '<|start", "{% if add_generation_prompt %}{{ '<|start") + "{% endif %}"
WITH_A_SYSTEM_MESSAGE = (
    "{% if messages[0]['role'] == 'system' %}{{ bos_token }}{% endif %}{% for message in messages %}"
    "{{ message['content'] + '<|eot_id|>' }}{% endfor %}"
)
# As Qwen3 has it, whose EOS ends a message and is followed by a line break.
CHATML = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '\n\n' }}"
    "{% if message['role'] == 'assistant' and enable_thinking is defined %}{{ '? ' }}{% endif %}"
    "{{ message['content'] + '<|eot_id|>' + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant\n\n' }}"
    "{% if enable_thinking is defined %}{{ '? ' }}{% endif %}{% endif %}"
)
SPECIAL = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "\n\n"]


def make_chat_tokenizer(template=LLADA_TEMPLATE, **special):
    words = ["<|startoftext|>", "<|endoftext|>", "user", "assistant", "system", "What", "is", "2+2?", "It", "4", "?"]
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate([*words, "unk"])}, unk_token="unk"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        additional_special_tokens=SPECIAL,
        **({"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"} | special),
    )


def chat(*contents):
    return [{"role": ("user", "assistant")[turn % 2], "content": content} for turn, content in enumerate(contents)]


@pytest.mark.parametrize("template", [LLADA_TEMPLATE, BOS_BEFORE_ALL, CONDITIONAL])
@pytest.mark.parametrize("before", [(), ("What", "It")])
def test_the_answer_of_a_chat_ends_where_the_model_ends_it(template, before):
    tokenizer = make_chat_tokenizer(template)
    prompt, completion = chat(*before, "What is 2+2?"), chat("", "It is 4")[1:]
    row = tokenize_row({"prompt": prompt, "completion": completion}, tokenizer)
    tokens = {name: tokenizer.convert_ids_to_tokens(ids) for name, ids in row.items()}
    header = ["<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n"]
    assert tokens["prompt_ids"][-8:] == ["What", "is", "2+2?", "<|eot_id|>", *header]
    assert tokens["completion_ids"] == ["It", "is", "4", "<|eot_id|>", "<|endoftext|>"]
    assert row["prompt_ids"] == tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]


def test_a_template_without_a_generation_prompt():
    tokenizer = make_chat_tokenizer(WITH_A_SYSTEM_MESSAGE)
    row = tokenize_row({"prompt": chat("What"), "completion": chat("", "It")[1:]}, tokenizer)
    assert tokenizer.convert_ids_to_tokens(row["completion_ids"]) == ["It", "<|eot_id|>", "<|endoftext|>"]


@pytest.mark.parametrize(("settings", "begins"), [({}, []), ({"enable_thinking": False}, ["?"])])
def test_messages_end_with_the_first_end_token(settings, begins):
    tokenizer = make_chat_tokenizer(CHATML, eos_token="<|eot_id|>")
    rows = Dataset.from_dict({"messages": [chat("What", "4", "What is 2+2?", "It is 4")]})
    row = prepare_dataset(rows, "rows", tokenizer, chat_template_kwargs=settings)[0]
    assert tokenizer.convert_ids_to_tokens(row["completion_ids"]) == ["It", "is", "4", "<|eot_id|>"]
    prompt = rows[0]["messages"][:-1]
    expected = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **settings)["input_ids"]
    assert row["prompt_ids"] == expected
    assert tokenizer.convert_ids_to_tokens(expected)[-1 - len(begins) :] == ["\n\n", *begins]


def test_the_end_of_a_tokenizer_without_one():
    tokenizer = make_chat_tokenizer(eos_token=None)
    rows = Dataset.from_dict({"prompt": ["What"], "completion": ["It"]})
    assert prepare_dataset(rows, "rows", tokenizer, eos_token_id=1)["completion_ids"][:] == [[8, 1]]
    with pytest.raises(ValueError, match="`processing_class` has no EOS token"):
        prepare_dataset(rows, "rows", tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "What", "completion": ""}, "Row 1 of `rows`: `completion` must not be empty, got ''"),
        ({"prompt": "What", "completion": "  "}, "`completion` must not be empty, got '  '"),
        ({"prompt": "", "completion": "It"}, r"Row 1 of `rows`: `prompt` has an empty prompt"),
        ({"prompt": "What", "completion": None}, "It has a prompt and no `completion`"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_bad_text(row, message, is_streamed):
    rows = Dataset.from_list([{"prompt": "What", "completion": "It"}, row])
    if is_streamed and row["prompt"]:
        with pytest.raises(ValueError, match=message):
            list(prepare_dataset(rows.to_iterable_dataset(), "rows", make_chat_tokenizer()))
    with pytest.raises(ValueError, match=message):
        prepare_dataset(rows, "rows", make_chat_tokenizer())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": chat("What"), "completion": "It"}, "`prompt` and `completion` must both be texts, or both lists"),
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


@pytest.mark.parametrize("completion", ["It <|endoftext|>", "It <|endoftext|> is"])
def test_a_completion_ends_with_its_first_end_token(completion):
    row = tokenize_row({"prompt": "What", "completion": completion}, make_chat_tokenizer())
    assert row["completion_ids"] == [8, 1]


def test_a_row_may_have_exactly_the_largest_length():
    rows = Dataset.from_dict({"prompt_ids": [[1, 2, 3]], "completion_ids": [[4, 5]]})
    assert len(prepare_dataset(rows, "rows", None, max_length=5)) == 1
    with pytest.raises(ValueError, match="max_length=5"):
        prepare_dataset(rows, "rows", None, max_length=4)


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
    stream = prepare_dataset(rows.to_iterable_dataset(), "rows", None, check_row=check)
    with pytest.raises(ValueError, match="Row 1 of `rows`: It must not be 3."):
        list(stream)
    with pytest.raises(ValueError, match="Row 0 of `rows`: It must not be 3."):
        prepare_dataset(rows.to_iterable_dataset().skip(1), "rows", None, check_row=check)
