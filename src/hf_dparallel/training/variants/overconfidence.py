# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A penalty on certain wrong predictions."""

from dataclasses import dataclass

import torch

from hf_dparallel_rules.certainty import confidence_from_logits, entropy_from_logits

from ..hooks import documented
from ..objective import AddedTerm, Objective


# The probability above which a wrong prediction is penalized.
OVERCONFIDENT = 0.6


@documented
@dataclass(kw_only=True)
class Overconfidence(Objective):
    r"""
    The penalty of WINO+ (https://huggingface.co/papers/2605.16941) on predictions that are certain and wrong.

        M_o       = { i in M_a : argmax p_i != y_i and max p_i > 0.6 }
        objective = Eq. 8 of the paper - overconfidence_weight * mean over i in M_o of H(p_i)

    Logged as `overconfidence_loss`: minus the entropy of these predictions, in nats, summed over the views of a
    sequence.

    Parameters:
        overconfidence_weight (`float`, *optional*, defaults to `0.0`):
            Weight of the penalty on wrong predictions of more than 0.6, whose entropy is raised.
    """

    overconfidence_weight: float = 0.0

    @property
    def added_terms(self) -> dict[str, AddedTerm]:
        return super().added_terms | {"overconfidence": penalty}


def penalty(logits: torch.Tensor, targets: torch.LongTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus the entropy of each prediction, and whether it is certain and wrong."""
    is_wrong = logits.argmax(dim=-1) != targets
    return -entropy_from_logits(logits), is_wrong & (confidence_from_logits(logits.detach()) > OVERCONFIDENT)
