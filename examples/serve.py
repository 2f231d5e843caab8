# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Asks a server several questions at the same time, and prints each answer with what it cost.

    hf-dparallel serve demo --max_new_tokens 64 --entropy_threshold 0.5        # in another terminal
    python examples/serve.py --questions "What is 14 + 6?" "Ben has 3 keys and finds 2. How many are there?"

Needs the client of OpenAI: `pip install openai`. The questions share the forward passes of the server.
"""

import argparse
import asyncio

from openai import AsyncOpenAI


async def ask(client: AsyncOpenAI, model: str, question: str, threshold: float | None) -> str:
    """Streams an answer and returns it with its cost."""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"entropy_threshold": threshold} if threshold is not None else None,
    )
    text = ""
    async for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if chunk.usage is not None:
            usage = chunk.usage
    return f"{question}\n  {text}\n  {usage.nfe} forward passes, {usage.tokens_per_forward:.2f} tokens per pass"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--api_key", default="none", help="key of the server, if it has one")
    parser.add_argument("--questions", nargs="+", required=True)
    parser.add_argument("--entropy_threshold", type=float, help="by default that of the server")
    args = parser.parse_args()
    client = AsyncOpenAI(base_url=f"{args.url}/v1", api_key=args.api_key)
    model = (await client.models.list()).data[0].id
    answers = [ask(client, model, question, args.entropy_threshold) for question in args.questions]
    for answer in await asyncio.gather(*answers):
        print(answer)


if __name__ == "__main__":
    asyncio.run(main())
