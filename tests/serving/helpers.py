# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Servers on a free port of this machine, what they are asked, and engines without a server."""

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import openai
import torch
import uvicorn

from hf_dparallel.generation.configuration import resolve
from hf_dparallel.serving.api import make_app
from hf_dparallel.serving.engine import Engine, Prompt

from ..helpers import make_llada


PROBLEMS = [f"Mia has {n} pens . Mia buys {n % 7 + 2} pens . How many pens does Mia have now ?" for n in range(3, 67)]
SETTINGS = {"max_new_tokens": 16, "block_length": 4, "entropy_threshold": 1.0, "eos_token_id": 5, "pad_token_id": 0}


def make(make_model, tokenizer):
    ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids |= {"n_layers" if make_model is make_llada else "num_hidden_layers": 1}
    return make_model(vocab_size=len(tokenizer), pad_token_id=tokenizer.eos_token_id, **ids).double()


@contextlib.contextmanager
def running(served, models=None, num_slots=16, max_waiting=128, **settings):
    """Runs a server; yields its URL, `post` and `client` for requests, the engine and the uvicorn server."""
    engine = Engine(served.model, num_slots, max_waiting)
    app = make_app(models or {served.name: served}, engine, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", http="h11"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        address = server.servers[0].sockets[0].getsockname()
        url = "http://{}:{}".format(*address)
        yield SimpleNamespace(
            url=url,
            post=lambda body: httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60),
            client=lambda key="none": openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0),
            connect=lambda: socket.create_connection(address),
            engine=engine,
            server=server,
        )
    finally:
        server.should_exit = True
        thread.join()
        engine.close()


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


def chat(text: str) -> dict:
    return {"model": "demo", "messages": [{"role": "user", "content": text}]}


def alone(served, text: str, **settings):
    """Returns what `generate` gives: the text, the tokens of prompt and answer, the passes, and the reason to end."""
    tokenizer = served.tokenizer
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    config = resolve(served.model, served.generation_config, tokenizer)
    out = served.model.generate(**inputs, generation_config=config, return_dict_in_generate=True, **settings)
    new_tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    eos = tokenizer.eos_token_id
    num_tokens = new_tokens.index(eos) + 1 if eos in new_tokens else len(new_tokens)
    text = tokenizer.decode(new_tokens[:num_tokens], skip_special_tokens=True)
    return text, inputs["input_ids"].shape[1], num_tokens, out.nfe.item(), "stop" if eos in new_tokens else "length"


class Listener:
    """Collects what comes for a prompt."""

    def __init__(self):
        self.tokens, self.logprobs, self.finish_reason, self.error, self.nfe = [], [], None, None, 0
        self.ended = threading.Event()

    def __call__(self, progress):
        assert not self.ended.is_set() and (progress.tokens or progress.is_last)
        self.tokens += progress.tokens
        self.logprobs += progress.logprobs
        self.finish_reason, self.error, self.nfe = progress.finish_reason, progress.error, progress.nfe
        if progress.is_last:
            self.ended.set()


def make_prompt(model, ids, max_tokens=16, seed=0, **settings) -> Prompt:
    config = resolve(model, None, **(SETTINGS | settings))
    return Prompt(torch.tensor(ids), config, max_tokens, seed, listener=Listener())


def submit(engine, *prompts: Prompt) -> None:
    """Submits prompts at once: the decoding thread does not wake between them."""
    with engine._changed:
        for prompt in prompts:
            engine.submit(prompt)


def ask(engine, prompts: list[Prompt]) -> list[Listener]:
    submit(engine, *prompts)
    for prompt in prompts:
        assert prompt.listener.ended.wait(30)
    return [prompt.listener for prompt in prompts]


def ask_once(model, prompts: list[Prompt]) -> list[Listener]:
    """Calls [`ask`] with an engine for these prompts only."""
    engine = Engine(model, len(prompts), 0)
    try:
        return ask(engine, prompts)
    finally:
        engine.close()
