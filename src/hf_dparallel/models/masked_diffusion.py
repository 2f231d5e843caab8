# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What LLaDA and Dream share: a bidirectional backbone with a head that runs only where it is asked to."""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import MaskedLMOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import has_file
from transformers.utils.generic import can_return_tuple

from ..shift import shift_predictions


# Logits in memory at a time: 64 MB in float32, and several times as much for the loss. With a vocabulary of 126k these
# are 132 positions.
_CHUNK_NUMEL = 2**24
_DOWNLOAD_ARGUMENTS = ("cache_dir", "local_files_only", "proxies", "revision", "token")
_SAFE_FILES = ("model.safetensors", "model.safetensors.index.json")
_PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def make_bidirectional(backbone: nn.Module) -> None:
    """Lets every position of a transformers decoder attend to every other one.

    `config.is_causal = False` is what the mask creation reads; the attention functions (SDPA without a mask, flash
    attention) read the flag of the module.
    """
    for layer in backbone.layers:
        layer.self_attn.is_causal = False


class MaskedDiffusionHead:
    """The forward pass of a masked diffusion language model over `self.model` and `self.lm_head`."""

    config: PreTrainedConfig
    model: nn.Module
    lm_head: nn.Module
    # Whether the hidden state at position i - 1 predicts token i, as in models that start from an AR checkpoint.
    shift_logits = False
    _runs_head_where_asked = True

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, use_safetensors: bool | None = None, **kwargs):
        """Loads a checkpoint as [`~transformers.PreTrainedModel.from_pretrained`] does, if it is complete and safe.

        Raises:
            ValueError: if weights are missing. transformers would draw them at random and only report it.
            OSError: if all weights are pickled; `use_safetensors=False` reads those.
        """
        if use_safetensors is None and pretrained_model_name_or_path is not None:
            _refuse_pickles(str(pretrained_model_name_or_path), kwargs)
        return super().from_pretrained(  # type: ignore[misc]
            pretrained_model_name_or_path, *args, use_safetensors=use_safetensors, **kwargs
        )

    def _adjust_missing_and_unexpected_keys(self, loading_info) -> None:
        super()._adjust_missing_and_unexpected_keys(loading_info)  # type: ignore[misc]
        if loading_info.missing_keys:
            missing = sorted(loading_info.missing_keys)
            raise ValueError(
                f"The checkpoint {self.config.name_or_path!r} lacks {len(missing)} weights of {type(self).__name__}, "
                f"such as {missing[0]!r}. Is it a complete checkpoint of this architecture?"
            )

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: int | torch.Tensor | None = None,
        logits_function: Callable[[torch.Tensor, slice], torch.Tensor] | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        r"""
        Predicts the token of every position; `logits[:, i]` always scores token `i`.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Token ids, the mask token where a token is to be predicted.
            attention_mask (`torch.Tensor`, *optional*):
                1 for real tokens, 0 for padding, of shape `(batch_size, sequence_length)`; or a 4-D mask.
            position_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Positions for the rotary embedding.
            past_key_values (`Cache`, *optional*):
                Keys and values of positions that are not in `input_ids`.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`, *optional*):
                Embeddings, instead of `input_ids`.
            labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                The clean tokens, -100 where nothing is scored: adds the mean cross-entropy as `loss`. Needs
                `logits_to_keep=0`. (Certainty-forcing distillation has its own loss, see
                [`certainty_forcing_loss`].)
            logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0):
                Where the head runs. 0: everywhere. A positive `int`: the last positions. A tensor of positions,
                `(num_positions,)` or `(batch_size, num_positions)`; or a boolean mask `(batch_size,
                sequence_length)`, which gives logits of shape `(num_true, vocab_size)`. With a vocabulary of 126k
                this is most of the memory and, on small models, of the time.
            num_items_in_batch (`int` or `torch.Tensor`, *optional*):
                Number of labels that `loss` is divided by, instead of those in this batch. The Trainer passes it when
                it accumulates gradients.
            logits_function (`Callable`, *optional*):
                A differentiable function that is called for the logits of some kept positions of all rows at a time,
                `(num_positions, vocab_size)`, and which of all they are (a `slice`). `logits` is then what it
                returned, put together. Only the logits of one call are in memory at a time, in the backward pass too,
                where all but the last are computed again.

        Returns:
            [`~transformers.modeling_outputs.MaskedLMOutput`] with `logits` of shape `(batch_size, num_positions,
            vocab_size)`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        if self.shift_logits:
            hidden_states = shift_predictions(hidden_states, position_ids)
        hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep)
        if logits_function is None:
            logits = self.lm_head(hidden_states)
        else:
            logits = apply_in_chunks(self.lm_head, logits_function, hidden_states, self.config.vocab_size)

        loss = None
        if labels is not None:
            loss = _cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def apply_in_chunks(
    head: Callable[[torch.Tensor], torch.Tensor],
    function: Callable[[torch.Tensor, slice], torch.Tensor],
    hidden_states: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    """`function` of `head(hidden_states)`, with a bounded number of logits in memory.

    The backward pass computes the logits of each chunk again (https://huggingface.co/papers/1604.06174), but not those
    of the last one: its backward pass comes first, when nothing would be gained by having dropped them.
    """
    hidden_states = hidden_states.flatten(0, -2)
    size = max(1, _CHUNK_NUMEL // vocab_size)
    # One call also where nothing is kept, so that the result is connected to the parameters.
    starts = range(0, max(len(hidden_states), 1), size)
    parts = []
    for start in starts:
        chunk = slice(start, start + size)

        def apply(hidden: torch.Tensor, chunk: slice = chunk) -> torch.Tensor:
            return function(head(hidden), chunk)

        states = hidden_states[chunk]
        is_last = start == starts[-1]
        parts.append(apply(states) if is_last else checkpoint(apply, states, use_reentrant=False))
    return torch.cat(parts)


def _refuse_pickles(name: str, kwargs: dict[str, Any]) -> None:
    """Raises an `OSError` if a folder or repository has pickled weights only, which transformers would read."""
    download = {key: kwargs[key] for key in _DOWNLOAD_ARGUMENTS if kwargs.get(key) is not None}
    variant = f".{kwargs['variant']}" if kwargs.get("variant") else ""

    def exists(file: str) -> bool:
        stem, _, suffix = file.rpartition(".")
        return has_file(
            name, str(PurePosixPath(kwargs.get("subfolder") or "", f"{stem}{variant}.{suffix}")), **download
        )

    try:
        is_pickled = not any(map(exists, _SAFE_FILES)) and any(map(exists, _PICKLED_FILES))
    except OSError:
        # There is no such repository, or nobody answers: transformers says so.
        return
    if is_pickled:
        raise OSError(
            f"{name!r} has no weights in safetensors. Pickled weights can run code when they are read, and are "
            "refused. If you trust them, pass `use_safetensors=False`, and save the model again."
        )


def _cross_entropy(
    logits: torch.Tensor, labels: torch.LongTensor, num_items_in_batch: int | torch.Tensor | None
) -> torch.Tensor:
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"`labels` must have one entry for each of the logits, got {tuple(labels.shape)} for "
            f"{tuple(logits.shape[:-1])}. Leave `logits_to_keep` at 0 when you pass labels."
        )
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch
