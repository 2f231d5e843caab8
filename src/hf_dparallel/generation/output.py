# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The output of `generate`, and the result of one row and its progress before that."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import ModelOutput

from .configuration import DiffusionGenerationConfig


# Enough to see the alternatives of a prediction.
NUM_CANDIDATES = 5
# By name, the value where there is no prediction, and the shape after (passes, tokens).
HISTORIES: dict[str, tuple[float, tuple[int, ...]]] = {
    "entropies": (torch.nan, ()),
    "confidences": (torch.nan, ()),
    "candidates": (-1, (NUM_CANDIDATES,)),
    "candidate_probabilities": (torch.nan, (NUM_CANDIDATES,)),
    "standing": (-1, ()),
}


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
            The pass, counted from 0, that last set each token; -1 for padding after the end of the answer.
        num_revisions (`torch.LongTensor` of shape `(batch_size,)`):
            How often a decided token of the row was changed or taken back before its block was left.
        entropies, confidences (`torch.FloatTensor` of shape `(batch_size, num_passes, max_new_tokens)`, *optional*):
            With `output_certainty=True`: what the commit rules compare with their thresholds, entropy (nats) and
            probability of the likeliest token at every position that was masked before the pass, NaN elsewhere. The
            entropy is infinite where the model prefers the mask token.
        candidates (`torch.LongTensor` of shape `(batch_size, num_passes, max_new_tokens, 5)`, *optional*):
            The likeliest tokens of the same predictions, the likeliest first, -1 elsewhere and where the vocabulary
            has fewer. The mask token, which is never committed, is left out.
        candidate_probabilities (`torch.FloatTensor` of the shape of `candidates`, *optional*):
            Their probabilities, NaN elsewhere.
        standing (`torch.LongTensor` of shape `(batch_size, num_passes, max_new_tokens)`, *optional*):
            The token at each position before the pass, -1 for a mask: where tokens are revised, what they were.
        drafts_proposed, drafts_accepted (`torch.LongTensor` of shape `(batch_size, block_length - 1)`, *optional*):
            In exact decoding: how often a token was drafted at each place after the next token, and was accepted.
    """

    # `ModelOutput` needs defaults.
    sequences: torch.LongTensor = None
    nfe: torch.LongTensor = None
    tokens_per_forward: torch.FloatTensor = None
    commit_step: torch.LongTensor = None
    num_revisions: torch.LongTensor = None
    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None
    candidates: torch.LongTensor | None = None
    candidate_probabilities: torch.FloatTensor | None = None
    standing: torch.LongTensor | None = None
    drafts_proposed: torch.LongTensor | None = None
    drafts_accepted: torch.LongTensor | None = None


@dataclass
class DecodedRow:
    """The answer to one prompt, or the error that ended it.

    Args:
        index (`int`): the number that the prompt was added under.
        tokens (`torch.LongTensor` of shape `(max_new_tokens,)`): the new tokens, padding after the end of the answer;
            when infilling, the whole prompt.
        commit_step (`torch.LongTensor` of the shape of `tokens`): the pass that committed each token, -1 for none.
        nfe (`int`): forward passes that the row took part in.
        num_tokens (`int`): decoded tokens, up to and including the first end-of-sequence token.
        num_revisions (`int`): how often a decided token was changed or taken back.
        entropies, confidences, candidates, candidate_probabilities, standing (`torch.Tensor`, *optional*): the row's
            part of [`DiffusionGenerationOutput`], with `nfe` passes.
        drafts_proposed, drafts_accepted (`torch.LongTensor` of shape `(block_length - 1,)`, *optional*): the same.
        seconds (`float`): wall-clock time from the row's entry into the batch to its end, other rows' share included.
        error (`Exception`, *optional*): why the row was not decoded to its end.
    """

    index: int
    tokens: torch.LongTensor
    commit_step: torch.LongTensor
    nfe: int
    num_tokens: int
    num_revisions: int
    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None
    candidates: torch.LongTensor | None = None
    candidate_probabilities: torch.FloatTensor | None = None
    standing: torch.LongTensor | None = None
    drafts_proposed: torch.LongTensor | None = None
    drafts_accepted: torch.LongTensor | None = None
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Returns the decoded tokens per forward pass."""
        return self.num_tokens / self.nfe if self.nfe else 0.0


def collect_rows(
    rows: list[DecodedRow], input_ids: torch.LongTensor, config: DiffusionGenerationConfig
) -> torch.LongTensor | DiffusionGenerationOutput:
    """Makes the output of `generate` from the decoded rows and the prompts, both in the order of the prompts."""
    if config.is_infilling:
        sequences = input_ids.clone()
        for sequence, row in zip(sequences, rows, strict=True):
            sequence[-len(row.tokens) :] = row.tokens
    else:
        sequences = torch.cat([input_ids, torch.stack([row.tokens for row in rows])], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    width = input_ids.shape[1] if config.is_infilling else config.max_new_tokens
    histories = HISTORIES if config.output_certainty else {}
    drafts = ("drafts_proposed", "drafts_accepted") if config.exact else ()
    return DiffusionGenerationOutput(
        sequences=sequences,
        **{
            name: torch.tensor([getattr(row, name) for row in rows], device=input_ids.device)
            for name in ("nfe", "tokens_per_forward", "num_revisions")
        },
        commit_step=torch.stack([pad(row.commit_step, (width - len(row.commit_step), 0), value=-1) for row in rows]),
        **{name: _stacked([getattr(row, name) for row in rows], width, fill) for name, (fill, _) in histories.items()},
        **{name: torch.stack([getattr(row, name) for row in rows]).to(input_ids.device) for name in drafts},
    )


def _stacked(histories: list[torch.Tensor], width: int, fill: float) -> torch.Tensor:
    """Stacks the histories of rows. Fills up missing columns on the left, and missing passes at the end."""
    padded = [pad(each, (0, 0) * (each.ndim - 2) + (width - each.shape[1], 0), value=fill) for each in histories]
    return pad_sequence(padded, batch_first=True, padding_value=fill)
