# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Servers of the bundled teacher, on a free port of this machine."""

import contextlib
import json
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo.pipeline import load_teacher
from hf_dparallel.serving.app import make_app
from hf_dparallel.serving.engine import Engine
from hf_dparallel.serving.requests import ServedModel
from hf_dparallel.serving.server import Server

from ..helpers import make_llada


@pytest.fixture(scope="session")
def served() -> ServedModel:
    """The bundled teacher. In float64, as in exact arithmetic, no answer depends on what else is in the batch."""
    model, tokenizer = load_teacher(torch.float64)
    return ServedModel("demo", model, tokenizer, DiffusionGenerationConfig(entropy_threshold=0.5, max_new_tokens=64))


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that a character may need several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with tokens such as `",` that end a value and begin what follows."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
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


@pytest.fixture(scope="session")
def served_json(tokenizer) -> ServedModel:
    recipe = DiffusionGenerationConfig(max_new_tokens=104, block_length=8, entropy_threshold=4.0)
    return ServedModel("tiny", make(make_llada, tokenizer), tokenizer, recipe)


@contextlib.contextmanager
def running(served, models=None, num_slots=16, max_waiting=128, grace_seconds=30.0, uvicorn=None, **settings):
    """A server in a thread; gives its URL, `post` and `client` for requests, the engine and the uvicorn server."""
    engine = Engine(served.model, num_slots, max_waiting)
    app = make_app(models or {served.name: served}, engine, **settings)
    server = Server(app, engine, grace_seconds, port=0, **(uvicorn or {}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        address = server.servers[0].sockets[0].getsockname()
        url = "http://{}:{}".format(*address)
        yield SimpleNamespace(
            url=url,
            post=lambda body, path="chat/completions": httpx.post(f"{url}/v1/{path}", json=body, timeout=60),
            client=lambda key="none": openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0),
            connect=lambda: socket.create_connection(address),
            engine=engine,
            server=server,
        )
    finally:
        server.should_exit = True
        thread.join()
        engine.close()


@pytest.fixture(scope="session")
def server(served):
    with running(served) as server:
        yield server


class Gate:
    """Holds every pass of a model until it is opened, at the latest at its end; notes how large each of them is."""

    def __init__(self, model):
        self.open = threading.Event()
        self.rows, self.widths = [], []
        self._hook = model.model.register_forward_pre_hook(self._wait, with_kwargs=True)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.open.set()
        self._hook.remove()

    def _wait(self, module, args, kwargs):
        self.rows.append(len(kwargs["input_ids"]))
        self.widths.append(kwargs["input_ids"].shape[1])
        assert self.open.wait(30)


def wait_for(condition, seconds: float = 30) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
