# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Pictures of decoding: certainty over positions and passes, accuracy against speed. Needs matplotlib (`[viz]`).

Each function returns a `matplotlib.figure.Figure`; its `savefig` writes it to a file. Figures are numbered as in
https://huggingface.co/papers/2509.26488.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from ..evaluation.intervals import wilson_interval
from ..generation.output import DiffusionGenerationOutput
from .certainty import Reliability, mean_confidence, prediction_reliability, token_convergence


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "os^Dv"
# Passes and tokens of the paper's maps.
_NUM_PASSES = 16
_NUM_TOKENS = 160


def plot_certainty(
    decodes: Mapping[str, DiffusionGenerationOutput],
    tokenizer: PreTrainedTokenizerBase,
    answers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, "Figure"]:
    """Draws how certainty grows in the decodes of the same prompts by several methods.

    Args:
        decodes (`dict[str, DiffusionGenerationOutput]`): by method, what `generate` or [`Answerer.decode`] has
            returned with `output_certainty=True`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): names the single tokens.
        answers (`dict[str, Sequence[dict]]`, *optional*): by method, points of [`answer_confidence_and_accuracy`].

    Returns:
        `dict[str, matplotlib.figure.Figure]`: `confidence_and_accuracy` (Fig. 2a), `token_convergence` (Fig. 2c, of
        the first answer), `confidence_at_passes` (Fig. 6) and `confidence_maps` (Fig. 7).
    """
    certainty = {
        method: mean_confidence(out.confidences, _NUM_PASSES)[:, :_NUM_TOKENS].cpu() for method, out in decodes.items()
    }
    reliability = {
        "first pass": {method: prediction_reliability(out, passes=[0]) for method, out in decodes.items()},
        "all passes": {method: prediction_reliability(out) for method, out in decodes.items()},
    }
    return {
        "confidence_and_accuracy": plot_confidence_and_accuracy(reliability, answers),
        "token_convergence": plot_token_convergence(
            {method: _named_convergence(out, tokenizer) for method, out in decodes.items()}
        ),
        "confidence_at_passes": plot_confidence_at_passes(certainty, passes=(_NUM_PASSES // 2, _NUM_PASSES)),
        "confidence_maps": plot_confidence_maps(certainty),
    }


def plot_tradeoff(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], certainty: Mapping[str, torch.FloatTensor] | None = None
) -> "Figure":
    """Draws Fig. 5, accuracy against tokens per forward pass, of the points of each method in their order.

    With `accuracy_interval`, its ends are drawn too; a `label`, such as the threshold, is written beside its point.
    With `certainty`, the maps of [`plot_confidence_maps`] stand beside it.
    """
    widths = [*[1] * len(certainty or {}), 1.15]
    figure, (*maps, axes) = _make_axes(len(widths), (4.4 * len(widths) + 2, 4.2), width_ratios=widths)
    _draw_maps(maps, certainty or {})
    for (method, points), marker in zip(curves.items(), cycle(_MARKERS), strict=False):
        _draw_accuracy(axes, points, "tokens_per_forward", marker, method)
    axes.set(title="Accuracy against speed", xlabel="Tokens per forward pass", ylabel="Accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    return figure


def plot_confidence_maps(certainty: Mapping[str, torch.FloatTensor]) -> "Figure":
    """Draws Fig. 7: by method, the mean confidence of every position at every pass, `(num_passes, tokens)`."""
    figure, axes = _make_axes(len(certainty), (4.4 * len(certainty) + 1.0, 4.2))
    _draw_maps(axes, certainty)
    return figure


def plot_confidence_at_passes(certainty: Mapping[str, torch.FloatTensor], passes: Sequence[int] = (8, 16)) -> "Figure":
    """Draws Fig. 6: a panel for each of some passes, counted from 1, of what [`plot_confidence_maps`] draws of all."""
    figure, panels = _make_axes(len(passes), (5.2 * len(passes), 3.8), sharey=True)
    for axes, number in zip(panels, passes, strict=True):
        for method, confidence in certainty.items():
            axes.plot(range(1, confidence.shape[1] + 1), confidence[number - 1], label=method)
        axes.set(title=f"Pass {number}", xlabel="Position of the new token", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("Mean confidence")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def plot_token_convergence(convergence: Mapping[str, tuple[Sequence[str], torch.FloatTensor]]) -> "Figure":
    """Draws Fig. 2c: by method, the names of single tokens and their confidences over the passes, `(nfe, tokens)`."""
    from matplotlib import colormaps

    figure, panels = _make_axes(len(convergence), (5.2 * len(convergence), 4.4), sharey=True)
    for axes, (method, (names, confidences)) in zip(panels, convergence.items(), strict=True):
        for index, name in enumerate(names):
            color = colormaps["viridis"](0.95 * index / max(len(names) - 1, 1))
            passes = range(1, len(confidences) + 1)
            # Matplotlib reads `$` as mathematics, and has no glyphs for control characters.
            label = repr(name)[1:-1].replace("$", r"\$")
            axes.plot(passes, confidences[:, index], color=color, marker=".", label=label)
        axes.set(title=method, xlabel="Forward pass", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, columnspacing=1.0)
    panels[0].set_ylabel("Confidence")
    return figure


def plot_confidence_and_accuracy(
    reliability: Mapping[str, Mapping[str, Reliability]],
    answers: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> "Figure":
    """Draws Fig. 2a, confidence against accuracy: of single predictions, and of whole answers, with 95 % intervals.

    `reliability` is by title of a panel, such as the passes, and by method; below is how many predictions there are of
    each confidence. `answers` are as for [`plot_certainty`], with `accuracy_interval` and `label` as for
    [`plot_tradeoff`], and joined in the order of their confidence.
    """
    num_panels = len(reliability) + bool(answers)
    figure, all_axes = _make_axes(num_panels, (4.6 * num_panels, 5.2), rows=2, height_ratios=(4, 1), sharex="col")
    panels, below = all_axes[:num_panels], all_axes[num_panels:]
    for axes, counts, (title, methods) in zip(panels, below, reliability.items(), strict=False):
        for (method, measured), marker in zip(methods.items(), cycle(_MARKERS), strict=False):
            filled = measured.count > 0
            confidence = measured.confidence[filled]
            (line,) = axes.plot(confidence, measured.accuracy[filled], marker=marker, label=method)
            low, high = wilson_interval(measured.accuracy, measured.count)
            axes.vlines(confidence, low[filled], high[filled], line.get_color(), alpha=0.35)
            counts.plot(confidence, measured.count[filled], marker=marker, markersize=4)
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="perfect calibration")
        axes.set(title=f"Predictions, {title}", xlim=(0, 1.02), ylim=(0, 1.02))
        counts.set(xlabel="Confidence of the prediction", yscale="log")
        counts.grid(alpha=0.3)
    panels[0].set_ylabel("Fraction committed in the end")
    below[0].set_ylabel("Predictions")
    if answers:
        for (method, points), marker in zip(answers.items(), cycle(_MARKERS), strict=False):
            ordered = sorted(points, key=lambda point: point["confidence"])
            _draw_accuracy(panels[-1], ordered, "confidence", marker, method)
        panels[-1].set(title="Answers", xlabel="Mean confidence of committed tokens", ylabel="Accuracy (%)")
        panels[-1].tick_params(labelbottom=True)
        below[-1].set_axis_off()
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


def _named_convergence(out: DiffusionGenerationOutput, tokenizer: PreTrainedTokenizerBase):
    positions, confidences = token_convergence(out)
    first = out.sequences.shape[1] - out.commit_step.shape[1]
    names = [f"{p + 1}: {tokenizer.decode([out.sequences[0, first + p].item()])}" for p in positions]
    return names, confidences.cpu()


def _make_axes(columns: int, size: tuple[float, float], rows: int = 1, **kwargs) -> tuple["Figure", list["Axes"]]:
    """Makes a figure without pyplot, which would keep it in memory and need a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=130)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **kwargs).flat)


def _draw_maps(axes_of_maps: Sequence["Axes"], certainty: Mapping[str, torch.FloatTensor]) -> None:
    from matplotlib.ticker import MaxNLocator

    for axes, (method, confidence) in zip(axes_of_maps, certainty.items(), strict=True):
        num_passes, num_tokens = confidence.shape
        edges = (0.5, num_tokens + 0.5, num_passes + 0.5, 0.5)
        image = axes.imshow(confidence.numpy(), vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=edges)
        axes.set(title=method, xlabel="Position of the new token", ylabel="Forward pass")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if axes_of_maps:
        axes.figure.colorbar(image, ax=list(axes_of_maps), label="Mean confidence", shrink=0.9)


def _draw_accuracy(axes: "Axes", points: Sequence[Mapping[str, Any]], figure: str, marker: str, method: str) -> None:
    """Draws the accuracy of the points of a method over another of their figures."""
    x = [point[figure] for point in points]
    y = [100 * point["accuracy"] for point in points]
    (line,) = axes.plot(x, y, marker=marker, label=method)
    if all("accuracy_interval" in point for point in points):
        low, high = zip(*(point["accuracy_interval"] for point in points), strict=True)
        axes.vlines(x, [100 * end for end in low], [100 * end for end in high], line.get_color(), alpha=0.35)
    # Neighbours often lie close together. Points in one place have their labels one above the other.
    labels = defaultdict(list)
    for point, place in zip(points, zip(x, y, strict=True), strict=True):
        labels[place].append(point.get("label", ""))
    style = {"textcoords": "offset points", "fontsize": "x-small", "color": line.get_color()}
    for (place, names), below in zip(labels.items(), cycle((False, True)), strict=False):
        axes.annotate("\n".join(names), place, (4, -4 if below else 4), va="top" if below else "bottom", **style)
    axes.margins(x=0.1)
