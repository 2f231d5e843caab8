# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Filters that make programs of the answers to tasks that are asked in a chat."""

from collections.abc import Sequence
from typing import Any


def fenced(answer: str) -> str | None:
    """Returns the first block of code between Markdown fences. The last fence may be missing."""
    _, fence, rest = answer.partition("```")
    if not fence:
        return None
    return rest.partition("\n")[2].partition("```")[0]


def complete_from_chat(resps: list[list[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns, for `humaneval`, the prompt and the answer's first block of code."""

    def complete(answer: str, doc: dict[str, Any]) -> str:
        code = fenced(answer)
        return doc["prompt"] + ("\n" + code if code else answer)

    return [[complete(answer, doc) for answer in answers] for answers, doc in zip(resps, docs, strict=True)]


def extract_from_chat(resps: list[list[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns, for `mbpp`, the answer's first block of code, or the answer."""
    return [[fenced(answer) or answer for answer in answers] for answers in resps]
