# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""JSON by a schema: every answer is valid, whatever the model would rather write."""

import json

import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.logprobs import CommitLogprobs
from hf_dparallel.serving.bodies import RequestError
from hf_dparallel.serving.engine import Engine
from hf_dparallel.serving.json_answers import JsonGuide, read_schema
from hf_dparallel.serving.requests import ServedModel, read_chat_request, read_responses_request

from ..helpers import make_llada, make_sdar
from .conftest import running
from .test_engine import ask, make_prompt


SCHEMA = {
    "type": "object",
    "title": "A purchase",
    "properties": {
        "what": {"type": "string", "maxLength": 6, "description": "The thing."},
        "how many": {"type": "integer"},
        "price": {
            "type": "object",
            "properties": {"amount": {"type": "number"}, "währung": {"enum": ["Euro", "Eur", "\u20ac", 1, 15, None]}},
        },
        "is paid": {"type": "boolean"},
    },
    "required": ["what"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with tokens such as `",` and `": "` that end a value and begin what follows."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<eos>", "<mask>"],
        show_progress=False,
    )
    backend.train_from_iterator([json.dumps({"what": "café", "how many": n, "b": True}) for n in range(40)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<eos>",
        mask_token="<mask>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )


def make(make_model, tokenizer):
    ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"n_layers" if make_model is make_llada else "num_hidden_layers": 1}
    return make_model(vocab_size=len(tokenizer), pad_token_id=tokenizer.eos_token_id, **ids).double()


@pytest.fixture(scope="module")
def served_json(tokenizer) -> ServedModel:
    recipe = DiffusionGenerationConfig(max_new_tokens=96, block_length=8, entropy_threshold=4.0)
    return ServedModel("tiny", make(make_llada, tokenizer), tokenizer, recipe)


def check(text: str) -> None:
    answer = json.loads(text)
    assert list(answer) == list(SCHEMA["properties"]) and list(answer["price"]) == ["amount", "währung"]
    assert type(answer["what"]) is str and len(answer["what"]) <= 6 and type(answer["how many"]) is int
    assert type(answer["price"]["amount"]) in (int, float) and type(answer["is paid"]) is bool
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
    common = {"max_new_tokens": 96, "block_length": 8, "entropy_threshold": 4.0} | settings
    common["eos_token_id"] = tokenizer.eos_token_id
    prompts = [make_prompt(model, [20 + n] * (1 + n), 96, seed=n, **common) for n in range(3)]
    parts = read_schema(SCHEMA, tokenizer)
    for prompt in prompts[1:]:
        prompt.guide, prompt.logprobs = JsonGuide(parts, tokenizer, tokenizer.eos_token_id), CommitLogprobs()
    engine = Engine(model, 3, 9)
    plain, *guided = ask(engine, prompts)
    engine.close()
    for answer in guided:
        assert answer.finish_reason == "stop", answer.error
        check(tokenizer.decode(answer.tokens, skip_special_tokens=True))
        # What is given costs no pass.
        num_given = sum(each.logprob == 0 for each in answer.logprobs)
        assert answer.nfe <= len(answer.tokens) - num_given + len(parts) // 2 and num_given > 20
    ids, generator = prompts[0].input_ids, torch.Generator().manual_seed(0)
    alone = model.generate(ids[None], prompts[0].config, generator=generator)[0, len(ids) :].tolist()
    assert plain.tokens == alone[: len(plain.tokens)]


def test_each_token_is_the_likeliest_that_fits(served_json, tokenizer):
    """Oracle: one token after the other, from all of the vocabulary."""
    model, prompt, mask = served_json.model, [30, 31, 32], tokenizer.mask_token_id
    parts = read_schema(SCHEMA, tokenizer)
    guide = JsonGuide(parts, tokenizer, tokenizer.eos_token_id)
    expected = guide.begin()
    while expected[-1] != tokenizer.eos_token_id:
        with torch.no_grad():
            canvas = torch.tensor([prompt + expected + [mask] * (96 - len(expected))])
            logits = model(canvas).logits[0, len(prompt) + len(expected)]
        logits[mask] = -torch.inf
        tokens = logits.argsort(descending=True).tolist()
        expected += next(written for written in map(guide.follow, tokens) if written is not None)
    settings = {"denoising_steps": 96, "commit_order": "left_to_right", "entropy_threshold": None}
    asked = make_prompt(model, prompt, 96, max_new_tokens=96, block_length=96, **settings, eos_token_id=256)
    asked.guide = JsonGuide(parts, tokenizer, tokenizer.eos_token_id)
    engine = Engine(model, 1, 9)
    (answer,) = ask(engine, [asked])
    engine.close()
    assert tokenizer.decode(answer.tokens) == tokenizer.decode(expected[: len(answer.tokens)])
    check(tokenizer.decode(expected, skip_special_tokens=True))


def test_clients_get_json(served_json):
    form = {"type": "json_schema", "json_schema": {"name": "purchase", "strict": True, "schema": SCHEMA}}
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Three pens, please."}],
        "response_format": form,
    }
    with running(served_json) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            text = client.chat.completions.create(**asked).choices[0].message.content
            check(text)
            chunks = list(client.chat.completions.create(**asked, stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
            form = {"format": {"type": "json_schema", **form["json_schema"]}}
            answer = client.responses.create(model="tiny", input="Three pens, please.", text=form)
            assert answer.output_text == text
            cut = client.chat.completions.create(**asked, max_tokens=5).choices[0]
            assert cut.finish_reason == "length" and text.startswith(cut.message.content)


def json_schema(**value) -> dict:
    schema = {"type": "object", "properties": {"a": value}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_object"}}, "Other JSON has no keys that could be given"),
        ({"response_format": "json"}, '`response_format` must be {"type": "text"} or'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schemas": {}}}}, "`response_format` must be"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "`schema` must be an object whose `type`"),
        (json_schema(type="array", items={}), "`schema.properties.a.items` is not supported"),
        (json_schema(type="array"), "`schema.properties.a` must have the `type` object, string, integer"),
        (json_schema(type=["string", "null"]), "got ['string', 'null']"),
        (json_schema(type="integer", minimum=3), "`schema.properties.a.minimum` is not supported"),
        (json_schema(**{"$ref": "#/$defs/x"}), "`schema.properties.a.$ref` is not supported"),
        (json_schema(type="string", maxLength=-1), "`schema.properties.a` must have `minLength` and `maxLength`"),
        (json_schema(enum=[]), "`schema.properties.a.enum` must be a list of texts"),
        (json_schema(enum=[[1]]), "`schema.properties.a.enum` must be a list of texts"),
        (json_schema(enum=[0] * 257), "`schema.properties.a.enum` must have at most 256 values, got 257"),
        (json_schema(type="object", properties={}), "`schema.properties.a.properties` must be an object that is not"),
        (json_schema(type="object", properties={"b": 3}), "`schema.properties.a.properties.b` must be an object"),
        (json_schema(type="null", required=["b"]), "`schema.properties.a.required` is not supported"),
        (json_schema(type="object", properties={"<eos>": {"type": "null"}}), 'cannot write \'{"a": {"<eos>":\''),
        (json_schema(type="null") | {"stop_at_eos": False}, "Leave out settings that revise tokens"),
        (json_schema(type="null") | {"revocation_threshold": 0.5}, "Leave out settings that revise tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused(served_json, fields, message):
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(RequestError) as refused:
        read_chat_request(body, served_json, 9)
    assert message in str(refused.value)
    assert (refused.value.param, refused.value.status) == ("response_format", 400)


def test_a_tokenizer_of_words_is_refused(served):
    body = {"messages": [{"role": "user", "content": "x"}]} | json_schema(type="null")
    with pytest.raises(RequestError, match="has no token for '.' alone, which JSON needs"):
        read_chat_request(body, served, 9)
    with pytest.raises(RequestError, match="`text` must be an object that has `format` only"):
        read_responses_request({"input": "x", "text": {}}, served, 9)
