# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The error of a refused or failed request."""

from dataclasses import dataclass


@dataclass(eq=False)
class RequestError(Exception):
    """The error of a request, with the fields of OpenAI's error object. `param` names the field."""

    message: str
    param: str | None = None
    status: int = 400
    code: str | None = None
    headers: dict[str, str] | None = None

    def __str__(self) -> str:
        return self.message


def shortened(value: object) -> str:
    """Returns a value as text for a message, cut to 80 characters."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
