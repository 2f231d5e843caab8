# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Serving: many streaming requests at once against one at a time.

    python benchmarks/serve.py --output benchmarks/results/serve.json

The server runs in this process, with the bundled teacher, and is asked by the openai client over HTTP. The answers are
compared with those of `generate` for each prompt alone. The speed-up is in processor time of this process, server and
clients together, which other programs on the machine disturb less than the time of the clock.
"""

import argparse
import asyncio
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
from hf_dparallel.demo.pipeline import load_teacher
from hf_dparallel.demo.word_problems import generate_word_problems
from hf_dparallel.reports import markdown_table, write_json
from hf_dparallel.serving.api import ServedModel, make_app
from hf_dparallel.serving.engine import Engine


RECIPE = {"max_new_tokens": 64, "block_length": 32, "entropy_threshold": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_requests", type=int, default=64)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, tokenizer = load_teacher(torch.float32)
    problems = [problem.question for problem in islice(generate_word_problems(0, "test"), args.num_requests)]
    expected = [answer_alone(model, tokenizer, problem) for problem in problems]
    # The number of rows of every forward pass.
    passes: list[int] = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    rows = []
    for slots, concurrency in ((16, 1), (16, args.num_requests), (64, args.num_requests)):
        with start_server(model, tokenizer, slots) as url:
            asyncio.run(ask_all(url, problems[:2], 1))  # warm
            passes.clear()
            start, cpu_start = time.perf_counter(), time.process_time()
            texts = asyncio.run(ask_all(url, problems, concurrency))
            row = {
                "batch_size": slots,
                "concurrent_requests": concurrency,
                "passes": len(passes),
                "rows_per_pass": sum(passes) / len(passes),
                "num_as_alone": sum(text == other for text, other in zip(texts, expected, strict=True)),
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu_start,
            }
        rows.append(row | {"speedup": rows[0]["cpu_seconds"] / row["cpu_seconds"] if rows else 1.0})
    lines = [[f"{value:.1f}" if isinstance(value, float) else value for value in row.values()] for row in rows]
    print(markdown_table(list(rows[0]), lines, num_text_columns=0))
    if args.output:
        report = {"num_requests": args.num_requests, "recipe": RECIPE, "torch_threads": torch.get_num_threads()}
        write_json(report | {"rows": rows}, args.output)


def answer_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problem: str) -> str:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    sequences = model.generate(**inputs, **RECIPE)
    return tokenizer.decode(sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@contextmanager
def start_server(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, slots: int) -> Iterator[str]:
    """Gives the address of a server with so many slots."""
    engine = Engine(model, slots, max_waiting=1024)
    served = ServedModel("demo", model, tokenizer, DiffusionGenerationConfig(**RECIPE))
    server = uvicorn.Server(uvicorn.Config(make_app({served.name: served}, engine), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
    engine.close()


async def ask_all(url: str, problems: list[str], concurrency: int) -> list[str]:
    """Asks with so many streaming requests at once, and returns the texts."""
    slots = asyncio.Semaphore(concurrency)

    async def ask(client: openai.AsyncOpenAI, problem: str) -> str:
        async with slots:
            chat: Any = [{"role": "user", "content": problem}]
            stream = await client.chat.completions.create(model="demo", messages=chat, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
        return await asyncio.gather(*(ask(client, problem) for problem in problems))


if __name__ == "__main__":
    main()
