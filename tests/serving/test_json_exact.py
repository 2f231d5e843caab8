# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""JSON in exact decoding: with any schema and any drafts, the answer is the one of one token a pass."""

import json
import random

import pytest
import torch

from hf_dparallel.exact.decoder import SpeculativeDecoder
from hf_dparallel.exact.draft_length import DraftLength
from hf_dparallel.models.a2d.modeling_a2d import A2DLlamaForMaskedDiffusion
from hf_dparallel.serving.json import compile_schema
from hf_dparallel.serving.tools import read_calls, schema_of_call

from .helpers import ask_once, make_prompt


LENGTH = 72
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("buy", "wait")]
WORDS = ["a", "b", "count", "kind", "tags", "x1", "état", "is on"]


def draw_schema(rng: random.Random, depth: int = 0) -> dict:
    kinds = ["integer", "string", "boolean", "enum", "null", "pattern", "number"]
    kind = rng.choice(kinds if depth == 2 else [*kinds, "object", "object", "array"])
    if depth == 0 or kind == "object":
        names = rng.sample(WORDS, rng.randrange(1, 4))
        return {"type": "object", "properties": {name: draw_schema(rng, min(depth + 1, 2)) for name in names}}
    if kind == "array":
        return {"type": "array", "items": draw_schema(rng, depth + 1), "maxItems": rng.randrange(1, 4)}
    if kind == "enum":
        return {"enum": rng.sample(["red", "re", "green", 1, 12, None, True, ""], rng.randrange(1, 4))}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-c]{1,3}$", "^\\d\\d:\\d\\d$", "^(ab|abc)$"])}
    if kind == "string":
        return {"type": "string", "maxLength": rng.randrange(8)}
    if kind == "integer":
        return {"type": "integer", "minimum": -rng.randrange(100), "maximum": rng.randrange(100)}
    return {"type": kind}


@pytest.fixture(scope="module")
def model(tokenizer):
    """A random model with a mask token after its vocabulary, in float64."""
    torch.manual_seed(0)
    config = A2DLlamaForMaskedDiffusion.config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        mask_token_id=len(tokenizer),
        block_length=6,
        causal_past=True,
        shift_logits=True,
    )
    return A2DLlamaForMaskedDiffusion(config).double().eval()


def answers_to(model, tokenizer, schemas, **settings):
    """The answers to several schemas in one batch, sampled so that they are various."""
    common = {"max_new_tokens": LENGTH, "block_length": 6, "entropy_threshold": None, "temperature": 1.0}
    common |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    prompts = []
    for number, schema in enumerate(schemas):
        prompt = make_prompt(model, [40 + number, 39], LENGTH, seed=number, **common | settings)
        # A mask token after the vocabulary is one of the tokenizer.
        size = len(tokenizer) + 1
        # What "anyOf" is in are the calls of tools, between their tags.
        schema, call = (None, schema) if "anyOf" in schema else (schema, None)
        prompt.json = compile_schema(schema, call, tokenizer, size, [tokenizer.eos_token_id])
        prompts.append(prompt)
    return ask_once(model, prompts)


def check(model, tokenizer, schemas, drafts):
    """Compares the answers to all schemas with those of one token a pass, and returns the passes of both."""
    plain = answers_to(model, tokenizer, schemas, denoising_steps=LENGTH)
    drafts.right = [one.tokens for one in plain]
    exact = answers_to(model, tokenizer, schemas, confidence_threshold=1e-9)
    for schema, one, other in zip(schemas, plain, exact, strict=True):
        assert one.error is None and one.tokens == other.tokens, schema
        if one.finish_reason == "stop":
            text = tokenizer.decode(one.tokens, skip_special_tokens=True)
            if "anyOf" in schema:
                ((name, arguments),) = [tuple(call["function"].values()) for call in read_calls(text, TOOLS, True)[1]]
                assert name in ("buy", "wait") and isinstance(json.loads(arguments), dict)
            else:
                assert list(json.loads(text)) == list(schema["properties"])
    return sum(one.nfe for one in plain), sum(other.nfe for other in exact)


class Drafts:
    """Drafts any number of tokens, most of which are right, as those of an adapter that has learned them."""

    def __init__(self):
        self.rng = random.Random(1)
        self.right: list[list[int]] = []

    def choose(self, num_rows: int) -> int:
        return self.rng.randrange(6)

    def draft(self, decoder, logits, first_open, num_decided) -> None:
        canvas = decoder.canvas
        first = first_open + num_decided
        drafts = torch.full_like(canvas.sequences, decoder.config.mask_token_id)
        # A pass without masks makes none.
        for row in range(len(canvas) if logits.shape[1] else 0):
            tokens = self.right[int(canvas.sequences[row, canvas.prompt_start(row)]) - 40]
            number = int(first[row]) - canvas.answer(row).start
            if self.rng.random() < 0.1:
                continue
            for place, token in enumerate(tokens[number : number + logits.shape[1]]):
                is_right = self.rng.random() < 0.8
                drafts[row, int(first[row]) + place] = token if is_right else self.rng.randrange(39)
        canvas.drafts.value = drafts
        canvas.window.value = canvas.block.gather(1, first).squeeze(1) + self.rng.randrange(4)


@pytest.fixture
def drafts(monkeypatch):
    drafts = Drafts()
    monkeypatch.setattr(DraftLength, "choose", lambda self, num_rows, most: drafts.choose(num_rows))
    monkeypatch.setattr(SpeculativeDecoder, "_draft", lambda decoder, *given: drafts.draft(decoder, *given))
    return drafts


def test_schemas_give_the_answers_of_one_token_a_pass(drafts, model, tokenizer):
    rng = random.Random(0)
    plain, exact = check(model, tokenizer, [draw_schema(rng) for _ in range(12)], drafts)
    # Drafts are verified by what the model would write without a schema, which for a random one rarely fits.
    assert exact <= plain


def test_calls_of_tools_are_those_of_one_token_a_pass(drafts, model, tokenizer):
    rng = random.Random(3)
    schemas = []
    for _ in range(12):
        tools = [dict(tool, function=dict(tool["function"], parameters=draw_schema(rng))) for tool in TOOLS]
        schemas.append(schema_of_call(tools))
    plain, exact = check(model, tokenizer, schemas, drafts)
    assert exact <= plain


@pytest.mark.slow
def test_a_thousand_schemas_give_the_answers_of_one_token_a_pass(drafts, model, tokenizer):
    rng = random.Random(2)
    for _ in range(50):
        check(model, tokenizer, [draw_schema(rng) for _ in range(20)], drafts)
