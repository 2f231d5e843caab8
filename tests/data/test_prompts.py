# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The door for data: shapes of data sets through chat templates of known models, beside a renderer of our own."""

import json

import pytest
from datasets import Dataset
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import processors

from hf_dparallel.data.chats import encode_text, render_chat
from hf_dparallel.data.dataset import prepare_dataset, tokenize_row
from hf_dparallel.data.messages import read_messages
from hf_dparallel.data.prompts import encode_prompt, read_example, tokenize_prompts

from ..fixtures.chat_templates import TEMPLATES, make_byte_tokenizer


def render_by_hand(known, messages, **arguments) -> str:
    """Renders the prompt by jinja2 alone."""

    def raise_exception(message):
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    special = {"bos_token": known.special[0], "eos_token": known.eos}
    return environment.from_string(known.template).render(
        messages=messages, add_generation_prompt=True, **special, **arguments
    )


def say(role, content, keys=("role", "content")):
    return dict(zip(keys, (role, content), strict=True))


USER, ANSWER, SYSTEM = say("user", "Two and two?"), say("assistant", "It is 4."), say("system", "Only add.")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SHAREGPT = [say("human", "Two and two?", ("from", "value")), say("gpt", "It is 4.", ("from", "value"))]
PARTS = [
    say("user", [{"type": "text", "text": "Two and "}, {"type": "text", "text": "two?"}]),
    say("assistant", [{"type": "text", "text": "It is 4."}]),
]
ROUNDS = [USER, say("assistant", "Four."), say("user", "Sure?"), ANSWER]
# What a row is read as: messages before the answer, and tools.
SHAPES = {
    "messages": ({"messages": [USER, ANSWER]}, [USER]),
    "messages of several rounds": ({"messages": ROUNDS}, ROUNDS[:-1]),
    "messages with a system": ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER]),
    "messages in parts": ({"messages": PARTS}, [USER]),
    "messages with nulls": ({"messages": [{**USER, "tool_calls": None}, {**ANSWER, "name": None}]}, [USER]),
    "prompt and completion": ({"prompt": [USER], "completion": [ANSWER]}, [USER]),
    "with a system": ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER]),
    "sharegpt": ({"conversations": SHAREGPT}, [USER]),
    "conversations in roles": ({"conversations": [USER, ANSWER]}, [USER]),
    "conversation": ({"conversation": [{**USER, "turn": 1}, {**ANSWER, "turn": 1}], "language": "English"}, [USER]),
    "no system": ({"conversations": SHAREGPT, "system": "", "tools": "[]"}, [USER]),
    "tools": ({"messages": [USER, ANSWER], "tools": [TOOL]}, [USER], [TOOL]),
    "tools as JSON text": ({"messages": [USER, ANSWER], "tools": json.dumps([TOOL])}, [USER], [TOOL]),
    "ultrachat": ({"prompt": "Two and two?", "prompt_id": "a1", "messages": [USER, ANSWER]}, [USER]),
    "identifiers": ({"id": 7, "source": "web", "messages": [USER, ANSWER], "score": 0.5}, [USER]),
    "other names of roles": ({"messages": [say("Human", "Two and two?"), say("Assistant", "It is 4.")]}, [USER]),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_shape_through_the_templates_of_known_models(name):
    known = TEMPLATES[name]
    tokenizer = make_byte_tokenizer(known.template, known.eos, known.special)
    for shape, (row, messages, *tools) in SHAPES.items():
        row = Dataset.from_list([row])[0]
        refusal = None
        if messages[0]["role"] == "system" and not known.has_system:
            refusal = "The chat template refuses the messages"
        if tools and not known.has_tools:
            refusal = "The chat template does not use `tools`"
        if refusal is not None:
            with pytest.raises(ValueError, match=refusal):
                tokenize_row(row, tokenizer)
            continue
        prompt = render_by_hand(known, messages, tools=tools[0] if tools else None)
        assert tokenizer.decode(encode_prompt(tokenizer, read_example(row))) == prompt, shape
        trained = tokenize_row(row, tokenizer)
        assert tokenizer.decode(trained["prompt_ids"]) == prompt, shape
        assert tokenizer.decode(trained["completion_ids"]) == f"{known.before_answer}It is 4.{known.end}", shape
        assert trained["completion_ids"].count(tokenizer.eos_token_id) == 1


def test_arguments_of_a_row_for_its_template():
    known = TEMPLATES["qwen3"]
    tokenizer = make_byte_tokenizer(known.template, known.eos, known.special)
    rows = Dataset.from_list([{"messages": [USER, ANSWER], "chat_template_kwargs": {"enable_thinking": False}}])
    prompt = render_by_hand(known, [USER], enable_thinking=False)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert (
        tokenizer.decode(tokenize_prompts(rows, tokenizer, chat_template_kwargs={"enable_thinking": True})[0])
        == prompt
    )
    trained = prepare_dataset(rows, "d", tokenizer)[0]
    assert tokenizer.decode(trained["prompt_ids"]) == prompt
    assert tokenizer.decode(trained["completion_ids"]) == "It is 4.<|im_end|>"


REFUSED = [
    ({"messages": "Human: Two and two?\nAssistant: 4"}, "`messages` must be a list of messages .* got the str 'Human"),
    ({"messages": json.dumps([USER, ANSWER])}, "`messages` must be a list of messages .* got the str"),
    ({"conversations": {"from": ["human"], "value": ["Two?"]}}, "`conversations` must be a list .* got the dict"),
    ({"messages": ["Two and two?", "4"]}, "Message 0 of `messages` must have `role` and `content`, got 'Two"),
    ({"messages": [say("bing chat", "Two?")]}, "has the role 'bing chat'. Rename it to one of user, assistant"),
    ({"messages": [say("function_call", "{}"), ANSWER]}, "has the role 'function_call'"),
    ({"messages": [say("user", [{"type": "image", "url": "x"}])]}, "Message 0 .* has the part {'type': 'image'"),
    ({"messages": [say("user", 4), say("assistant", 4)]}, "must have a text as `content`, got 4"),
    *(({"messages": [say("user", empty), ANSWER]}, "of the user, must not be empty") for empty in (None, "", " \n")),
    ({"messages": [{"role": "user", "text": "Two?"}, ANSWER]}, "of the user, must not be empty"),
    ({"messages": [USER, say("assistant", "")]}, "Message 1 .* of the assistant, must not be empty"),
    ({"messages": [ANSWER]}, "`messages` has an empty prompt"),
    ({"messages": [USER, ANSWER, ANSWER]}, "The prompt ends with a message of the assistant"),
    ({"messages": [USER, ANSWER], "images": ["x.png"]}, "The column `images` belongs to the prompt"),
    ({"messages": [USER, ANSWER], "conversations": SHAREGPT}, "`messages` and `conversations` both have a chat"),
    ({"messages": [USER, ANSWER], "completion": [ANSWER]}, "`messages` and `completion` both have a chat"),
    ({"messages": [USER, ANSWER], "prompt": "Another?"}, "`messages` and `prompt` both have a chat"),
    ({"messages": [USER, ANSWER], "system": "Only subtract."}, "The column `system` belongs to the prompt"),
    ({"messages": [USER, ANSWER], "tools": "add"}, "`tools` must be a list or its JSON text, got 'add'"),
    (
        {"messages": [USER, ANSWER], "chat_template_kwargs": {"enable_thnking": 1}},
        "The chat template does not use `enable_thnking`",
    ),
    ({"prompt": "Two?", "tools": [TOOL]}, "`tools` belongs to a chat, and `prompt` is a text"),
    ({"prompt": "Two?", "completion": [ANSWER]}, "`prompt` and `completion` must both be texts, or both lists"),
    ({"prompt": " "}, "`prompt` has an empty prompt"),
    ({"instruction": "Add.", "output": "4"}, r"needs the columns .* It has \['instruction', 'output'\]"),
]


def test_a_chat_goes_on_after_an_empty_answer():
    chat = [USER, say("assistant", ""), USER]
    assert read_messages(chat, "messages") == chat


@pytest.mark.parametrize(("row", "message"), REFUSED)
def test_what_is_not_known_is_refused(row, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        tokenize_row(Dataset.from_list([row])[0], make_byte_tokenizer(TEMPLATES["llama3"].template))


def test_errors_name_the_row():
    rows = Dataset.from_list([{"messages": [USER, ANSWER]}, {"messages": [say("user", ""), ANSWER]}])
    tokenizer = make_byte_tokenizer(TEMPLATES["llama3"].template)
    with pytest.raises(
        ValueError, match="Row 1 of `dataset`: Message 0 of `messages`, of the user, must not be empty"
    ):
        tokenize_prompts(rows, tokenizer)
    with pytest.raises(ValueError, match="Row 1 of `train_dataset`: Message 0 of `messages`"):
        prepare_dataset(rows, "train_dataset", tokenizer)


def test_a_template_that_leaves_out_the_system_message():
    template = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    tokenizer = make_byte_tokenizer(template)
    with pytest.raises(ValueError, match="The chat template leaves out the system message"):
        render_chat(tokenizer, [SYSTEM, USER])


# As Alpaca's, whose beginning ends as answers do, and which has no generation prompt of its own.
ALPACA = (
    "Below is a request. It is 4. {% for m in messages %}{{ m.role + ': ' if m.role == 'user' }}{{ m.content + ' ' }}"
    "{% endfor %}"
)


@pytest.mark.parametrize("answer", ["It is 4.", "4.", "No. It is 4", "."])
def test_the_beginning_of_a_template_cuts_no_answer(answer):
    tokenizer = make_byte_tokenizer(ALPACA)
    row = tokenize_row({"messages": [USER, say("assistant", answer)]}, tokenizer)
    assert tokenizer.decode(row["completion_ids"]).removesuffix("</s>").rstrip() == answer


@pytest.mark.parametrize(
    ("single", "before"), [("<s> $A </s>", [True]), ("$A </s>", []), ("<s> $A", [True]), ("$A", [])]
)
def test_texts_begin_as_the_tokenizer_says_and_do_not_end(single, before):
    tokenizer = make_byte_tokenizer()
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    text = "".join("<s>" for _ in before) + "Two?"
    assert tokenizer.decode(encode_text(tokenizer, "Two?")) == text
    assert tokenizer.decode(encode_text(tokenizer, "<s>Two?")) == "<s>Two?"
    trained = tokenize_row({"prompt": "Two?", "completion": "4"}, tokenizer)
    assert [tokenizer.decode(trained[name]) for name in ("prompt_ids", "completion_ids")] == [text, "4</s>"]


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas", "arrow"])
def test_the_format_of_a_dataset_does_not_matter(form):
    tokenizer = make_byte_tokenizer(TEMPLATES["llama3"].template)
    rows = Dataset.from_list([{"messages": [USER, ANSWER]}])
    expected = prepare_dataset(rows, "d", tokenizer)[:]
    formatted = rows.with_format(form)
    assert prepare_dataset(formatted, "d", tokenizer)[:] == expected
    assert tokenize_prompts(formatted, tokenizer) == expected["prompt_ids"]


def test_an_answer_of_tool_calls_has_no_text():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    example = read_example({"messages": [USER, call, say("tool", "4"), ANSWER], "tools": [TOOL]})
    assert example.prompt[1] == {**call, "content": ""} and example.completion == [ANSWER]
