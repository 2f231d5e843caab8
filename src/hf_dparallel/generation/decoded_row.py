# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The result of a row, and its progress before that."""

from dataclasses import dataclass
from typing import NamedTuple

import torch


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
        is_nan (`bool`): whether the row ended because the model predicted NaN.
        entropies, confidences (`torch.FloatTensor` of shape `(nfe, max_new_tokens)`, *optional*), candidates,
        candidate_probabilities (of shape `(nfe, max_new_tokens, 5)`, *optional*), standing (`torch.LongTensor` of
            shape `(nfe, max_new_tokens)`, *optional*): as in [`DiffusionGenerationOutput`].
        seconds (`float`): wall-clock time from the row's entry into the batch to its end, other rows' share included.
        error (`Exception`, *optional*): why the row was not decoded to its end.
    """

    index: int
    tokens: torch.LongTensor
    commit_step: torch.LongTensor
    nfe: int
    num_tokens: int
    num_revisions: int
    is_nan: bool
    entropies: torch.FloatTensor | None = None
    confidences: torch.FloatTensor | None = None
    candidates: torch.LongTensor | None = None
    candidate_probabilities: torch.FloatTensor | None = None
    standing: torch.LongTensor | None = None
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def tokens_per_forward(self) -> float:
        """Returns the decoded tokens per forward pass."""
        return self.num_tokens / self.nfe if self.nfe else 0.0


class RowProgress(NamedTuple):
    """Newly final tokens of an unfinished row, up to and including the first end token, and its passes so far."""

    tokens: list[int]
    nfe: int
