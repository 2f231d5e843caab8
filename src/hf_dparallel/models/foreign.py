# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` for masked language models of other classes."""

import functools
from typing import Any

import torch
from transformers import PreTrainedModel

from ..attention_masks import make_attention_mask
from ..generation.answerer import evaluation_mode
from ..generation.compatibility import longest_sequence
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.inputs import vocabulary_size
from ..generation.mixin import DiffusionGenerationMixin
from .scoring import ScoringMixin, accepted_inputs


def enable_diffusion_generation(
    model: PreTrainedModel, mask_token_id: int | None = None, shift_logits: bool = False
) -> PreTrainedModel:
    r"""
    Gives [`~DiffusionGenerationMixin.generate`] to a masked language model of any class: remote code, ModernBERT, ...

    The model object is changed in place, and its class is left alone. In a PEFT model it is the base model.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            A bidirectional model whose output has `logits` of shape `(batch_size, sequence_length, vocab_size)`.
        mask_token_id (`int`, *optional*):
            Id of the mask token. Defaults to the one of `model.config`.
        shift_logits (`bool`, *optional*, defaults to `False`):
            Set it when the logits at position `i - 1` score token `i`, as in models that were started from an
            autoregressive checkpoint.

    Returns:
        The same model.

    Raises:
        ValueError: if no mask token is known, or a short run shows that the model is causal or block-causal, ignores
            its attention mask, or is random.

    ```python
    >>> from transformers import AutoModelForMaskedLM
    >>> from hf_dparallel import enable_diffusion_generation

    >>> model = AutoModelForMaskedLM.from_pretrained("answerdotai/ModernBERT-base")  # doctest: +SKIP
    >>> model = enable_diffusion_generation(model, mask_token_id=50284)  # doctest: +SKIP
    ```
    """
    if hasattr(model, "get_base_model"):
        enable_diffusion_generation(model.get_base_model(), mask_token_id, shift_logits)
        return model
    mask_token_id = mask_token_id if mask_token_id is not None else getattr(model.config, "mask_token_id", None)
    if mask_token_id is None:
        raise ValueError(
            f"`mask_token_id` is needed: the config of {type(model).__name__} has none. Pass the id of the mask token "
            "(`tokenizer.mask_token_id`)."
        )
    check_bidirectional(model)
    previous = getattr(model, "generation_config", None)
    config = DiffusionGenerationConfig.from_dict(previous.to_dict() if previous else {})
    if not isinstance(model, DiffusionGenerationMixin):
        model.__class__ = _with_diffusion_generation(type(model))  # type: ignore[arg-type]
    model.shift_logits, model.first_position = shift_logits, first_position(model)
    model.takes_visibility = model.first_position is not None and takes_visibility(model)
    model.generation_config = config.updated(mask_token_id=mask_token_id)
    return model


@functools.cache
def _with_diffusion_generation(cls: type) -> Any:
    """A subclass of `cls` with `generate`, whose instances can be pickled though no module holds the class."""

    def __reduce_ex__(self, protocol):
        return _new_model, (cls,), self.__dict__

    namespace = {"__module__": cls.__module__, "__reduce_ex__": __reduce_ex__}
    return type(cls.__name__, (ScoringMixin, DiffusionGenerationMixin, cls), namespace)


def _new_model(cls: type) -> PreTrainedModel:
    new_class = _with_diffusion_generation(cls)
    return new_class.__new__(new_class)


@torch.no_grad()
def first_position(model: PreTrainedModel) -> int | None:
    """The `position_ids` entry of a first token: RoBERTa and others count from behind the padding token's id.

    Decoding gives the positions itself, so that they do not depend on the tokens: by itself RoBERTa counts neither the
    padding before a prompt nor a padding token that was decoded. `None` says that the model takes no positions, or
    counts in yet another way and has to do it itself.
    """
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    tokens = [token for token in range(min(8, vocabulary_size(model))) if token != padding][:4]
    input_ids = torch.tensor([tokens], device=model.device)
    if "position_ids" not in accepted_inputs(model, {"position_ids": input_ids}):
        return None
    expected = _logits(model, input_ids=input_ids)
    for first in (0, (padding or 0) + 1):
        position_ids = torch.arange(first, first + len(tokens), device=model.device)[None]
        if torch.allclose(_logits(model, input_ids=input_ids, position_ids=position_ids), expected, atol=1e-4):
            return first
    return None


def takes_visibility(model: PreTrainedModel) -> bool:
    """Whether a mask of four dimensions says for each position of a model which others it sees."""

    def is_visible(row, head, query, key):
        return (key < 3) | (query == 3)

    try:
        mask = make_attention_mask(
            model.config.get_text_config(), is_visible, (2, 4, 4), dtype=model.dtype, device=model.device
        )
        return not any(_reactions(model, 3, mask)[:3])
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        # Whatever a class does with a mask that it does not expect.
        return False


def check_bidirectional(model: PreTrainedModel) -> None:
    """Checks, by running a model on sequences, that its first position sees the last one, and none a hidden one.

    The sequences are longer than a block of any block-causal model, where the model takes that many tokens.
    """
    name = type(model).__name__
    if getattr(model.config, "canvas_length", None):
        raise ValueError(f"{name} decodes canvases of random tokens: it has no mask token. Use its own `generate`.")
    if any(not 1e-6 < frequencies.max() <= 1 for path, frequencies in model.named_buffers() if "inv_freq" in path):
        raise ValueError(
            f"The rotary frequencies of {name} are lost: transformers 5 does not load such buffers of remote code for "
            "transformers 4. Use a class of transformers, or the release that the code was written for."
        )
    # Half of what it takes: some classes count positions from behind the id of the padding token.
    length = min(96, (longest_sequence(model) or 192) // 2)
    seen = torch.ones(2, length, dtype=torch.long, device=model.device)
    try:
        of_last = _reactions(model, length - 1, seen)
        seen[:, 0] = 0
        of_hidden = _reactions(model, 0, seen)
    except (IndexError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{name} does not run on `input_ids` and `attention_mask` of shape (rows, length): {error}. Wrap its "
            "forward pass in a class that does."
        ) from error
    if not of_last[0]:
        kind = "block-causal" if any(of_last[:-1]) else "causal"
        raise ValueError(
            f"{name} is {kind}: its first position does not react to the last one, so it cannot fill in "
            "masked tokens. Use a masked diffusion model (LLaDA, Dream; SDAR if it is block-causal), a masked "
            "language model, or the bidirectional class that the checkpoint was trained with."
        )
    if any(of_hidden[1:]):
        raise ValueError(
            f"{name} ignores `attention_mask`: its positions react to a token that is hidden, so prompts of different "
            "lengths would change one another's answers. Use a class that hides padding."
        )


@torch.no_grad()
def _reactions(model: PreTrainedModel, place: int, attention_mask: torch.Tensor) -> list[bool]:
    """Which positions of a sequence have other logits if the token at `place` is another one, beyond rounding."""
    input_ids = torch.zeros(2, attention_mask.shape[-1], dtype=torch.long, device=model.device)
    input_ids[1, place] = min(7, vocabulary_size(model) - 1)
    logits = _logits(model, input_ids=input_ids, attention_mask=attention_mask)
    again = _logits(model, input_ids=input_ids.flip(0), attention_mask=attention_mask)
    if logits is None or again is None:
        raise ValueError(
            f"{type(model).__name__} has no head: its output has no `logits`. Load it with `AutoModelForMaskedLM`."
        )
    # What the place in a batch, or the kernels of a GPU, change.
    rounding = (logits - again.flip(0)).abs().max()
    if rounding > 0.1 * logits.abs().max():
        raise ValueError(
            f"{type(model).__name__} predicts something else each time that it is called with a sequence."
        )
    return ((logits[0] - logits[1]).abs().amax(dim=-1) > rounding).tolist()


def _logits(model: PreTrainedModel, **inputs: torch.Tensor) -> torch.Tensor | None:
    with evaluation_mode(model):
        return getattr(model(**accepted_inputs(model, inputs)), "logits", None)
