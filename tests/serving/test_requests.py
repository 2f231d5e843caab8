# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What requests may say, and how the others are refused."""

import dataclasses
from functools import reduce

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.serving.api import Completion
from hf_dparallel.serving.engine import RequestError


CHAT = {"messages": [{"role": "user", "content": "How many pens ?"}]}
NUMBERS = ("temperature", "top_k", "entropy_threshold", "entropy_bound", "confidence_factor", "max_active_blocks")


def said(role, **fields) -> dict:
    return {"messages": [{"role": role, **fields}]}


def chat(served, **fields):
    """The prompt of a chat for the engine."""
    return Completion(CHAT | fields, served).prompt


def ids_of(served, **fields) -> list[int]:
    return chat(served, **fields).input_ids.tolist()


def test_a_plain_chat(served):
    prompt = chat(served, model="demo", user="me", metadata={"a": "b"}, temperature=None, stop=None)
    ids = served.tokenizer.apply_chat_template(CHAT["messages"], add_generation_prompt=True)["input_ids"]
    assert prompt.input_ids.tolist() == ids
    # The recipe of the model, and over it the recipe of the server.
    assert (prompt.config.max_new_tokens, prompt.config.entropy_threshold, prompt.max_tokens) == (64, 0.5, 64)


def test_content_in_parts_and_neutral_values(served):
    parts = [{"type": "text", "text": "How many"}, {"type": "text", "text": " pens ?"}]
    assert ids_of(served) == ids_of(
        served,
        messages=[{"role": "user", "content": parts}],
        n=1, tools=[], tool_choice="none", logprobs=False, presence_penalty=0.0, response_format={"type": "text"},
        logit_bias=None, store=False, stream_options={}, parallel_tool_calls=True, service_tier="auto",
    )  # fmt: skip


def test_the_developer_is_the_system(served, monkeypatch):
    # That of the bundled model leaves such messages out.
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    monkeypatch.setattr(served.tokenizer, "chat_template", template)
    system, developer = (
        ids_of(served, messages=[{"role": role, "content": "How"}, *CHAT["messages"]])
        for role in ("system", "developer")
    )
    assert system == developer != ids_of(served)


def test_settings_of_the_request_win(served):
    asked = CHAT | {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "confidence_threshold": 0.8, "block_length": 16, "seed": 3,
        "stop": "a", "max_new_tokens": 32,
    }  # fmt: skip
    request = Completion(asked, served)
    prompt, config = request.prompt, request.prompt.config
    assert (config.temperature, config.top_p, config.top_k, config.block_length) == (0.7, 0.9, 5, 16)
    assert (config.confidence_threshold, config.entropy_threshold, config.max_new_tokens) == (0.8, None, 32)
    assert (prompt.seed, request.text.stop) == (3, ["a"])


def test_recipes_that_draw_or_stop(served):
    recipe = DiffusionGenerationConfig(do_sample=True, temperature=0.7, stop_strings="now")
    served = dataclasses.replace(served, generation_config=recipe)
    assert chat(served, temperature=0).config.temperature == 0
    assert Completion(CHAT, served).text.stop == ["now"]
    assert Completion(CHAT | {"stop": ["a", "b"]}, served).text.stop == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "canvas", "max_tokens"),
    [
        ({"max_tokens": 5}, 64, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 64, 6),
        ({"max_tokens": 65}, 96, 65),
        ({"max_tokens": 65, "block_length": 16}, 80, 65),
        ({"max_tokens": 65, "max_new_tokens": 32}, 32, 32),
    ],
)
def test_max_tokens_ends_the_answer_and_may_lengthen_the_canvas(served, fields, canvas, max_tokens):
    prompt = chat(served, **fields)
    assert (prompt.config.max_new_tokens, prompt.max_tokens) == (canvas, max_tokens)


def test_a_longer_canvas_keeps_the_passes_of_a_block(served):
    config = chat(served, max_tokens=128, denoising_steps=16).config
    assert (config.max_new_tokens, config.denoising_steps) == (128, 32)
    # Every setting of a model is set, the number of passes among them.
    served = dataclasses.replace(served, generation_config=DiffusionGenerationConfig())
    resolved = served.generation_config
    assert resolved.denoising_steps == 160 and chat(served).config == resolved
    assert chat(served, max_new_tokens=32).config.denoising_steps == 32
    assert chat(served, max_new_tokens=32, entropy_threshold=0.5).config.denoising_steps is None


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": ["hello"]}, "messages", "valid dictionary"),
        (said("function", content=""), "messages", "has the role 'function'. Rename it to one of"),
        (said("user"), "messages", "of the user, must not be empty: `content` is None"),
        (said("user", content=[]), "messages", "of the user, must not be empty: `content` is []"),
        (said("user", content=[{"type": "image_url", "image_url": {}}]), "messages", "'image_url'"),
        (said("user", content="pens " * 800), "messages", "maximum context length is 768 tokens"),
        (said(["user"], content=""), "messages", "has the role ['user']"),
        (said("user", content="How <|mdm_mask|> pens ?"), "messages", "'<|mdm_mask|>', the mask token, which stands"),
        ({"n": 2}, "n", "`n` must be 1: send one request for each answer, they share passes"),
        ({"echo": True}, "echo", "`echo=True` is not supported"),
        ({"suffix": "."}, "suffix", "`suffix=.` is not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "`top_logprobs` needs `logprobs`"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20, got 21"),
        ({"tools": [{"type": "function"}]}, "tools", "`tools.0.function`: Field required"),
        ({"response_format": {"type": "json_object"}}, "response_format", "need a byte-level tokenizer"),
        ({"presence_penalty": 0.5}, "presence_penalty", "`presence_penalty=0.5` is not supported. Leave it out."),
        ({"enthropy_treshold": 0.5}, "enthropy_treshold", "Did you mean `entropy_threshold`"),
        ({"xyz": 0.5}, "xyz", "Unknown field `xyz`. Leave it out"),
        ({"eos_token_id": 3}, "eos_token_id", "Unknown field"),
        ({"max_tokens": 1.5}, "max_tokens", "integer, got 1.5"),
        ({"max_tokens": 4096}, "max_tokens", "the answer may have 4096"),
        ({"max_new_tokens": 0}, "max_new_tokens", "must be a positive integer"),
        ({"temperature": float("nan")}, "temperature", "`temperature` must be "),
        ({"top_p": 2}, "top_p", "`top_p` must be a probability"),
        ({"temperature": reduce(lambda value, _: [value], range(190), 1)}, "temperature", "must be "),
        ({"entropy_threshold": 1, "confidence_threshold": 0.9}, "confidence_threshold", "are two commit rules"),
        *(({name: 10**309}, name, f"`{name}` must be ") for name in NUMBERS),
        ({"entropy_threshold": float("inf")}, "entropy_threshold", "`entropy_threshold` must be "),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"stop": "a" * 257}, "stop", "`stop.0`: String should have at most 256 characters"),
        ({"seed": 2**70}, "seed", "less than 4611686018427387904"),
        ({"stream": "yes"}, "stream", "boolean, got yes"),
        ({"stream_options": {"usage": True}}, "stream_options", "'include_usage'"),
    ],
)
def test_chats_that_are_refused(served, fields, param, message):
    with pytest.raises(RequestError) as refused:
        chat(served, **fields)
    assert message in str(refused.value) and refused.value.param == param and refused.value.status == 400
    assert len(str(refused.value)) < 800


def test_logprobs_without_others(served):
    assert chat(served, logprobs=True).num_logprobs == 0 and chat(served, top_logprobs=0).num_logprobs is None


def test_a_model_without_chat_template_is_refused(served):
    class NoTemplate:
        chat_template = None

    with pytest.raises(ValueError, match="`demo` has no chat template: .* Give its tokenizer a template"):
        dataclasses.replace(served, tokenizer=NoTemplate())


@pytest.mark.parametrize(
    "answer",
    [
        {"content": "14", "provider_specific_fields": {"refusal": None}, "annotations": []},
        {"content": "14", "parsed": {"pens": 14}, "refusal": None, "audio": None, "function_call": None},
        {"content": [{"type": "text", "text": "14", "annotations": []}], "reasoning_content": "Hm."},
        {
            "tool_calls": [
                {"id": "123456789", "function": {"name": "add", "arguments": "{}", "parsed_arguments": {}}, "index": 0}
            ]
        },
    ],
)
def test_answers_come_back_with_the_fields_that_clients_add(served, answer):
    """Those of litellm, of `parse` of the openai client, and of clients that keep the reasoning."""
    plain = {"content": answer.get("content") or "", "tool_calls": answer.get("tool_calls") or []}
    asked = [ids_of(served, messages=[{"role": "assistant", **each}, *CHAT["messages"]]) for each in (answer, plain)]
    assert asked[0] == asked[1]


def test_arguments_of_the_template(served, monkeypatch):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'How' if thinks else 'many' }}"
    monkeypatch.setattr(served.tokenizer, "chat_template", template)
    thinks, plain = (ids_of(served, chat_template_kwargs={"thinks": value}) for value in (True, False))
    assert served.tokenizer.decode([thinks[-1], plain[-1]]) == "How many"
    with pytest.raises(RequestError, match="The chat template does not use `think`"):
        chat(served, chat_template_kwargs={"think": True})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.x.y }}", "has no attribute"),
        ("{{ raise_exception('roles must alternate') }}", "refuses the messages .user.: roles must alternate"),
    ],
)
def test_a_template_that_fails_is_a_refusal(served, monkeypatch, template, message):
    monkeypatch.setattr(served.tokenizer, "chat_template", template)
    with pytest.raises(RequestError, match=message) as refused:
        chat(served)
    assert (refused.value.param, refused.value.status) == ("messages", 400)
