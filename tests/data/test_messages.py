# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What training learns of messages with calls of tools, thoughts and marks, and what prompts have of them."""

import json

import pytest
from datasets import Dataset, load_dataset

from hf_dparallel.data.dataset import prepare_dataset, tokenize_row
from hf_dparallel.data.prompts import tokenize_prompts

from ..fixtures.chat_templates import TEMPLATES, make_byte_tokenizer
from ..helpers import write_jsonl


def chatml(assistant: str) -> str:
    """A template of ChatML's form with other messages of the assistant; that of SmolLM2 has `{{ m.content }}`."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + assistant + "{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% endif %}"
    )


CONTENT = "{{ m.content }}"
# As Qwen2.5's and Hermes'; as DeepSeek-V3's, which takes JSON texts only; and as some of one's own.
CALL = "<tool_call>{{ c.function.name }} {{ %s }}</tool_call>{%% endfor %%}"
OBJECTS = "{% for c in m.tool_calls or [] %}" + CALL % "c.function.arguments | tojson"
TEXTS = "{% for c in m.tool_calls or [] %}" + CALL % "'' + c.function.arguments"
PLAIN = "{% for c in m.tool_calls or [] %}" + CALL % "c.function.arguments"
# As Qwen3.5's.
NAMED = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{% for name, value in c.function.arguments | items %} {{ name }}={{ value }}{% endfor %}</tool_call>{% endfor %}"
)
# As Qwen3's, in the last turn only.
THOUGHT = "{% if loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
WRITES_CALLS = {
    "objects": chatml(CONTENT + OBJECTS),
    "texts": chatml(CONTENT + TEXTS),
    "either": chatml(CONTENT + PLAIN),
}
ROME = {"city": "Rome", "days": 2}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **rest):
    return {"role": "assistant", "content": content, **rest}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tokenizer_with(template):
    return make_byte_tokenizer(template, "<|im_end|>", ("<|im_start|>", "<|im_end|>"))


def learned(template, rows):
    tokenizer = tokenizer_with(template)
    trained = prepare_dataset(rows if isinstance(rows, Dataset) else Dataset.from_list(rows), "rows", tokenizer)
    return [tokenizer.decode(row["completion_ids"]) for row in trained]


GIVEN = {
    "objects": [call("go", ROME)],
    "arguments as JSON text": [call("go", json.dumps(ROME))],
    "calls as JSON text": json.dumps([call("go", ROME)]),
    "both as JSON text": json.dumps([call("go", json.dumps(ROME))]),
}


@pytest.mark.parametrize("name", WRITES_CALLS)
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_arguments_of_calls_are_written_as_json(name, given):
    """As JSON texts, OpenAI's form, templates of objects would write them in quotes."""
    messages = [user("Where?"), assistant("", tool_calls=given)]
    written = '<tool_call>go {"city": "Rome", "days": 2}</tool_call><|im_end|>'
    assert learned(WRITES_CALLS[name], [{"messages": messages}]) == [written]
    tokenizer = tokenizer_with(WRITES_CALLS[name])
    prompt = Dataset.from_list([{"messages": [*messages, {"role": "tool", "content": "Done."}, user("So?")]}])
    assert written in tokenizer.decode(tokenize_prompts(prompt, tokenizer)[0])


@pytest.mark.parametrize("quoted", [str(ROME), json.dumps(ROME)], ids=["python", "json"])
@pytest.mark.parametrize("name", [*WRITES_CALLS, "named"])
def test_a_question_that_quotes_the_arguments_changes_no_call(name, quoted):
    template = (WRITES_CALLS | {"named": chatml(CONTENT + NAMED)})[name]
    answer = assistant("", tool_calls=[call("weather", ROME)])
    plain = learned(template, [{"messages": [user("How is it?"), answer]}])
    assert learned(template, [{"messages": [user(f"Call it with {quoted}."), answer]}]) == plain


def test_calls_without_the_function_apart():
    template = chatml(CONTENT + OBJECTS.replace("c.function", "c"))
    flat = {"name": "go", "arguments": json.dumps(ROME)}
    written = '<tool_call>go {"city": "Rome", "days": 2}</tool_call><|im_end|>'
    assert learned(template, [{"messages": [user("?"), assistant("", tool_calls=[flat])]}]) == [written]


def arguments_of(text):
    return json.loads(text.removeprefix("<tool_call>").split(" ", 1)[1].partition("</tool_call>")[0])


NESTED = [{"city": "Rome", "by": {"car": 1}}, {"x": 1, "by": {"foot": 2}, "also": [{"y": 1}, {"z": 2}]}]


def calls_of_two_tools(arguments):
    return [{"messages": [user("?"), assistant("", tool_calls=[call("do", given)])]} for given in arguments]


def test_nulls_that_datasets_adds_are_not_learned():
    """Arrow gives each call the arguments of all, at any depth."""
    rows = Dataset.from_list([*calls_of_two_tools(NESTED), {"messages": [user("?"), assistant("Yes.")]}])
    assert rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]["x"] is None
    for template in (WRITES_CALLS["objects"], WRITES_CALLS["texts"]):
        *calls, answer = learned(template, rows)
        assert [arguments_of(text) for text in calls] == NESTED
        assert answer == "Yes.<|im_end|>"
    # A row that was taken out of its dataset.
    trained = tokenize_row(rows[0], tokenizer_with(WRITES_CALLS["objects"]))
    assert arguments_of(tokenizer_with(None).decode(trained["completion_ids"])) == NESTED[0]


def test_nulls_of_json_are_learned(tmp_path):
    """JSON lines have no others than those that were written, and neither have JSON texts."""
    given = [{"city": None, "by": {"car": None}}, {"x": 1}]
    for arguments in (given, [json.dumps(each) for each in given]):
        path = write_jsonl(tmp_path / "rows.jsonl", calls_of_two_tools(arguments))
        rows = load_dataset("json", data_files=path, split="train", cache_dir=str(tmp_path))
        assert [arguments_of(text) for text in learned(WRITES_CALLS["objects"], rows)] == given


CALLING = {"tool_calls": [call("go", ROME)]}
OLD_CALL = {"function_call": {"name": "go", "arguments": json.dumps(ROME)}}
THINKING = {"reasoning_content": "Two and two."}
LEAVES_OUT = {
    "a call": (CONTENT, CALLING),
    "the old form of a call": (CONTENT + OBJECTS, OLD_CALL),
    "the arguments of a call": (CONTENT + OBJECTS.replace("c.function.arguments | tojson", "''"), CALLING),
    "the second of two calls": (
        CONTENT + "{% for c in (m.tool_calls or [])[:1] %}" + CALL % "c.function.arguments | tojson",
        {"tool_calls": [call("go", ROME), call("go", ROME)]},
    ),
    "a thought": (CONTENT + OBJECTS, THINKING),
    "a thought of another name": (THOUGHT + CONTENT, {"thought": "Two and two."}),
}


@pytest.mark.parametrize("what", LEAVES_OUT)
@pytest.mark.parametrize("content", ["", "I look."])
def test_what_the_template_leaves_out_is_refused(what, content):
    template, rest = LEAVES_OUT[what]
    (name,) = rest
    tokenizer = tokenizer_with(chatml(template))
    last = [user("2+2?"), assistant(content, **rest)]
    earlier = [*last, user("Sure?"), assistant("Yes.")]
    for messages, number in ((last, 1), (earlier, 1)):
        with pytest.raises(ValueError, match=f"Row 0 .*leaves out `{name}` of message {number}, of the assistant"):
            prepare_dataset(Dataset.from_list([{"messages": messages}]), "rows", tokenizer)
    with pytest.raises(ValueError, match=f"Row 0 .*leaves out `{name}` of message 1"):
        tokenize_prompts(Dataset.from_list([{"prompt": earlier[:-1]}]), tokenizer)


def test_results_of_tools_that_the_template_leaves_out_are_refused():
    """As Phi-3's, which knows no tools."""
    known = TEMPLATES["phi3"]
    tokenizer = make_byte_tokenizer(known.template, known.eos, known.special)
    messages = [user("?"), assistant("I look."), {"role": "tool", "content": "4"}, assistant("It is 4.")]
    with pytest.raises(ValueError, match="leaves out `content` of message 2, of the tool"):
        tokenize_row({"messages": messages}, tokenizer)


def test_the_text_beside_a_call_is_learned_or_refused():
    """Llama 3.1's template writes a call alone."""
    messages = [user("?"), assistant("I look.", **CALLING)]
    alone = chatml("{% if m.tool_calls %}" + OBJECTS + "{% else %}" + CONTENT + "{% endif %}")
    with pytest.raises(ValueError, match="leaves out a part of the answer's `content`"):
        tokenize_row({"messages": messages}, tokenizer_with(alone))
    assert learned(chatml(CONTENT + OBJECTS), [{"messages": messages}])[0].startswith("I look.<tool_call>go")


def test_thoughts_before_the_last_answer_are_those_of_the_template():
    template = chatml(THOUGHT + CONTENT)
    messages = [user("2+2?"), assistant("4", **THINKING), user("Sure?"), assistant("Yes.", reasoning_content="Why?")]
    assert learned(template, [{"messages": messages}]) == ["<think>Why?</think>Yes.<|im_end|>"]
    assert learned(template, [{"messages": messages[:2]}]) == ["<think>Two and two.</think>4<|im_end|>"]
    # By two names, of which transformers reads the first.
    both = [user("2+2?"), assistant("4", **THINKING, thinking="Two and two.")]
    assert learned(template, [{"messages": both}]) == ["<think>Two and two.</think>4<|im_end|>"]
    with pytest.raises(ValueError, match="leaves out `thinking` of message 1"):
        learned(template, [{"messages": [user("2+2?"), assistant("4", **THINKING, thinking="Another one.")]}])


@pytest.mark.parametrize("thought", ["<think>A</think>B", "<think>\nA\n</think>\n\nB", "A</think>B"])
def test_a_thought_in_the_text_is_learned_or_refused(thought):
    split = "{% set parts = m.content.split('</think>') %}"
    writes = split + "<think>\n{{ parts[0].split('<think>')[-1].strip() }}\n</think>\n\n{{ parts[-1].strip() }}"
    (text,) = learned(chatml(writes), [{"messages": [user("?"), assistant(thought)]}])
    assert text == "<think>\nA\n</think>\n\nB<|im_end|>"
    # As R1's, for turns that are over.
    with pytest.raises(ValueError, match="leaves out a part of the answer's `content`"):
        learned(chatml(split + "{{ parts[-1] }}"), [{"messages": [user("?"), assistant(thought)]}])


MARKED = [
    ("weight", 0, 1),
    ("weight", 0.5, 1.0),
    ("train", False, True),
    ("train_on_turn", False, True),
    ("training", "false", "True"),
    ("trainable", False, True),
    ("train_detail", [{"begin_offset": 0, "end_offset": 2, "train": False}], None),
    ("loss", False, True),
    ("loss_mask", 0, 1),
    ("loss_mask", [1, 0], [1, 1]),
    ("loss_weight", 0.0, 1.0),
    ("masked", True, False),
    ("mask", 1, 0),
]


@pytest.mark.parametrize(("name", "no", "yes"), MARKED)
def test_answers_that_are_marked_as_not_learned_are_refused(name, no, yes):
    template = chatml(CONTENT)
    with pytest.raises(ValueError, match=f"Row 0 of `rows`: The answer has `{name}`.*Drop such rows"):
        learned(template, [{"messages": [user("?"), assistant("Wrong.", **{name: no})]}])
    # Only the last answer is learned.
    earlier = [user("?"), assistant("Wrong.", **{name: no}), user("?"), assistant("Right.", **{name: yes})]
    assert learned(template, [{"messages": earlier}]) == ["Right.<|im_end|>"]


@pytest.mark.parametrize(
    "row", [{"messages": [user("?"), assistant("4")]}, {"prompt_ids": [1], "completion_ids": [2]}]
)
@pytest.mark.parametrize("mark", [{"loss_mask": [0, 1]}, {"train": False}, {"weight": 0.0}, {"train_on_turn": 0}])
def test_rows_that_are_marked_as_not_learned_are_refused(row, mark):
    tokenizer = tokenizer_with(chatml(CONTENT))
    for rows in (Dataset.from_list([row | mark]), [row | mark]):
        if isinstance(rows, list) and "messages" in row:
            continue
        with pytest.raises(ValueError, match="Row 0 of `rows`: It has `.*Drop such rows"):
            prepare_dataset(rows, "rows", tokenizer)
    assert len(prepare_dataset(Dataset.from_list([row | {"weight": 1.0, "loss_mask": [1]}]), "rows", tokenizer)) == 1


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("go", "has the call go?, which must have `name` and `arguments`"),
        ([call("go", "Rome")], "calls `go` with the arguments 'Rome'. They must be an object"),
        ([call("go", '"{}"')], "They must be an object, or its JSON text"),
        ([{"function": {"arguments": "{}"}}], "has the call {.*}, which must have `name` and `arguments`"),
        (
            [{"function": {"name": "go", "parameters": {"city": "Rome"}}}],
            "has the call {.*}, which must have `name` and `arguments`",
        ),
    ],
)
def test_calls_that_cannot_be_read_are_refused(calls, message):
    row = {"messages": [user("?"), assistant("", tool_calls=calls)]}
    with pytest.raises(ValueError, match=f"Message 1 of `messages` .*{message}"):
        tokenize_row(row, tokenizer_with(WRITES_CALLS["objects"]))


# As Alpaca's, which begins with an instruction and has no generation prompt.
PREAMBLE = "It is 4. {% for m in messages %}{{ m.role + ': ' if m.role == 'user' }}{{ m.content + ' ' }}{% endfor %}"
# As LLaDA's, which always ends with its generation prompt.
ALWAYS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


@pytest.mark.parametrize("answer", ["It is 4.", "It is 4. It is 4.", "4."])
def test_an_answer_that_equals_the_beginning_of_the_template_is_learned(answer):
    (text,) = learned(PREAMBLE, [{"messages": [user("2+2?"), assistant(answer)]}])
    assert text == f"{answer} <|im_end|>"


@pytest.mark.parametrize("answer", ["4", "<|im_start|>assistant\n", "assistant\n"])
def test_an_answer_that_equals_the_end_of_the_template_is_learned(answer):
    (text,) = learned(ALWAYS, [{"messages": [user("2+2?"), assistant(answer)]}])
    assert text == f"{answer}<|im_end|>"


def test_a_template_whose_end_cannot_be_told_is_refused():
    with pytest.raises(ValueError, match="so that the end of an answer cannot be told"):
        learned(f"Be brief.\n{ALWAYS}", [{"messages": [user("2+2?"), assistant("4")]}])


@pytest.mark.parametrize("name", ["prompt", "completion"])
def test_json_texts_of_messages_are_refused(name):
    """They would be learned as plain text."""
    row = {"prompt": "2+2?", "completion": "4", name: json.dumps([user("2+2?")])}
    with pytest.raises(ValueError, match=f"`{name}` is the JSON text of messages. Parse it"):
        tokenize_row(row, tokenizer_with(chatml(CONTENT)))
    assert tokenize_row(row | {name: "[4, 5]"}, tokenizer_with(chatml(CONTENT)))
