# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The autoregressive loss of Nemotron-Labs-Diffusion, beside the terms of certainty forcing."""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn
from transformers import DataCollator, PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SettingError

from ..training.block_collator import BlockCausalCollator
from ..training.config import CertaintyForcingConfig
from ..training.objective import IGNORE_INDEX, AddedTerm, RowTerms, TokenTerms, mean_by_row


# Its place among the terms, after consistency and certainty.
_COLUMN = 2


def next_token(logits: torch.Tensor, labels: torch.LongTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the cross-entropy of each scored token, all of which count."""
    losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return losses, torch.ones_like(labels, dtype=torch.bool)


@dataclass(kw_only=True)
class AutoregressiveLossConfig(CertaintyForcingConfig):
    """A [`CertaintyForcingConfig`] with an autoregressive loss for Nemotron-Labs-Diffusion, as in its own training."""

    autoregressive_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the cross-entropy of the answer in the clean copy, where each token predicts the next "
            "one: the loss by which Nemotron-Labs-Diffusion stays an autoregressive model, too. For no other model."
        },
    )

    @property
    def added_terms(self) -> dict[str, AddedTerm]:
        """The autoregressive loss, before terms of a subclass."""
        return {"autoregressive": next_token} | super().added_terms

    def choose_collator(
        self, given: DataCollator | None, model: nn.Module, processing_class: PreTrainedTokenizerBase | None
    ) -> DataCollator:
        """Returns a collator whose clean copies are scored, or raises a [`SettingError`] where they cannot be."""
        collator = super().choose_collator(given, model, processing_class)
        if not self.autoregressive_weight or isinstance(collator, AutoregressiveLossCollator):
            return collator

        is_copied = type(collator) is BlockCausalCollator and collator.attention == "causal_past"
        if not (is_copied and collator.predicts_next_block):
            raise SettingError(
                "autoregressive_weight",
                self.autoregressive_weight,
                rule=f"needs a causal clean copy, which rows of {type(collator).__name__} for this model do not have",
                remedy="Leave it out.",
            )
        settings = {each.name: getattr(collator, each.name) for each in fields(collator)}
        return AutoregressiveLossCollator(**settings)


@dataclass
class AutoregressiveLossCollator(BlockCausalCollator):
    """Makes the rows of a [`BlockCausalCollator`], with the answer as labels of the clean copy of each first view."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Masks and batches `examples`."""
        views = self.mask(examples)
        lengths = [len(row["prompt_ids"]) + len(row["completion_ids"]) for row in examples]
        noisy, clean = self.needed_columns(views)
        clean = slice(0, max(clean.stop, *lengths))
        batch = self.join_copies(views, noisy, clean)

        # Once a sequence, whatever its views.
        first_views = slice(0, len(examples))
        columns = torch.arange(clean.stop)
        ends = torch.tensor(lengths)[:, None]
        of_answer = (columns >= views.answer_start[first_views]) & (columns < ends)
        answers = views.clean[first_views, clean].masked_fill(~of_answer, IGNORE_INDEX)
        batch["labels"][first_views, batch["num_noisy"] :] = answers
        return batch

    def average(self, terms: TokenTerms, batch: dict[str, Any]) -> RowTerms:
        """Returns the terms of the noisy copies, with the autoregressive loss of the clean ones."""
        labels = batch["labels"]
        num_noisy = batch["num_noisy"]
        is_noisy = torch.arange(labels.shape[1], device=labels.device) < num_noisy
        is_noisy = is_noisy.expand_as(labels)[labels != IGNORE_INDEX].to(terms.losses.device)

        noisy = TokenTerms(*(column[is_noisy] for column in terms))
        clean = TokenTerms(*(column[~is_noisy] for column in terms))
        rows = mean_by_row(noisy, labels[:, :num_noisy])
        autoregressive = mean_by_row(clean, labels[:, num_noisy:]).losses[:, _COLUMN]

        columns = list(rows.losses.unbind(dim=1))
        columns[_COLUMN] = autoregressive
        return rows._replace(losses=torch.stack(columns, dim=1))
