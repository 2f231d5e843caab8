# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy under parallelism (AUP): accuracy and tokens per forward pass of one method in one number.

Defined in https://huggingface.co/papers/2601.07568 and https://hao-ai-lab.github.io/blogs/text-diffusion/.
"""

import math
from collections.abc import Sequence
from itertools import pairwise


def accuracy_under_parallelism(
    tokens_per_forward: Sequence[float],
    accuracy: Sequence[float],
    max_accuracy: float | None = None,
) -> float:
    """
    Computes the weighted area under the curve of accuracy over tokens per forward pass.

    With the points (ρᵢ, yᵢ) in the order of their tokens per forward pass ρ, and with accuracies y in percent,

        AUP = ρ₁ y₁ + ½ Σ (ρᵢ − ρᵢ₋₁) (yᵢ W(yᵢ) + yᵢ₋₁ W(yᵢ₋₁)), where W(y) = min(exp(−3 (1 − y / y_max)), 1).

    Points more than 5 percentage points below the slowest one are left out.

    Args:
        tokens_per_forward (`Sequence[float]`):
            The `answer_tokens_per_forward` of each setting of the method, see [`mean_cost`].
        accuracy (`Sequence[float]`):
            The accuracy with each setting, in percent.
        max_accuracy (`float`, *optional*):
            y_max, the best accuracy of all the methods that are compared on the task, in percent. By default the
            best of this method.

    Raises:
        ValueError: if the points do not make a curve or the accuracies are no percentages.

    Example (dParallel on GSM8K, of the leaderboard, where it is 358.1422):

    ```python
    >>> from hf_dparallel.evaluation.aup import accuracy_under_parallelism

    >>> round(accuracy_under_parallelism([1.0, 5.14], [74.0, 72.63], max_accuracy=74.98), 4)
    358.1422
    ```
    """
    is_curve = 0 < len(accuracy) == len(tokens_per_forward) == len(set(tokens_per_forward))
    if not is_curve or min(tokens_per_forward) <= 0:
        raise ValueError(
            "`tokens_per_forward` must have a number above 0 for each of the accuracies, and each another one, got "
            f"{list(tokens_per_forward)} for {len(accuracy)} accuracies."
        )

    best = max(accuracy) if max_accuracy is None else max_accuracy
    if min(accuracy) < 0 or not 1 < max(best, *accuracy) <= 100:
        raise ValueError(
            f"`accuracy` and `max_accuracy` must be percentages between 0 and 100, got {list(accuracy)} and {best}. "
            "Multiply fractions by 100."
        )

    points = sorted(zip(tokens_per_forward, accuracy, strict=True))
    first_rho, first_y = points[0]
    weighted = []
    for rho, y in points:
        if y >= first_y - 5:
            weight = min(math.exp(-3 * (1 - y / best)), 1.0)
            weighted.append((rho, y * weight))

    area = first_rho * first_y
    for (rho, y), (next_rho, next_y) in pairwise(weighted):
        area += (next_rho - rho) * (y + next_y) / 2
    return area
