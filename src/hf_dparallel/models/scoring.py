# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Scoring: the logits of some positions, or a function of them, for decoding, loss and likelihood alike."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers.integrations import is_deepspeed_zero3_enabled


# Logits in memory at a time: 64 MB in float32, and several times as much for the loss. With a vocabulary of 126k these
# are 132 positions.
_CHUNK_NUMEL = 2**24

Terms = TypeVar("Terms", bound=NamedTuple)


class ScoringMixin:
    """Gives [`score`] to a model whose forward pass computes the logits of all positions."""

    # Whether the logits of its forward pass at position i - 1 score token i, as in models that started from an
    # autoregressive checkpoint.
    shift_logits = False

    def prepare_adapter(self, peft_config: Any) -> Any:
        """Returns the configuration of an adapter to train, as the model needs it."""
        return peft_config

    def check_student(self, student: nn.Module) -> None:
        """Raises a `ValueError` if weights of `student`, this model or its PEFT model, must not be trained."""

    def score(
        self,
        inputs: dict[str, torch.Tensor],
        where: torch.Tensor,
        function: "Callable[[torch.Tensor, torch.LongTensor], Terms] | None" = None,
        labels: torch.LongTensor | None = None,
        forward: Callable[..., Any] | None = None,
    ) -> "torch.Tensor | Terms":
        """Computes the logits at some positions; `logits[:, i]` score the token at position `where[:, i]`.

        `inputs` are arguments of the forward pass; those that the model does not take are left out. `forward` replaces
        the pass of `self`, wrapped for several processes or compiled. The positions are of shape `(rows, positions)`
        and give logits `(rows, positions, vocab_size)`; or they are a boolean mask `(rows, length)`, and give
        `(num_true, vocab_size)`.

        `function` is a differentiable function of the logits `(num_positions, vocab_size)` of some of the positions,
        and of their labels, from `labels` `(rows, length)`. It returns a `NamedTuple` of tensors with an entry for
        each position, which are concatenated field by field. Only the logits of one call are in memory at a time.
        """
        if forward is None:
            forward = self.__call__  # type: ignore[operator]
        positions = inputs.get("position_ids")
        if not self.hides_padding:  # type: ignore[attr-defined]
            # Without padding a model finds positions by itself, and may count them in a way of its own.
            inputs = {name: value for name, value in inputs.items() if name != "position_ids"}

        logits = forward(**accepted_inputs(self, inputs)).logits
        if self.shift_logits:
            logits = shift_predictions(logits, positions)
        logits = select_positions(logits, where)
        if function is None:
            return logits

        return apply_in_chunks(nn.Identity(), function, logits, select_labels(labels, where), logits.shape[-1])


def accepted_inputs(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the `inputs` that the forward pass of a model takes."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return inputs
    return {name: value for name, value in inputs.items() if name in parameters}


def shift_predictions(
    predictions: torch.Tensor,
    position_ids: torch.LongTensor | None,
    predicting_columns: torch.LongTensor | None = None,
) -> torch.Tensor:
    """Moves every prediction `(rows, length, size)` one token on: logits, or the hidden states they come from.

    A first token keeps its own, as in the published samplers. Without `position_ids` there is no padding. Rows in
    which a column other than the one before predicts a token have `predicting_columns`, `(rows, length)`.
    """
    if predicting_columns is not None:
        rows = torch.arange(len(predictions), device=predictions.device)[:, None]
        return predictions[rows, predicting_columns.to(predictions.device)]

    shifted = torch.cat([predictions[:, :1], predictions[:, :-1]], dim=1)
    if position_ids is None:
        return shifted

    # With padding on the left the first token is not the first column.
    is_first = (position_ids == 0)[..., None].to(predictions.device)
    return torch.where(is_first, predictions, shifted)


def select_positions(predictions: torch.Tensor, where: int | torch.Tensor) -> torch.Tensor:
    """Selects `predictions`, `(rows, length, size)`, at `where`, as transformers' `logits_to_keep` does."""
    if isinstance(where, int):
        return predictions[:, -where:]

    # A model can be spread over several devices, and the head be on a different one from the inputs.
    where = where.to(predictions.device)
    if where.dtype == torch.bool:
        return predictions[where]
    if where.ndim == 1:
        return predictions[:, where]
    # `take_along_dim`, as in transformers, fixes the length for which code is compiled.
    return predictions.gather(1, where[..., None].expand(-1, -1, predictions.shape[-1]))


def select_labels(labels: torch.LongTensor, where: int | torch.Tensor) -> torch.LongTensor:
    """Selects labels, `(rows, length)`, at `where`, and flattens them."""
    return select_positions(labels[..., None], where).flatten()


def apply_in_chunks(
    head: Callable[[torch.Tensor], torch.Tensor],
    function: "Callable[[torch.Tensor, torch.LongTensor], Terms]",
    hidden_states: torch.Tensor,
    labels: torch.LongTensor,
    vocab_size: int,
) -> "Terms":
    """Returns `function(head(hidden_states), labels)` with a bounded number of logits in memory.

    The backward pass computes the logits of each chunk again (https://huggingface.co/papers/1604.06174), except in the
    last chunk: its backward pass comes first, when dropping them would gain nothing.
    """
    hidden_states = hidden_states.flatten(0, -2)
    size = max(1, _CHUNK_NUMEL // vocab_size)
    # One chunk also where no position is selected, so that the result is connected to the parameters.
    chunks = list(zip(hidden_states.split(size), labels.to(hidden_states.device).split(size), strict=True))

    if isinstance(head, FSDPModule) or is_deepspeed_zero3_enabled():
        # Each chunk gathers the weights from all processes, so all need as many chunks, empty ones if need be.
        most = torch.tensor(len(chunks), device=hidden_states.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        states, targets = chunks[0]
        empty = (states[:0], targets[:0])
        chunks = [empty] * (int(most) - len(chunks)) + chunks

    def apply(states: torch.Tensor, targets: torch.LongTensor) -> "Terms":
        return function(head(states), targets)

    parts = [checkpoint(apply, *chunk, use_reentrant=False) for chunk in chunks[:-1]]
    parts.append(apply(*chunks[-1]))

    # Field by field.
    fields = [torch.cat(of_parts) for of_parts in zip(*parts, strict=True)]
    return type(parts[0])(*fields)
