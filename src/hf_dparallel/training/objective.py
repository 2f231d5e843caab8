# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of the loss, and the objective that they make of its terms."""

from dataclasses import dataclass

import torch

from ..generation.settings import SettingError
from .hooks import Hooks, documented
from .terms import AddedTerm, CertaintyForcingTerms, TokenTerms, token_terms


@documented
@dataclass(kw_only=True)
class Objective(Hooks):
    r"""
    The weights of the terms of the loss, Eq. 8 of https://huggingface.co/papers/2509.26488.

    Parameters:
        certainty_temperature (`float`, *optional*, defaults to `0.5`):
            Temperature of the entropy that is minimized, `T` in Eq. 7.
        certainty_weight (`float`, *optional*, defaults to `2.0`):
            Weight of the certainty-forcing loss, β in Eq. 8.
        consistency_weight (`float`, *optional*, defaults to `1.0`):
            Weight of the cross-entropy on the trajectory.
    """

    certainty_temperature: float = 0.5
    certainty_weight: float = 2.0
    consistency_weight: float = 1.0

    def check(self) -> None:
        super().check()
        if not 0 < self.certainty_temperature < float("inf"):
            value = self.certainty_temperature
            raise SettingError("certainty_temperature", value, "must be positive", "The paper uses 0.5.")
        for name in ("certainty", "consistency", *self.added_terms):
            weight = getattr(self, f"{name}_weight")
            if not 0 <= weight < float("inf"):
                raise SettingError(f"{name}_weight", weight, "must be a number of at least 0")

    @property
    def added_terms(self) -> dict[str, AddedTerm]:
        """The terms that variants add, by name. Each has a setting `{name}_weight`; at 0 it is not computed."""
        return {}

    @property
    def weights(self) -> dict[str, float]:
        """The weights of all terms that are computed, by name."""
        added = {name: getattr(self, f"{name}_weight") for name in self.added_terms}
        weights = {"consistency": self.consistency_weight, "certainty": self.certainty_weight}
        return weights | {name: weight for name, weight in added.items() if weight}

    def token_terms(self, logits: torch.Tensor, targets: torch.LongTensor) -> TokenTerms:
        """The terms of scored tokens, see [`token_terms`]."""
        added = [function for name, function in self.added_terms.items() if name in self.weights]
        return token_terms(logits, targets, self.certainty_temperature, added)

    def weigh(self, terms: CertaintyForcingTerms) -> torch.Tensor:
        """Eq. 8 for every row, of shape `(rows,)`: the weighted sum of the terms."""
        weighted = [weight * values for weight, values in zip(self.weights.values(), terms.losses, strict=True)]
        return torch.stack(weighted).sum(dim=0)
