# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The metrics of this package as modules of `evaluate`."""

from pathlib import Path
from typing import Any


METRICS = ("aup", "decoding_efficiency", "math_accuracy", "pass_at_1")


def load(name: str, **kwargs) -> Any:
    """Loads one of `METRICS`, from the files of this package and without a network.

    This calls `evaluate.load` with the path of its folder and with `kwargs`.

    Example:

    ```python
    >>> from hf_dparallel.evaluation import metrics

    >>> metrics.load("math_accuracy").compute(predictions=["It is 7."], references=["7"])
    {'accuracy': 1.0}
    ```
    """
    import evaluate

    if name not in METRICS:
        raise ValueError(f"`name` must be one of {', '.join(METRICS)}, got {name!r}.")
    return evaluate.load(str(Path(__file__).parent / name), **kwargs)
