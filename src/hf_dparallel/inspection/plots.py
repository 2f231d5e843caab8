# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The picture of accuracy against speed. Needs matplotlib (`[viz]`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_tradeoff(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draws Fig. 5: accuracy against tokens per forward pass, with one line through the points of each method.

    An `accuracy_interval` is drawn as a bar, and a `label`, such as the threshold, is written beside its point.
    Numbered as in https://huggingface.co/papers/2509.26488. `savefig` of the figure writes it to a file.
    """
    from matplotlib.figure import Figure

    # Without pyplot, which would keep the figure in memory and need a display.
    figure = Figure(figsize=(6.4, 4.2), layout="constrained", dpi=130)
    axes = figure.subplots()
    for (method, points), marker, above in zip(curves.items(), cycle("os^Dv"), cycle((True, False)), strict=False):
        x = [point["tokens_per_forward"] for point in points]
        y = [100 * point["accuracy"] for point in points]

        (line,) = axes.plot(x, y, marker=marker, label=method)
        if all("accuracy_interval" in point for point in points):
            low = [100 * point["accuracy_interval"][0] for point in points]
            high = [100 * point["accuracy_interval"][1] for point in points]
            axes.vlines(x, low, high, line.get_color(), alpha=0.35)

        # Points in one place have their labels one above the other; every second curve, below them.
        labels = defaultdict(list)
        for point, place in zip(points, zip(x, y, strict=True), strict=True):
            labels[place].append(point.get("label", ""))

        style = {"textcoords": "offset points", "fontsize": "x-small", "color": line.get_color()}
        offset = (4, 4) if above else (4, -4)
        side = "bottom" if above else "top"
        for place, names in labels.items():
            axes.annotate("\n".join(names), place, offset, va=side, **style)

    axes.set(title="Accuracy against speed", xlabel="Tokens per forward pass", ylabel="Accuracy (%)")
    axes.margins(x=0.15, y=0.15)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower right", ncols=3)
    return figure
