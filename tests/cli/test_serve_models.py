# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Several adapters on one set of weights: each answers as if it were alone, and can be replaced."""

import shutil
from types import SimpleNamespace

import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.cli.serve import _reload
from hf_dparallel.cli.serve_models import ServedModels, read_names
from hf_dparallel.serving.engine import Engine, Prompt

from ..helpers import make_llada, make_tokenizer
from ..serving.conftest import running, wait_for


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
def models(adapters, tmp_path) -> ServedModels:
    """Two adapters, one of them in a folder that can be changed, and the model."""
    shutil.copytree(adapters["b"], tmp_path / "b")
    config = DiffusionGenerationConfig(max_new_tokens=16, block_length=8)
    paths = {"a": adapters["a"], "b": str(tmp_path / "b")}
    return ServedModels("base", make_llada().double(), make_tokenizer(), paths, config)


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


def serve(models: ServedModels):
    return running(models.by_name["base"], models.by_name)


def test_each_name_answers_as_if_it_were_alone(adapters, models):
    expected = {"a": text(alone(adapters["a"])), "b": text(alone(adapters["b"])), "base": text(alone(None))}
    assert len(set(expected.values())) == 3
    with serve(models) as server:
        for _ in range(2):
            assert {name: ask(server.url, name) for name in expected} == expected
        assert ask(server.url, None) == expected["a"]
        described = {model["id"]: model for model in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert {name: model["parent"] for name, model in described.items()} == {"a": "base", "b": "base", "base": None}
    # Each with its own recipe, whichever adapter was loaded last.
    assert described["a"]["decoding"]["entropy_threshold"] == 1.0
    assert described["b"]["decoding"]["confidence_threshold"] == 0.3
    assert described["base"]["decoding"]["denoising_steps"] == 16


def test_adapters_are_read_anew_and_a_broken_one_changes_nothing(adapters, models, tmp_path):
    with serve(models) as server:
        before = {name: ask(server.url, name) for name in ("a", "b", "base")}
        replaced = before | {"b": text(alone(adapters["c"]))}
        for number, (name, expected) in enumerate([("c", replaced), ("b", before)]):
            shutil.rmtree(tmp_path / "b")
            shutil.copytree(adapters[name], tmp_path / "b")
            server.engine.call(lambda: _reload(models, server.engine))
            wait_for(lambda number=number: models.by_name["b"].adapter == f"served_{3 + 2 * number}")
            assert {name: ask(server.url, name) for name in before} == expected != before or name == "b"
        # Those before the last are kept for answers under way.
        assert set(models._base.model.peft_config) == {"served_2", "served_3", "served_4", "served_5"}
        file = tmp_path / "b" / "adapter_model.safetensors"
        save_file({name: weight[:, :-1].contiguous() for name, weight in load_file(file).items()}, file)
        for _ in range(2):
            server.engine.call(lambda: _reload(models, server.engine))
            assert {name: ask(server.url, name) for name in before} == before
        # What was read of it is forgotten, but for the last time, and those that were replaced.
        assert set(models._base.model.peft_config) == {"served_4", "served_5", "served_8", "served_9"}
        (tmp_path / "b" / "adapter_config.json").write_text("{")
        server.engine.call(lambda: _reload(models, server.engine))
        assert {name: ask(server.url, name) for name in before} == before


def test_an_answer_under_way_keeps_its_adapter_however_often_all_are_read_anew(adapters, models):
    engine, events = Engine(models._base.model, 1, 0), []

    def listen(progress):
        events.append(progress)
        if len(events) in (1, 3, 5):
            engine.call(lambda: _reload(models, engine))

    served = models.by_name["b"]
    config = served.generation_config.updated(confidence_threshold=None, denoising_steps=16)
    engine.submit([Prompt(torch.tensor([5, 6, 7]), config, 16, 0, listen, adapter=served.adapter)])
    wait_for(lambda: events and events[-1].is_last)
    assert models.by_name["b"].adapter == "served_7"
    expected = alone(adapters["b"], confidence_threshold=None, denoising_steps=16)
    assert [token for event in events for token in event.tokens] == expected
    # Whom nobody needs any more is forgotten: all but those that answer, and those which they have replaced.
    engine.call(lambda: _reload(models, engine))
    wait_for(lambda: models.by_name["b"].adapter == "served_9")
    engine.close()
    assert set(models._base.model.peft_config) == {"served_6", "served_7", "served_8", "served_9"}


def test_names():
    assert read_names(["x=user/a", "user/b", "./c=d"]) == {"x": "user/a", "user/b": "user/b", "./c": "d"}
    with pytest.raises(ValueError, match="`adapter` has 'x' twice"):
        read_names(["x=a", "x=b"])
    with pytest.raises(ValueError, match="An adapter has the name of the model, 'm'"):
        ServedModels("m", SimpleNamespace(), make_tokenizer(), {"m": "p"}, DiffusionGenerationConfig())
