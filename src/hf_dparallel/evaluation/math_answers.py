# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Whether the answers to mathematical problems are right, by math-verify (`[math]`)."""

from collections.abc import Sequence

from ..environment import require


def math_answers_correct(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    r"""
    Compares answers as mathematics: `0.5` is `\frac{1}{2}`.

    Args:
        predictions (`Sequence[str]`):
            The whole texts of the answers. What is in `\boxed{}` counts, else the last formula or number.
        references (`Sequence[str]`):
            The right answers: LaTeX without dollar signs or prose (`"2\pi"`), solutions with a `\boxed{}` (MATH), or
            solutions that end with `#### 18` (GSM8K).

    Returns:
        `list[bool]`: for each answer whether it is right. One that cannot be read is wrong.

    Raises:
        ValueError: if a reference cannot be read.

    Example:

    ```python
    >>> from hf_dparallel.evaluation.math_answers import math_answers_correct

    >>> math_answers_correct([r"So it is $\frac{2}{4}$.", "It is 7."], ["0.5", "2 * 4 = 8 #### 8"])
    [True, False]
    ```
    """
    require("math_answers_correct", "math_verify")
    from math_verify import parse, verify

    correct = []
    for index, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        boxed = reference if r"\boxed" in reference else rf"\boxed{{{reference.rpartition('####')[2].strip()}}}"
        gold = parse(boxed)
        if not gold:
            raise ValueError(f"No answer can be read from reference {index}: {reference!r}. Pass the answer in LaTeX.")
        correct.append(bool(verify(gold, parse(prediction))))
    return correct
