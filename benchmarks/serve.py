# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Serving: many streaming requests at once against one at a time, and against `transformers serve`.

    python benchmarks/serve.py --output benchmarks/results/serve.json

Every server runs in this process, with the bundled teacher, and is asked by the openai client over HTTP. The answers
are compared with those of `generate` for each prompt alone.
"""

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import openai
import torch
import uvicorn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo.pipeline import TEACHER_PATH, load_teacher
from hf_dparallel.demo.word_problems import generate_word_problems
from hf_dparallel.serving.app import make_app
from hf_dparallel.serving.engine import Engine
from hf_dparallel.serving.requests import ServedModel


RECIPE = {"max_new_tokens": 64, "block_length": 32, "entropy_threshold": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_requests", type=int, default=64)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, tokenizer = load_teacher(torch.float32)
    problems = [problem.question for problem in islice(generate_word_problems(0, "test"), args.num_requests)]
    expected = [answer_alone(model, tokenizer, problem) for problem in problems]
    passes = count_rows(model)

    rows = []
    for name, batch_size, concurrency in (
        ("transformers serve", None, args.num_requests),
        ("hf-dparallel serve", 64, 1),
        ("hf-dparallel serve", 16, args.num_requests),
        ("hf-dparallel serve", 64, args.num_requests),
    ):
        server = transformers_server(model) if batch_size is None else our_server(model, tokenizer, batch_size)
        with server as (url, served_name):
            is_ours = batch_size is not None
            ask_all(url, served_name, problems[:2], 1, is_ours)  # warm
            passes.clear()
            figures = ask_all(url, served_name, problems, concurrency, is_ours)
        texts = figures.pop("texts")
        rows.append(
            {"server": name, "batch_size": batch_size, "concurrent_requests": concurrency}
            | figures
            | {
                "passes": len(passes),
                "rows_per_pass": sum(passes) / len(passes),
                "num_as_alone": sum(text == other for text, other in zip(texts, expected, strict=True)),
            }
        )
    one_at_a_time = next(row["seconds"] for row in rows if row["concurrent_requests"] == 1)
    for row in rows:
        row["speedup"] = one_at_a_time / row["seconds"]
    print(as_table(rows))
    if args.output:
        report = {"num_requests": args.num_requests, "recipe": RECIPE, "torch_threads": torch.get_num_threads()}
        args.output.write_text(json.dumps(report | {"rows": rows}, indent=2) + "\n")


def answer_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problem: str) -> str:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    sequences = model.generate(**inputs, **RECIPE)
    return tokenizer.decode(sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def count_rows(model: PreTrainedModel) -> list[int]:
    """Returns a list that gets the number of rows of every forward pass."""
    rows: list[int] = []

    def count(module, args, kwargs):
        rows.append(len(kwargs["input_ids"]))

    model.model.register_forward_pre_hook(count, with_kwargs=True)
    return rows


@contextmanager
def our_server(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> Iterator[tuple[str, str]]:
    engine = Engine(model, batch_size, max_waiting=1024)
    served = ServedModel("demo", model, tokenizer, DiffusionGenerationConfig(**RECIPE))
    server = uvicorn.Server(uvicorn.Config(make_app(served, engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", "demo"
    server.should_exit = True
    thread.join()


@contextmanager
def transformers_server(model: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """The server of transformers, with the one change that it needs to find the class of our model."""
    from transformers.cli.serve import Serve
    from transformers.cli.serving.model_manager import ModelManager

    ModelManager._load_model = lambda *args, **kwargs: model
    port = 18437
    serve = Serve(force_model=str(TEACHER_PATH), port=port, device="cpu", dtype="float32", non_blocking=True)
    while not serve.server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}", str(TEACHER_PATH)
    serve.kill_server()


def ask_all(url: str, model_name: str, problems: list[str], concurrency: int, is_ours: bool) -> dict:
    """Asks with so many streaming requests at a time, and returns the texts and the times."""
    # Where there is no recipe of the server, the request carries it.
    extra_body = None if is_ours else {"generation_config": json.dumps(RECIPE | {"do_sample": False})}

    async def ask(client, slots, problem):
        async with slots:
            start, first, text = time.perf_counter(), None, ""
            messages = [{"role": "user", "content": problem}]
            stream = await client.chat.completions.create(
                model=model_name, messages=messages, stream=True, extra_body=extra_body
            )
            async for chunk in stream:
                part = chunk.choices[0].delta.content if chunk.choices else None
                if part:
                    first = first or time.perf_counter() - start
                    text += part
            return text, first, time.perf_counter() - start

    async def run():
        slots = asyncio.Semaphore(concurrency)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            return await asyncio.gather(*(ask(client, slots, problem) for problem in problems))

    start = time.perf_counter()
    answers = asyncio.run(run())
    seconds = time.perf_counter() - start
    return {
        "texts": [text for text, *_ in answers],
        "seconds": seconds,
        "answers_per_second": len(answers) / seconds,
        "first_text_s": sum(first or 0 for _, first, _ in answers) / len(answers),
        "latency_s": sum(latency for *_, latency in answers) / len(answers),
    }


def as_table(rows: list[dict]) -> str:
    lines = [
        "| Server | Slots | Requests at once | Passes | Rows a pass | As alone | First text | Latency | Speed-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['server']} | {row['batch_size'] or '-'} | {row['concurrent_requests']} | {row['passes']} | "
            f"{row['rows_per_pass']:.1f} | {row['num_as_alone']} | {row['first_text_s']:.2f} s | "
            f"{row['latency_s']:.2f} s | {row['speedup']:.1f}x |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
