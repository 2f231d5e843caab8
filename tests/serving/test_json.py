# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""JSON by a schema: every answer is valid, whatever the model would rather write."""

import json
import time

import pytest
import torch

from hf_dparallel.serving.api import Completion
from hf_dparallel.serving.engine import RequestError
from hf_dparallel.serving.json import TAGS, JsonAnswer, compile_schema

from ..helpers import make_llada, make_sdar
from .helpers import ask_once, make, make_prompt


SCHEMA = {
    "type": "object",
    "title": "A purchase",
    "properties": {
        "what": {"type": "string", "maxLength": 6, "description": "The thing."},
        "how many": {"type": "integer", "minimum": -99, "maximum": 99},
        "price": {
            "type": "object",
            "properties": {
                "amount": {"$ref": "#/$defs/amount"},
                "währung": {"enum": ["Euro", "Eur", "\u20ac", 1, 15, None]},
            },
        },
        "codes": {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,2}$"}, "maxItems": 2},
        "is paid": {"type": "boolean"},
    },
    "required": ["what"],
    "additionalProperties": False,
    "$defs": {"amount": {"type": "number", "enum": [0, 0.5, 9]}},
}


def answer_of(schema: dict, tokenizer) -> JsonAnswer:
    return compile_schema(schema, None, tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def check(text: str) -> None:
    answer = json.loads(text)
    assert list(answer) == list(SCHEMA["properties"]) and list(answer["price"]) == ["amount", "währung"]
    assert type(answer["what"]) is str and len(answer["what"]) <= 6 and -99 <= answer["how many"] <= 99
    assert type(answer["how many"]) is int and 0 <= answer["price"]["amount"] <= 9
    assert type(answer["is paid"]) is bool
    assert all(1 <= len(code) <= 2 and set(code) <= set("abc") for code in answer["codes"])
    assert answer["price"]["währung"] in SCHEMA["properties"]["price"]["properties"]["währung"]["enum"]


@pytest.mark.parametrize(
    ("make_model", "settings"),
    [
        (make_llada, {"temperature": 2.0}),
        (make_llada, {"cache_implementation": "dual", "max_active_blocks": 2}),
        (make_sdar, {"block_length": 4}),
    ],
)
def test_answers_are_valid_beside_others(tokenizer, make_model, settings):
    model = make(make_model, tokenizer)
    common = {"max_new_tokens": 104, "block_length": 8, "entropy_threshold": 4.0} | settings
    common["eos_token_id"] = tokenizer.eos_token_id
    prompts = [make_prompt(model, [20 + n] * (1 + n), 104, seed=n, **common) for n in range(3)]
    for prompt in prompts[1:]:
        prompt.json, prompt.num_logprobs = answer_of(SCHEMA, tokenizer), 0
    plain, *guided = ask_once(model, prompts)
    for answer in guided:
        assert answer.finish_reason == "stop", answer.error
        check(tokenizer.decode(answer.tokens, skip_special_tokens=True))
        # What is given costs no pass, and the rest at most one a token.
        num_given = sum(each.logprob == 0 for each in answer.logprobs)
        assert answer.nfe <= len(answer.tokens) - num_given and num_given > 20
    ids, generator = prompts[0].input_ids, torch.Generator().manual_seed(0)
    alone = model.generate(ids[None], prompts[0].config, generator=generator)[0, len(ids) :].tolist()
    assert plain.tokens == alone[: len(plain.tokens)]


def test_each_token_is_the_likeliest_that_fits(served_json, tokenizer):
    """Oracle: one token after the other, from all of the vocabulary."""
    model, prompt, mask, eos = served_json.model, [30, 31, 32], tokenizer.mask_token_id, tokenizer.eos_token_id
    matcher = compile_schema(SCHEMA, None, tokenizer, len(tokenizer), [eos]).matcher
    expected = matcher.compute_ff_tokens()
    assert tokenizer.decode(expected) == '{"what":' and matcher.consume_tokens(expected)
    num_passes = 0
    while not matcher.is_stopped():
        num_passes += 1
        with torch.no_grad():
            canvas = torch.tensor([prompt + expected + [mask] * (104 - len(expected))])
            logits = model(canvas).logits[0, len(prompt) + len(expected)]
        ranked = logits.argsort(descending=True).tolist()
        expected.append(next(token for token in ranked if matcher.validate_tokens([token])))
        matcher.consume_token(expected[-1])
        given = matcher.compute_ff_tokens()
        expected += given
        matcher.consume_tokens(given)
    settings = {"denoising_steps": 104, "commit_order": "left_to_right", "entropy_threshold": None}
    asked = make_prompt(model, prompt, 104, max_new_tokens=104, block_length=104, **settings, eos_token_id=eos)
    asked.json = answer_of(SCHEMA, tokenizer)
    (answer,) = ask_once(model, [asked])
    assert answer.tokens == [*expected, eos] and answer.nfe == num_passes
    check(tokenizer.decode(expected))


def test_predicted_tokens_are_taken_up_to_the_first_that_does_not_fit(tokenizer):
    schema = {"type": "object", "properties": {"what": {"type": "string"}, "how many": {"type": "integer"}}}
    ids, eos = tokenizer('{"what": "cafe", "how many": 12}')["input_ids"], tokenizer.eos_token_id
    likeliest = torch.zeros(len(tokenizer)).index_fill(0, torch.tensor(tokenizer("7")["input_ids"]), 9.0)
    right, wrong = answer_of(schema, tokenizer), answer_of(schema, tokenizer)
    given = right.given()
    rest = ids[len(given) :]
    assert given == ids[: len(given)] == wrong.given() and given
    assert right.commit([*rest, eos, eos], likeliest) == ([*rest, eos], [])
    begun = tokenizer(' "ca')["input_ids"]
    assert wrong.commit([*begun, eos, *begun], likeliest) == (begun, [])
    assert wrong.commit([eos], likeliest) == (tokenizer("7")["input_ids"], [])
    # In exact decoding up to the first text that the schema writes itself, as one token at a time.
    exact, alone = answer_of(schema, tokenizer), answer_of(schema, tokenizer)
    assert exact.given() == alone.given()
    spelled = [token for char in ' "cafe", "how many": 12}' for token in tokenizer(char)["input_ids"]]
    kept, fixed = exact.commit(spelled, likeliest, exact=True)
    assert len(kept) < len(spelled) and fixed
    one_at_a_time = [alone.commit([token], likeliest) for token in kept]
    assert one_at_a_time[-1] == (kept[-1:], fixed) and not any(given for _, given in one_at_a_time[:-1])


@pytest.mark.parametrize("make_model", [make_llada, make_sdar])
@pytest.mark.parametrize("length", [5, 13, 16, 17])
def test_an_answer_that_reaches_the_end_is_cut(tokenizer, make_model, length):
    """In block-causal models the last block has masks after the answer."""
    model, properties = make(make_model, tokenizer), {name: {"type": "string"} for name in ("a", "b" * 30)}
    eos = tokenizer.eos_token_id
    quotes = torch.zeros(len(tokenizer)).double().index_fill_(0, torch.tensor(tokenizer('a"')["input_ids"]), 50.0)
    common = {"max_new_tokens": length, "block_length": 4, "entropy_threshold": 9.0, "eos_token_id": eos}
    prompts = [make_prompt(model, [20] * (1 + n), length, seed=n, **common) for n in range(4)]
    for prompt in prompts[1:]:
        prompt.json = answer_of({"type": "object", "properties": properties}, tokenizer)
    hook = model.get_output_embeddings().register_forward_hook(lambda module, args, output: output + quotes)
    answers = ask_once(model, prompts)
    hook.remove()
    assert [answer.error for answer in answers] == [None] * 4
    assert all(answer.finish_reason == "length" and len(answer.tokens) == length for answer in answers[1:])
    # Several tokens that fit are committed in a pass.
    assert length < 13 or all(answer.nfe <= length // 2 for answer in answers[1:])


def test_answers_that_enter_again_begin_again(tokenizer, caplog):
    """Those that did not fit into memory together are decoded one after the other, from their fixed text on."""
    model, failed = make(make_llada, tokenizer), []

    def prompts():
        for n in range(2):
            prompt = make_prompt(model, [20 + n], 104, max_new_tokens=104, eos_token_id=tokenizer.eos_token_id)
            prompt.json = answer_of(SCHEMA, tokenizer)
            yield prompt

    def fail(module, args):
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("no memory")

    expected = [ask_once(model, [prompt])[0].tokens for prompt in prompts()]
    model.model.register_forward_pre_hook(fail)
    assert [answer.tokens for answer in ask_once(model, list(prompts()))] == expected and failed
    check(tokenizer.decode(expected[0], skip_special_tokens=True))


def test_a_row_that_cannot_be_followed_fails_alone(served_json, tokenizer):
    """As when the matcher reaches one of its limits."""
    model, eos = served_json.model, tokenizer.eos_token_id
    prompts = [
        make_prompt(model, [20 + n], 32, max_new_tokens=32, block_length=8, eos_token_id=eos, stop_at_eos=True)
        for n in range(2)
    ]
    prompts[0].json = answer_of(SCHEMA, tokenizer)
    prompts[0].json.matcher.consume_token(tokenizer.mask_token_id)
    failed, plain = ask_once(model, prompts)
    assert "cannot follow the JSON schema" in str(failed.error)
    assert plain.error is None and plain.finish_reason


def test_clients_get_json(json_server):
    form = {"type": "json_schema", "json_schema": {"name": "purchase", "strict": True, "schema": SCHEMA}}
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Three pens, please."}],
        "response_format": form,
    }
    with json_server.client() as client:
        text = client.chat.completions.create(**asked).choices[0].message.content
        check(text)
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        cut = client.chat.completions.create(**asked, max_tokens=5).choices[0]
        assert cut.finish_reason == "length" and text.startswith(cut.message.content.rstrip("\ufffd"))


def test_clients_get_any_object(json_server, served_json, tokenizer):
    form, text = {"type": "json_object"}, "Three pens, please."
    with json_server.client() as client:
        message = {"role": "user", "content": text}
        asked = {"model": "tiny", "messages": [message], "response_format": form}
        (answer,) = client.chat.completions.create(**asked).choices
        # The tiny model never comes to the end of its first key.
        assert answer.message.content.startswith('{"') and answer.finish_reason == "length"
    schema = Completion(asked, served_json).prompt.json
    ids = tokenizer('{"a": {"b": [1, null]}}')["input_ids"]
    eos = tokenizer.eos_token_id
    assert schema.commit([*ids, eos], torch.zeros(9)) == ([*ids, eos], [])


def test_a_key_that_is_written_as_a_special_token_is_text(served_json, tokenizer):
    schema = {"type": "object", "properties": {"<eos>": {"enum": ["<mask>"]}}}
    prompt = make_prompt(served_json.model, [30], 64, max_new_tokens=64, eos_token_id=tokenizer.eos_token_id)
    prompt.json = answer_of(schema, tokenizer)
    (answer,) = ask_once(served_json.model, [prompt])
    # All of it is given.
    assert tokenizer.decode(answer.tokens, skip_special_tokens=True) == '{"<eos>": "<mask>"}' and answer.nfe == 0


CALL = {"type": "object", "properties": {"name": {"const": "odd"}, "arguments": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("schema", [None, {"type": "object", "properties": {"a": {"type": "integer"}}}])
@pytest.mark.parametrize("key", ["city", *TAGS, "<eos>", "[300]", "\u00ff[300]", "é"])
@pytest.mark.parametrize("has_tokens", [True, False])
def test_tags_of_a_call_are_tokens_or_text(tokenizer, byte_tokenizer, schema, key, has_tokens):
    """A key that is spelled like a tag is text in both."""
    tokenizer = tokenizer if has_tokens else byte_tokenizer
    arguments = {"type": "object", "properties": {key: {"enum": ["Paris", "Rome"]}}}
    call = {**CALL, "properties": {**CALL["properties"], "arguments": arguments}}
    eos = tokenizer.eos_token_id
    answer = compile_schema(schema, call, tokenizer, len(tokenizer), [eos])
    begin, end = (tokenizer(tag)["input_ids"] for tag in TAGS)
    assert (len(begin) == 1) == has_tokens
    written = answer.given()
    # The model chooses the call, one token after the other, and a city.
    for wanted in (begin, tokenizer("R")["input_ids"]):
        while not answer.matcher.is_error() and written[: len(wanted)] != wanted and not answer.matcher.is_stopped():
            token = wanted[len(written)] if wanted == begin else wanted[0]
            likeliest = torch.zeros(len(tokenizer)).index_fill(0, torch.tensor([token]), 9.0)
            kept, given = answer.commit([token], likeliest)
            written += kept + given
    assert not answer.matcher.is_error() and answer.matcher.is_stopped()
    assert written[: len(begin)] == begin and written[-len(end) - 1 :] == [*end, eos]
    inside = written[len(begin) : -len(end) - 1]
    assert not set(inside).intersection(tokenizer.added_tokens_decoder)
    text = json.dumps({"name": "odd", "arguments": {key: "Rome"}}, ensure_ascii=False)
    assert tokenizer.decode(inside) == f"\n{text}\n"


def json_schema(**value) -> dict:
    return form_of({"type": "object", "properties": {"a": value}})


def form_of(schema: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def nested(depth: int) -> dict:
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {"type": "null"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (json_schema(type="strange"), "response_format"),
        (json_schema(**{"$ref": "#/$defs/x"}), "response_format"),
        (json_schema(**{"$ref": "http://127.0.0.1:1/x"}), "response_format"),
        (json_schema(type="string", pattern="(("), "response_format"),
        (form_of({"type": "object", "required": [["a"]], "properties": 1}), "response_format"),
        (json_schema(type="array", items={}, uniqueItems=True), "response_format"),
        (form_of(nested(150)), "response_format"),
        (json_schema(enum=[f"{n}" for n in range(5000)]), "response_format"),
        (form_of({"type": "object", "properties": {"x" * 257: {}}}), "response_format"),
        (json_schema(type="string", pattern="^a{ 1000}$"), "response_format"),
        (json_schema(type="integer", multipleOf=99_991), "response_format"),
        (json_schema(type="object", patternProperties={f"^a{n}.*b{n}$": {} for n in range(500)}), "response_format"),
        (form_of({"type": "null", "x-guidance": {"whitespace_pattern": " *"}}), "response_format"),
        (json_schema(type="null") | {"stop_at_eos": False}, "response_format"),
        (json_schema(type="null") | {"revocation_threshold": 0.5}, "response_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused(served_json, fields, param):
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(RequestError) as refused:
        Completion(body, served_json)
    assert (refused.value.param, refused.value.status) == (param, 400)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "it refers to nothing but itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "nothing but itself"),
        ({"allOf": [nested(1), {"type": "object", "properties": {"b": {}}}]}, "`allOf` cannot join objects: write"),
        ({"properties": {"b": {}}, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": nested(1)}}, "`allOf` cannot"),
        ({"not": {}}, 'Unimplemented keys: ["not"].'),
        ({"enum": []}, "anyOf is empty."),
        ({"$ref": "#/$defs/x"}, "Pointer '/$defs/x' does not exist."),
    ],
)
def test_errors_say_why_a_schema_is_not_supported(served_json, schema, message):
    with pytest.raises(RequestError) as refused:
        Completion({"messages": [{"role": "user", "content": "x"}]} | form_of(schema), served_json)
    assert message in str(refused.value) and "\n" not in str(refused.value) and "form0" not in str(refused.value)


def test_the_setting_that_revises_tokens_is_named(served_json):
    body = {"messages": [{"role": "user", "content": "x"}], "revocation_threshold": 0.5} | json_schema(type="null")
    with pytest.raises(RequestError, match="revise no tokens. Send `revocation_threshold=0.0`"):
        Completion(body, served_json)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "pattern": "^.*[a-m].{200}$"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
        {"type": "array", "items": {"const": "x" * 250}, "minItems": 1_000_000},
        {"type": "array", "items": {"type": "string", "pattern": "^a{200}$"}, "minItems": 1_000_000},
        {
            "type": "object",
            "properties": {f"{n}": {"type": "string", "pattern": f"^{chr(n)}{{150}}$"} for n in range(300, 700)},
        },
        {"enum": ["a" * (250 - n) for n in range(120)]},
        {"anyOf": [{"type": "object", "properties": {f"p{n}": {"type": "string"}}} for n in range(200)]},
        {"allOf": [{"anyOf": [{"required": [f"{n}"]}, {"required": [f"-{n}"]}]} for n in range(20)]},
    ],
    ids=range(9),
)
def test_no_schema_takes_long(served_json, tokenizer, value):
    """It is followed, or refused, or fails alone; it may not keep others waiting, also not later."""
    properties = {"first": {"type": "boolean"}, "a": value}
    begin = time.process_time()
    try:
        answer = answer_of({"type": "object", "properties": properties}, tokenizer)
    except ValueError:
        return
    prompt = make_prompt(served_json.model, [30], 48, max_new_tokens=48, eos_token_id=tokenizer.eos_token_id)
    prompt.json = answer
    ask_once(served_json.model, [prompt])
    assert time.process_time() - begin < 3


def test_a_tokenizer_of_words_is_refused(served):
    body = {"messages": [{"role": "user", "content": "x"}]} | json_schema(type="null")
    with pytest.raises(RequestError, match="tokenizer") as refused:
        Completion(body, served)
    assert refused.value.param == "response_format"
