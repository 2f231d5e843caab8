# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Pictures of decoding: certainty over positions and passes, accuracy against speed. They need matplotlib (`[viz]`).

Functions that draw return a `matplotlib.figure.Figure`; its `savefig` writes it to a file. Figures are numbered as in
https://huggingface.co/papers/2509.26488. The numbers are of decodes with `output_certainty=True`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_tradeoff(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draws Fig. 5: accuracy against tokens per forward pass, with one line through the points of each method.

    An `accuracy_interval` is drawn as a bar, and a `label`, such as the threshold, is written beside its point.
    """
    figure, (axes,) = _make_axes(6.4, 1)
    for (method, points), marker, above in zip(curves.items(), cycle("os^Dv"), cycle((True, False)), strict=False):
        x = [point["tokens_per_forward"] for point in points]
        y = [100 * point["accuracy"] for point in points]
        (line,) = axes.plot(x, y, marker=marker, label=method)
        if all("accuracy_interval" in point for point in points):
            low, high = zip(*(point["accuracy_interval"] for point in points), strict=True)
            axes.vlines(x, [100 * end for end in low], [100 * end for end in high], line.get_color(), alpha=0.35)
        # Points in one place have their labels one above the other; every second curve, below them.
        labels = defaultdict(list)
        for point, place in zip(points, zip(x, y, strict=True), strict=True):
            labels[place].append(point.get("label", ""))
        style = {"textcoords": "offset points", "fontsize": "x-small", "color": line.get_color()}
        for place, names in labels.items():
            axes.annotate("\n".join(names), place, (4, 4 if above else -4), va="bottom" if above else "top", **style)
    axes.set(title="Accuracy against speed", xlabel="Tokens per forward pass", ylabel="Accuracy (%)")
    axes.margins(x=0.15, y=0.15)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower right", ncols=3)
    return figure


def plot_confidence_maps(certainty: Mapping[str, torch.FloatTensor]) -> "Figure":
    """Draws Fig. 7: by method, the mean confidence of every position at every pass, `(num_passes, tokens)`."""
    figure, all_axes = _make_axes(4.4 * len(certainty) + 1.0, len(certainty))
    for axes, (method, confidence) in zip(all_axes, certainty.items(), strict=True):
        num_passes, num_tokens = confidence.shape
        edges = (0.5, num_tokens + 0.5, num_passes + 0.5, 0.5)
        image = axes.imshow(
            confidence.cpu().numpy(), vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=edges
        )
        axes.set(title=method, xlabel="Position of the new token", ylabel=f"First {num_passes} forward passes")
    figure.colorbar(image, ax=all_axes, label="Mean confidence", shrink=0.9)
    return figure


def mean_confidence(confidences: torch.FloatTensor, num_passes: int) -> torch.FloatTensor:
    """Averages the confidences of a decode over its rows (the paper's Figs. 2b, 6 and 7).

    Args:
        confidences (`torch.FloatTensor` of shape `(batch_size, passes, tokens)`): from [`DiffusionGenerationOutput`]:
            NaN where a token is decided, which keeps the confidence it was decided with.
        num_passes (`int`): how many passes to return; the last one is repeated if the decode took fewer.

    Returns:
        `torch.FloatTensor` of shape `(num_passes, tokens)`.
    """
    kept = [confidences[:, 0]]
    for step in range(1, num_passes):
        current = confidences[:, min(step, confidences.shape[1] - 1)]
        kept.append(torch.where(current.isnan(), kept[-1], current))
    return torch.stack(kept, dim=1).mean(dim=0)


def _make_axes(width: float, count: int) -> tuple["Figure", list["Axes"]]:
    """Makes a figure without pyplot, which would keep it in memory and need a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.2), layout="constrained", dpi=130)
    return figure, list(figure.subplots(1, count, squeeze=False).flat)
