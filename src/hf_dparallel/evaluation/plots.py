# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Pictures of decoding: certainty over positions and passes, accuracy against speed. Needs matplotlib (`[viz]`)."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from matplotlib.axes import Axes


def mean_confidence(confidences: torch.FloatTensor, num_passes: int) -> torch.FloatTensor:
    """Averages the confidences of a decode over its rows.

    Args:
        confidences (`torch.FloatTensor` of shape `(batch_size, passes, tokens)`):
            From [`DiffusionGenerationOutput`]: NaN where a token is decided. It keeps the confidence it was decided
            with.
        num_passes (`int`):
            How many passes to return; the last one is repeated if the decode took fewer.

    Returns:
        `torch.FloatTensor` of shape `(num_passes, tokens)`.
    """
    filled = [confidences[:, 0]]
    for step in range(1, num_passes):
        current = confidences[:, min(step, confidences.shape[1] - 1)]
        filled.append(torch.where(current.isnan(), filled[-1], current))
    return torch.stack(filled, dim=1).mean(dim=0)


def plot_certainty_and_tradeoff(
    certainty: Mapping[str, torch.FloatTensor],
    curves: Mapping[str, Sequence[dict[str, Any]]],
    path: str | os.PathLike,
) -> None:
    """Draws Fig. 6 and Fig. 5 of https://huggingface.co/papers/2509.26488 side by side.

    Args:
        certainty (`dict[str, torch.FloatTensor]`):
            By method, the mean confidence of every position at every pass, `(num_passes, tokens)`.
        curves (`dict[str, Sequence[dict]]`):
            By method, points with `tokens_per_forward` and `accuracy`, in the order in which they are joined.
        path (`str` or `os.PathLike`):
            The PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(certainty) + 5.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [*[1] * len(certainty), 1.15]
    *maps, tradeoff = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for axes, (method, confidence) in zip(maps, certainty.items(), strict=True):
        image = axes.imshow(confidence, vmin=0, vmax=1, aspect="auto", cmap="viridis", interpolation="nearest")
        num_passes = len(confidence)
        ticks = range(0, num_passes, max(num_passes // 8, 1))
        axes.set_yticks(list(ticks), [str(tick + 1) for tick in ticks])
        axes.set(title=method, xlabel="Position of the new token", ylabel="Forward pass")
    if maps:
        figure.colorbar(image, ax=maps, label="Mean confidence", shrink=0.9)
    _draw_tradeoff(tradeoff, curves)
    figure.savefig(path, dpi=130)


def plot_tradeoff(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike) -> None:
    """Draws Fig. 5 of https://huggingface.co/papers/2509.26488: accuracy against tokens per forward pass.

    Args:
        curves (`dict[str, Sequence[dict]]`):
            By method, points with `tokens_per_forward` and `accuracy`, in the order in which they are joined; with
            `accuracy_interval`, its ends are drawn too.
        path (`str` or `os.PathLike`):
            The PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    _draw_tradeoff(figure.subplots(), curves)
    figure.savefig(path, dpi=130)


def _draw_tradeoff(axes: "Axes", curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for (method, points), marker in zip(curves.items(), cycle("os^Dv"), strict=False):
        x = [point["tokens_per_forward"] for point in points]
        y = [100 * point["accuracy"] for point in points]
        (line,) = axes.plot(x, y, marker=marker, label=method)
        if all("accuracy_interval" in point for point in points):
            low, high = zip(*(point["accuracy_interval"] for point in points), strict=True)
            axes.vlines(x, [100 * end for end in low], [100 * end for end in high], line.get_color(), alpha=0.35)
    axes.set(title="Accuracy against speed", xlabel="Tokens per forward pass", ylabel="Accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
