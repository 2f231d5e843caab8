# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Settings to try, written as `entropy_threshold=0.1:1.0:0.1` or `denoising_steps=16,32,64`."""

from decimal import Decimal, InvalidOperation
from typing import Any

from hf_dparallel_rules.settings import SETTINGS, suggest


_MAX_VALUES = 1000


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Reads the name and the values of `NAME=START:STOP:STEP`, both ends included, or `NAME=VALUE,VALUE,...`.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.sweep import parse_sweep

    >>> parse_sweep("entropy_threshold=0.1:0.5:0.2")
    ('entropy_threshold', [0.1, 0.3, 0.5])
    ```
    """
    name, _, values = text.partition("=")
    swept = [name for name, setting in SETTINGS.items() if setting.type in (int, float) and setting.has_flag]
    if name not in swept:
        rule = f"`sweep={text}` must start with one of {', '.join(swept)}, and an equals sign."
        raise ValueError(f"{rule} {suggest(name, swept)}".rstrip())
    try:
        numbers = _range(values) if ":" in values else [Decimal(value) for value in values.split(",")]
        if not all(number.is_finite() for number in numbers):
            raise ValueError("not finite")
        read = [SETTINGS[name].type(number) for number in numbers]
    except (InvalidOperation, ValueError) as error:
        raise ValueError(
            f"`sweep={text}` must be of the form {name}=START:STOP:STEP or {name}=VALUE,VALUE,... with numbers, a "
            f"positive step, and at most {_MAX_VALUES} values."
        ) from error
    if any(value != number for value, number in zip(read, numbers, strict=True) if isinstance(value, int)):
        raise ValueError(f"`sweep={text}` must have whole numbers as values of `{name}`.")
    return name, read


def _range(text: str) -> list[Decimal]:
    start, stop, step = (Decimal(part) for part in text.split(":"))
    if not step > 0 or not start <= stop <= start + _MAX_VALUES * step:
        raise ValueError("not a range")
    return [start + index * step for index in range(int((stop - start) / step) + 1)]
