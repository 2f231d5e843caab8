# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Several adapters on one set of weights: each answers as if it were alone, with a recipe of its own."""

import click
import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.cli.serve_models import read_names, served_models
from hf_dparallel.serving.requests import ServedModel

from ..helpers import make_llada, make_tokenizer
from ..serving.conftest import running


RECIPES = {"a": {"entropy_threshold": 1.0}, "b": {"confidence_threshold": 0.3}, "c": {"entropy_threshold": 2.0}}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> dict[str, str]:
    """Adapters that change what the model says, each with a recipe."""
    folder = tmp_path_factory.mktemp("adapters")
    for number, (name, recipe) in enumerate(RECIPES.items()):
        torch.manual_seed(number)
        lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_alpha=8 * 9**number)
        model = get_peft_model(make_llada(), lora)
        model.save_pretrained(folder / name)
        DiffusionGenerationConfig(**recipe, max_new_tokens=16, block_length=8).save_pretrained(folder / name)
    return {name: str(folder / name) for name in RECIPES}


@pytest.fixture
def models(adapters) -> dict[str, ServedModel]:
    """Two adapters and the model."""
    config = DiffusionGenerationConfig(max_new_tokens=16, block_length=8)
    paths = {name: adapters[name] for name in ("a", "b")}
    return served_models("base", make_llada().double(), make_tokenizer(), paths, config)


def alone(path: str | None, **settings) -> list[int]:
    """What the model answers with one adapter, by its recipe."""
    model = make_llada().double()
    if path is not None:
        model.load_adapter(path)
    settings = {"max_new_tokens": 16, "block_length": 8} | settings
    return model.generate(torch.tensor([[5, 6, 7]]), **settings)[0, 3:].tolist()


def ask(url: str, model: str | None) -> str:
    body = {"prompt": [5, 6, 7]} | ({"model": model} if model else {})
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]


def text(tokens: list[int]) -> str:
    return make_tokenizer().decode(tokens, skip_special_tokens=True)


def test_each_name_answers_as_if_it_were_alone(adapters, models):
    expected = {"b": text(alone(adapters["b"])), "a": text(alone(adapters["a"])), "base": text(alone(None))}
    assert len(set(expected.values())) == 3
    with running(models["base"], models) as server:
        for _ in range(2):
            assert {name: ask(server.url, name) for name in expected} == expected
        # The adapter that was the last one before the model answered without any.
        assert ask(server.url, None) == expected["a"]
        described = {model["id"]: model for model in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert {name: model["parent"] for name, model in described.items()} == {"a": "base", "b": "base", "base": None}
    # Each with its own recipe, whichever adapter was loaded last.
    assert described["a"]["decoding"]["entropy_threshold"] == 1.0
    assert described["b"]["decoding"]["confidence_threshold"] == 0.3
    assert described["base"]["decoding"]["denoising_steps"] == 16


def test_names():
    assert read_names(["x=user/a", "user/b", "./c=d"], "m") == {"x": "user/a", "user/b": "user/b", "./c": "d"}
    for adapters, message in ((["x=a", "x=b"], "`adapter` has 'x' twice"), (["m=p"], "the name of the model, 'm'")):
        with pytest.raises(click.UsageError, match=message):
            read_names(adapters, "m")
