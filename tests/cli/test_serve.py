# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel serve` as a process, and the mistakes that keep it from starting."""

import os
import re
import signal
import socket
import threading
from types import SimpleNamespace

import click
import httpx
import openai
import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.serving.api import ServedModel
from hf_dparallel_cli.serve import load_adapters, read_names

from ..helpers import make_llada, make_tokenizer, save_two_students
from ..serving.helpers import running
from .helpers import DECODING, answer


@pytest.fixture
def serve(hf, checkpoint, monkeypatch):
    """Runs the command, and in another thread a client that gets the URL; returns the exit code and what it writes."""

    def run(client, *flags, model=checkpoint):
        def echo(text, err):
            print(text)
            if text.startswith("Serving"):
                thread = threading.Thread(target=client, args=(re.search(r"http://\S+/v1", text)[0],))
                thread.start()
                threads.append(thread)

        threads: list[threading.Thread] = []
        monkeypatch.setattr("hf_dparallel_cli.serve.click.echo", echo)
        code, out, err = hf("serve", model, *DECODING, "--port", "0", *flags)
        threads[0].join()
        return code, out + err

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_told_to_stop(serve, checkpoint, stop):
    def ask(url):
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=8) as client:
            messages = [{"role": "user", "content": "5 6"}]
            answers.append(client.chat.completions.create(model=checkpoint, messages=messages))
        os.kill(os.getpid(), stop)

    answers: list = []
    code, log = serve(ask, "--api_key", "secret")
    assert code == 0 and '"POST /v1/chat/completions HTTP/1.1" 200' in log
    assert (answers[0].choices[0].message.content, answers[0].usage.nfe) == answer(checkpoint, "5 6")


@pytest.mark.parametrize(("adapter", "merged"), [(None, True), ("consistency", False)])
def test_an_adapter_that_is_served_alone_is_merged(serve, tmp_path, adapter, merged):
    """Beside another one, or its base, each request would have to take it out."""

    def ask(url):
        for model in httpx.get(f"{url}/models", timeout=60).json()["data"]:
            chat = {"model": model["id"], "messages": [{"role": "user", "content": "5 6"}]}
            found = httpx.post(f"{url}/chat/completions", json=chat, timeout=60).json()
            texts[model["id"]] = found["choices"][0]["message"]["content"]
        os.kill(os.getpid(), signal.SIGTERM)

    texts: dict[str, str] = {}
    save_two_students(tmp_path)
    model = str(tmp_path / "dparallel")
    flags = ["--adapter", f"other={tmp_path / adapter}"] if adapter else []
    code, log = serve(ask, *flags, model=model)
    assert code == 0 and texts[model] == answer(model, "5 6")[0]
    assert ("The adapter is merged" in log) is merged and len(texts) == 1 + len(flags) // 2


@pytest.mark.parametrize("kind", [OverflowError, SystemExit])
def test_it_ends_when_the_decoding_has_failed(serve, monkeypatch, kind):
    def fail(engine):
        raise kind("unforeseen")

    def ask(url):
        chat = {"messages": [{"role": "user", "content": "5 6"}]}
        answers.append(httpx.post(f"{url}/chat/completions", json=chat, timeout=60).status_code)

    answers: list[int] = []
    monkeypatch.setattr("hf_dparallel.serving.engine.Engine._run_pass", fail)
    code, log = serve(ask)
    assert code == 1 and f"The decoding thread has failed: {kind.__name__}('unforeseen')" in log and answers == [503]


def test_a_loopback_address_answers_this_machine_only(serve):
    def ask(url):
        for host in ("localhost", "evil.example"):
            statuses.append(httpx.get(f"{url}/models", headers={"Host": host}, timeout=60).status_code)
        os.kill(os.getpid(), signal.SIGTERM)

    statuses: list[int] = []
    assert serve(ask)[0] == 0 and statuses == [200, 403]


def test_an_address_that_is_in_use_is_said_before_the_model_is_loaded(hf):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, _, err = hf("serve", "./missing", "--port", port)
    assert code == 1 and f"Address already in use (while attempting to bind on address ('127.0.0.1', {port}))" in err


@pytest.mark.parametrize("flags", [(), ("--no_browser",)])
def test_play_opens_the_page_of_the_bundled_models(hf, monkeypatch, flags):
    launched = []
    page = SimpleNamespace(launch=lambda **settings: launched.append(settings))
    monkeypatch.setattr("hf_dparallel.inspection.play.make_page", lambda student: page)
    assert hf("play", "--port", "7861", *flags)[0] == 0
    (settings,) = launched
    assert (settings["inbrowser"], settings["server_port"]) == (not flags, 7861)


def test_a_server_for_everyone_without_key_warns(hf, monkeypatch):
    for flags, warns in ([], False), (["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api_key", "k"], False):
        code, _, err = hf("serve", "./missing", "--port", "0", *flags)
        assert code == 1 and ("Set --api_key" in err) is warns
    monkeypatch.setenv("HF_DPARALLEL_API_KEY", "k")
    assert "Set --api_key" not in hf("serve", "./missing", "--port", "0", "--host", "0.0.0.0")[2]


@pytest.mark.parametrize("key", ["", " ", "k\n"])
def test_a_key_that_no_client_could_send_is_refused(hf, monkeypatch, key):
    code, _, err = hf("serve", "./missing", "--port", "0", "--api_key", key)
    assert code == 2 and "`api_key`" in err and "is empty or has white space" in err
    monkeypatch.setenv("HF_DPARALLEL_API_KEY", key)
    assert hf("serve", "./missing", "--port", "0")[0] == 2


def test_without_the_extra_it_says_how_to_get_it(hf, monkeypatch):
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    code, _, err = hf("serve", "./missing")
    assert code == 1 and "`pip install llguidance " in err


# Several adapters on one set of weights: each answers as if it were alone, with a recipe of its own.


CHAT = [{"role": "user", "content": "5 6 7"}]
RECIPES = {"a": {"entropy_threshold": 1.0}, "b": {"confidence_threshold": 0.3}}


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
    return load_adapters(make_llada().double(), make_tokenizer(), config, adapters | {"base": None})


def alone(path: str | None) -> str:
    """What the model answers with one adapter, by its recipe."""
    model = make_llada().double()
    if path is not None:
        model.load_adapter(path)
    inputs = make_tokenizer().apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=16, block_length=8)[0, inputs["input_ids"].shape[1] :]
    return make_tokenizer().decode(tokens, skip_special_tokens=True)


def ask(url: str, model: str | None) -> str:
    body = {"messages": CHAT} | ({"model": model} if model else {})
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    return answer["choices"][0]["message"]["content"]


def test_each_name_answers_as_if_it_were_alone(adapters, models):
    expected = {name: alone(adapters.get(name)) for name in ("b", "a", "base")}
    assert len(set(expected.values())) == 3
    with running(models["base"], models) as server:
        for _ in range(2):
            assert {name: ask(server.url, name) for name in expected} == expected
        # The adapter that was the last one before the model answered without any.
        assert ask(server.url, None) == expected["a"]
        names = [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]]
    assert names == ["a", "b", "base"]
    # Each with its own recipe, whichever adapter was loaded last.
    assert models["a"].generation_config.entropy_threshold == 1.0
    assert models["b"].generation_config.confidence_threshold == 0.3
    assert models["base"].generation_config.denoising_steps == 16


def test_names():
    for adapters, expected in (
        (["x=user/a", "user/b", "y=./lr=1e-4"], {"x": "user/a", "user/b": "user/b", "y": "./lr=1e-4"}),
        ([], {}),
    ):
        assert read_names(adapters, "m") == expected
    for adapters in (["x=a", "x=b"], ["x=p"]):
        with pytest.raises(click.UsageError, match="`adapter` has 'x' twice, or"):
            read_names(adapters, adapters[0][0] if len(adapters) == 1 else "m")
