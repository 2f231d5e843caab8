# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Serving: many streaming requests at once against one at a time, and against `transformers serve`.

    python benchmarks/serve.py --output benchmarks/results/serve.json

Every server runs in this process, with the bundled teacher, and is asked by the openai client over HTTP. The answers
are compared with those of `generate` for each prompt alone. The speed-up is in processor time of this process, servers
and clients together, which other programs on the machine disturb less than the time of the clock.
"""

import argparse
import asyncio
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import torch
import uvicorn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo import TEACHER
from hf_dparallel.demo.pipeline import load_teacher
from hf_dparallel.demo.word_problems import generate_word_problems
from hf_dparallel.reports import write_json
from hf_dparallel.serving.api import ServedModel, make_app
from hf_dparallel.serving.engine import Engine


RECIPE = {"max_new_tokens": 64, "block_length": 32, "entropy_threshold": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--num_requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, tokenizer = load_teacher(torch.float32, path=args.teacher)
    problems = [problem.question for problem in islice(generate_word_problems(0, "test"), args.num_requests)]
    expected = [answer_alone(model, tokenizer, problem) for problem in problems]
    passes = count_rows(model)

    rounds = [
        [
            measure(model, tokenizer, passes, problems, expected, *case)
            for case in (
                ("transformers serve", None, args.num_requests),
                ("hf-dparallel serve", 16, 1),
                ("hf-dparallel serve", 16, args.num_requests),
                ("hf-dparallel serve", 64, args.num_requests),
            )
        ]
        for _ in range(args.repeats)
    ]
    rows = [median_of(same) for same in zip(*rounds, strict=True)]
    print(as_table(rows))
    if args.output:
        report = {"num_requests": args.num_requests, "recipe": RECIPE, "torch_threads": torch.get_num_threads()}
        write_json(report | {"repeats": args.repeats, "rows": rows}, args.output)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passes: list[int],
    problems: list[str],
    expected: list[str],
    name: str,
    batch_size: int | None,
    concurrency: int,
) -> dict[str, Any]:
    """Starts a server, asks it all problems, and returns what that took."""
    is_ours = batch_size is not None
    server = our_server(model, tokenizer, batch_size) if is_ours else transformers_server(model)
    with server as (url, served_name):
        ask_all(url, served_name, problems[:2], 1, is_ours)  # warm
        passes.clear()
        figures = ask_all(url, served_name, problems, concurrency, is_ours)
    texts = figures.pop("texts")
    return (
        {"server": name, "batch_size": batch_size, "concurrent_requests": concurrency}
        | figures
        | {
            "passes": len(passes),
            "rows_per_pass": sum(passes) / len(passes),
            "num_as_alone": sum(text == other for text, other in zip(texts, expected, strict=True)),
        }
    )


def median_of(rounds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Returns the medians; for answers that are as alone, the minimum."""
    fewest = min(row["num_as_alone"] for row in rounds)
    medians = {
        name: statistics.median(row[name] for row in rounds) if isinstance(value, float) else value
        for name, value in rounds[0].items()
    }
    return medians | {"num_as_alone": fewest}


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
    server = uvicorn.Server(uvicorn.Config(make_app({served.name: served}, engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", "demo"
    server.should_exit = True
    thread.join()
    engine.close()


@contextmanager
def transformers_server(model: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """Starts transformers' server, with the one change that it needs to find our model's class."""
    from transformers.cli.serve import Serve
    from transformers.cli.serving.model_manager import ModelManager

    ModelManager._load_model = lambda *args, **kwargs: model
    port = 18437
    serve = Serve(force_model=TEACHER, port=port, device="cpu", dtype="float32", non_blocking=True)
    while not serve.server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}", TEACHER
    serve.kill_server()


def ask_all(url: str, model_name: str, problems: list[str], concurrency: int, is_ours: bool) -> dict[str, Any]:
    """Asks with `concurrency` streaming requests, and returns the texts and the times."""
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

    start, cpu_start = time.perf_counter(), time.process_time()
    answers = asyncio.run(run())
    return {
        "texts": [text for text, *_ in answers],
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "first_text_s": sum(first or 0 for _, first, _ in answers) / len(answers),
        "latency_s": sum(latency for *_, latency in answers) / len(answers),
    }


def as_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| Server | Slots | Requests at once | Passes | Rows a pass | As alone | Seconds | CPU seconds | Speed-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    one_at_a_time = next(row["cpu_seconds"] for row in rows if row["concurrent_requests"] == 1)
    for row in rows:
        lines.append(
            f"| {row['server']} | {row['batch_size'] or '-'} | {row['concurrent_requests']} | {row['passes']} | "
            f"{row['rows_per_pass']:.1f} | {row['num_as_alone']} | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} | "
            f"{one_at_a_time / row['cpu_seconds']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
