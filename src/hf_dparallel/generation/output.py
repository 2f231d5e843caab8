# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What `generate` returns."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import ModelOutput

from .configuration import DiffusionGenerationConfig
from .decoder import DecodedRow


@dataclass
class DiffusionGenerationOutput(ModelOutput):
    """
    Output of [`DiffusionGenerationMixin.generate`].

    Args:
        sequences (`torch.LongTensor` of shape `(batch_size, prompt_length + max_new_tokens)`):
            The prompts as given, followed by the new tokens; padding after the end of each answer.
        nfe (`torch.LongTensor` of shape `(batch_size,)`):
            Number of function evaluations: the forward passes that each row took part in.
        tokens_per_forward (`torch.FloatTensor` of shape `(batch_size,)`):
            New tokens up to and including the first end-of-sequence token, over `nfe`. Padding never counts.
        commit_step (`torch.LongTensor` of shape `(batch_size, max_new_tokens)`):
            The pass, counted from 0, at which each token was committed; -1 for padding after the end of the answer.
        entropies, confidences (`torch.FloatTensor` of shape `(batch_size, num_passes, max_new_tokens)`, *optional*):
            Entropy (nats) and largest probability of the prediction at every token that was still masked before the
            pass, NaN elsewhere. Returned with `output_certainty=True`.
    """

    sequences: torch.LongTensor | None = None
    nfe: torch.LongTensor | None = None
    tokens_per_forward: torch.FloatTensor | None = None
    commit_step: torch.LongTensor | None = None
    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None


def collect_rows(
    rows: list[DecodedRow], input_ids: torch.LongTensor, config: DiffusionGenerationConfig
) -> torch.LongTensor | DiffusionGenerationOutput:
    """Makes the output of `generate` from the decoded rows and the prompts, both in the order of the prompts."""
    if config.max_new_tokens:
        sequences = torch.cat([input_ids, torch.stack([row.tokens for row in rows])], dim=1)
    else:
        sequences = input_ids.clone()
        for sequence, row in zip(sequences, rows, strict=True):
            sequence[-len(row.tokens) :] = row.tokens
    if not config.return_dict_in_generate:
        return sequences
    width = max(len(row.tokens) for row in rows)
    return DiffusionGenerationOutput(
        sequences=sequences,
        nfe=torch.tensor([row.nfe for row in rows], device=input_ids.device),
        tokens_per_forward=torch.tensor([row.tokens_per_forward for row in rows], device=input_ids.device),
        commit_step=torch.stack([_left_padded(row.commit_step, width, -1) for row in rows]),
        entropies=_stacked([row.entropies for row in rows], width) if config.output_certainty else None,
        confidences=_stacked([row.confidences for row in rows], width) if config.output_certainty else None,
    )


def _left_padded(values: torch.Tensor, width: int, fill: float) -> torch.Tensor:
    return pad(values, (width - values.shape[-1], 0), value=fill)


def _stacked(histories: list[torch.Tensor], width: int) -> torch.Tensor:
    """Fills up the passes that a row did not take part in."""
    return pad_sequence(
        [_left_padded(history, width, torch.nan) for history in histories], batch_first=True, padding_value=torch.nan
    )
