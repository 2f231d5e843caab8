# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What `generate` returns with `return_dict_in_generate=True`."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


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
