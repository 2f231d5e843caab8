# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The paper's pictures of certainty (Figs. 2, 6 and 7) for decodes of one's own."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from ..generation.output import DiffusionGenerationOutput
from .certainty import mean_confidence, prediction_reliability, token_convergence
from .plots import (
    plot_confidence_and_accuracy,
    plot_confidence_at_passes,
    plot_confidence_maps,
    plot_token_convergence,
)


if TYPE_CHECKING:
    from matplotlib.figure import Figure

# As in the paper.
_NUM_PASSES = 16
_NUM_TOKENS = 160


def draw_figures(
    decodes: Mapping[str, DiffusionGenerationOutput],
    tokenizer: PreTrainedTokenizerBase,
    answers: Mapping[str, Sequence[dict[str, float]]] | None = None,
) -> dict[str, "Figure"]:
    """Draws how certainty grows in the decodes of the same prompts by several methods.

    Args:
        decodes (`dict[str, DiffusionGenerationOutput]`): by method, what `generate` or [`decode_with_certainty`] has
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


def _named_convergence(out: DiffusionGenerationOutput, tokenizer: PreTrainedTokenizerBase):
    positions, confidences = token_convergence(out)
    first = out.sequences.shape[1] - out.commit_step.shape[1]
    names = [f"{p + 1}: {tokenizer.decode([out.sequences[0, first + p].item()])}" for p in positions]
    return names, confidences.cpu()
