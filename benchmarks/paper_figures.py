# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The paper's other pictures of certainty, of any model and its adapter on word problems.

    python benchmarks/paper_figures.py --folder figures
    python benchmarks/paper_figures.py --model GSAI-ML/LLaDA-8B-Instruct --adapter user/llada-dparallel \\
        --max_new_tokens 256 --folder figures

Figures are numbered as in https://huggingface.co/papers/2509.26488. `hf-dparallel evaluate --sweep` draws Fig. 5, and
`hf-dparallel inspect --figures` Fig. 7. Needs the extra `[viz]`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.data.prompts import tokenize_prompts
from hf_dparallel.data.rewards import RewardFunction, answers_correct
from hf_dparallel.demo import STUDENT, TEACHER, word_problem_dataset
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.generation.output import DiffusionGenerationOutput
from hf_dparallel.inspection.certainty import committed_confidence, mean_confidence, required
from hf_dparallel.inspection.plots import MARKERS, draw_accuracy, make_axes


if TYPE_CHECKING:
    from datasets import Dataset
    from matplotlib.figure import Figure

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
# Passes and tokens of the paper's pictures.
NUM_PASSES, NUM_TOKENS = 16, 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the pictures")
    parser.add_argument("--model", default=TEACHER, help="by default the bundled teacher")
    parser.add_argument("--adapter", default=STUDENT, help="by default the bundled student")
    parser.add_argument("--num_problems", type=int, default=64)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--entropy_threshold", type=float, default=0.5)
    parser.add_argument("--batch_size", type=int, default=16)
    arguments = parser.parse_args()
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(arguments.model),
        AutoTokenizer.from_pretrained(arguments.model),
    )
    problems = word_problem_dataset(arguments.num_problems, seed=0, split="test")
    recipe = DiffusionGenerationConfig(
        max_new_tokens=arguments.max_new_tokens, entropy_threshold=arguments.entropy_threshold, output_certainty=True
    )
    answerer = Answerer(model, tokenizer, recipe, arguments.batch_size)
    prompts = tokenize_prompts(problems, tokenizer, answerer.config.mask_token_id)
    decodes: dict[str, DiffusionGenerationOutput] = {}
    answers: dict[str, list[dict[str, Any]]] = {}
    for name in ("teacher", "student"):
        if name == "student":
            model.load_adapter(arguments.adapter)
        decodes[name] = answerer.decode(prompts, name)
        answers[name] = []
        for threshold in THRESHOLDS:
            out = answerer.with_(confidence_threshold=threshold).decode(prompts, f"{name}, {threshold}")
            point = answer_confidence_and_accuracy(out, tokenizer, problems, numeric_answer_reward)
            answers[name].append({"label": str(threshold), **point})
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, figure in plot_certainty(decodes, tokenizer, answers).items():
        figure.savefig(arguments.folder / f"{name}.png")
        print(arguments.folder / f"{name}.png")


@dataclass
class Reliability:
    """How often predictions are right, by their confidence.

    Args:
        confidence (`torch.FloatTensor` of shape `(bins,)`): mean confidence of the predictions in each bin, NaN if
            there are none.
        accuracy (`torch.FloatTensor` of shape `(bins,)`): the part of them that is right, NaN if there are none.
        count (`torch.LongTensor` of shape `(bins,)`): how many there are.
    """

    confidence: torch.FloatTensor
    accuracy: torch.FloatTensor
    count: torch.LongTensor


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
        the first answer) and `confidence_at_passes` (Fig. 6).
    """
    certainty = {
        method: mean_confidence(out.confidences, NUM_PASSES)[:, :NUM_TOKENS].cpu() for method, out in decodes.items()
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
        "confidence_at_passes": plot_confidence_at_passes(certainty, passes=(NUM_PASSES // 2, NUM_PASSES)),
    }


def plot_confidence_at_passes(certainty: Mapping[str, torch.FloatTensor], passes: Sequence[int] = (8, 16)) -> "Figure":
    """Draws Fig. 6: a panel for each of some passes, counted from 1, of the mean confidence of every position."""
    figure, panels = make_axes(len(passes), (5.2 * len(passes), 3.8), sharey=True)
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

    figure, panels = make_axes(len(convergence), (5.2 * len(convergence), 4.4), sharey=True)
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
    figure, all_axes = make_axes(num_panels, (4.6 * num_panels, 5.2), rows=2, height_ratios=(4, 1), sharex="col")
    panels, below = all_axes[:num_panels], all_axes[num_panels:]
    for axes, counts, (title, methods) in zip(panels, below, reliability.items(), strict=False):
        for (method, measured), marker in zip(methods.items(), cycle(MARKERS), strict=False):
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
        for (method, points), marker in zip(answers.items(), cycle(MARKERS), strict=False):
            ordered = sorted(points, key=lambda point: point["confidence"])
            draw_accuracy(panels[-1], ordered, "confidence", marker, method)
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


def token_convergence(
    out: DiffusionGenerationOutput, row: int = 0, num_tokens: int = 8
) -> tuple[list[int], torch.FloatTensor]:
    """Tracks the confidence of single tokens over the passes (the paper's Fig. 2c).

    Args:
        out ([`DiffusionGenerationOutput`]): of a decode.
        row (`int`, *optional*, defaults to 0): the answer to look at.
        num_tokens (`int`, *optional*, defaults to 8): how many tokens, spread evenly over the answer.

    Returns:
        `tuple`: the positions of the tokens, and their confidences of shape `(nfe, num_tokens)`. A decided token keeps
        the confidence that it was decided with.
    """
    decided = (out.commit_step[row] >= 0).nonzero().flatten()
    num_tokens = min(num_tokens, len(decided))
    positions = decided[torch.linspace(0, len(decided) - 1, num_tokens, device=decided.device).round().long()]
    kept = mean_confidence(required(out, "confidences")[row : row + 1], int(out.nfe[row]))
    return positions.tolist(), kept[:, positions]


def answer_confidence_and_accuracy(
    out: DiffusionGenerationOutput,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    reward_funcs: RewardFunction | list[RewardFunction],
) -> dict[str, Any]:
    """Returns the committed tokens' mean `confidence` and the answers' `accuracy`: a point of the paper's Fig. 2a.

    With `accuracy_interval`, where the accuracy would lie with other prompts of the same kind ([`wilson_interval`]).

    Args:
        out ([`DiffusionGenerationOutput`]): the answers to the prompts of `dataset`.
        tokenizer, dataset, reward_funcs: as for [`evaluate_decoding`].
    """
    completion_ids = [tokens[tokens >= 0].tolist() for tokens in committed_tokens(out)]
    accuracy = fmean(answers_correct(dataset, completion_ids, tokenizer, reward_funcs))
    return {
        "confidence": committed_confidence(out).mean().item(),
        "accuracy": accuracy,
        "accuracy_interval": list(wilson_interval(accuracy, len(dataset))),
    }


def prediction_reliability(
    out: DiffusionGenerationOutput,
    reference: torch.LongTensor | None = None,
    passes: Sequence[int] | None = None,
    num_bins: int = 10,
) -> Reliability:
    """Compares what is predicted of masked tokens with what is committed in the end, by the predictions' confidence.

    Args:
        out ([`DiffusionGenerationOutput`]): of a decode.
        reference (`torch.LongTensor` of shape `(batch_size, max_new_tokens)`, *optional*): the right tokens, -1 where
            there is none. By default the committed ones; another decode's measure a student by its teacher.
        passes (`Sequence[int]`, *optional*): the passes, counted from 0, whose predictions count. By default all.
        num_bins (`int`, *optional*, defaults to 10): bins of equal width between 0 and 1.

    Raises:
        ValueError: if no answer took part in one of `passes`.
    """
    predictions, probabilities = required(out, "candidates"), required(out, "candidate_probabilities")
    num_passes = predictions.shape[1]
    chosen = list(range(num_passes)) if passes is None else list(passes)
    beyond = [step for step in chosen if not 0 <= step < num_passes]
    if beyond:
        raise ValueError(
            f"`passes` must be between 0 and {num_passes - 1}, the last pass of the decode, got {beyond}."
        )
    if reference is None:
        reference = committed_tokens(out)
    predicted, confidence = predictions[:, chosen, :, 0], probabilities[:, chosen, :, 0]
    is_compared = (predicted >= 0) & (reference >= 0)[:, None]
    is_right = (predicted == reference[:, None])[is_compared].float().cpu()
    confidence = confidence[is_compared].cpu()
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    count = torch.bincount(bins, minlength=num_bins)
    sums = [torch.bincount(bins, weights=values, minlength=num_bins) for values in (confidence, is_right)]
    mean_of_bin, accuracy = (torch.where(count > 0, total / count, torch.nan).float() for total in sums)
    return Reliability(mean_of_bin, accuracy, count)


def committed_tokens(out: DiffusionGenerationOutput) -> torch.LongTensor:
    """Returns the tokens that a decode has committed, `(batch_size, max_new_tokens)`, -1 where there are none."""
    tokens = out.sequences[:, out.sequences.shape[1] - out.commit_step.shape[1] :]
    return tokens.masked_fill(out.commit_step < 0, -1)


if __name__ == "__main__":
    main()
