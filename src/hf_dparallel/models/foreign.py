# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate` for masked language models of other classes."""

import torch
from transformers import PreTrainedModel

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..attention_masks import make_attention_mask
from ..generation.answerer import evaluation_mode
from ..generation.compatibility import longest_sequence
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.inputs import vocabulary_size
from ..generation.mixin import DiffusionGenerationMixin
from .scoring import ScoringMixin, accepted_inputs


def enable_diffusion_generation(
    model: PreTrainedModel,
    mask_token_id: int | None = None,
    shift_logits: bool = False,
    block_length: int | None = None,
) -> PreTrainedModel:
    r"""
    Gives [`~DiffusionGenerationMixin.generate`] to a masked language model of any class: remote code, ModernBERT, ...

    The model object is changed in place, and its class is left alone. In a PEFT model it is the base model.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            A model whose output has `logits` of shape `(batch_size, sequence_length, vocab_size)`. One that ignores
            `attention_mask`, or takes no `position_ids` from 0, decodes prompts of one length together, and others one
            at a time.
        mask_token_id (`int`, *optional*):
            Id of the mask token. Defaults to the one of `model.config`.
        shift_logits (`bool`, *optional*, defaults to `False`):
            Set it when the logits at position `i - 1` score token `i`, as in models that were started from an
            autoregressive checkpoint.
        block_length (`int`, *optional*):
            Tokens of a block of a block-causal model, which takes a mask of four dimensions. By default every token
            sees every other one.

    Returns:
        The same model.

    Raises:
        ValueError: if no mask token is known, or a short run shows that the model has another attention.

    ```python
    >>> from transformers import AutoModelForMaskedLM
    >>> from hf_dparallel import enable_diffusion_generation

    >>> model = AutoModelForMaskedLM.from_pretrained("answerdotai/ModernBERT-base")  # doctest: +SKIP
    >>> model = enable_diffusion_generation(model, mask_token_id=50284)  # doctest: +SKIP
    ```
    """
    if hasattr(model, "get_base_model"):
        enable_diffusion_generation(model.get_base_model(), mask_token_id, shift_logits, block_length)
        return model

    if getattr(model, "is_native", False):
        raise ValueError(f"{type(model).__name__} is a class of this package, and has `generate`. Leave out the call.")
    if getattr(model.config, "canvas_length", None):
        raise ValueError(f"{type(model).__name__} decodes canvases of random tokens. Use its own `generate`.")

    if mask_token_id is None:
        mask_token_id = getattr(model.config, "mask_token_id", None)
    if mask_token_id is None:
        raise ValueError(
            f"`mask_token_id` is needed: the config of {type(model).__name__} has none. Pass the id of the mask token "
            "(`tokenizer.mask_token_id`)."
        )

    block_length = SETTINGS["block_length"].read(block_length)
    _check_frequencies(model)

    # Probed by what a change of one token changes.
    is_seen = torch.tensor([[0, 1, 1, 1]] * 2, device=model.device)
    hides_padding = not any(_reactions(model, 0, is_seen)[1:]) and _takes_positions(model)
    has_masks = hides_padding and _takes_visibility(model)
    if block_length is None:
        _check_attention(model)
    elif not has_masks:
        raise SettingError(
            "block_length",
            block_length,
            rule=f"needs a mask of four dimensions, which {type(model).__name__} does not take",
            remedy="Load the model by the class of its family.",
        )

    previous = getattr(model, "generation_config", None)
    config = DiffusionGenerationConfig.from_dict(previous.to_dict() if previous else {})
    if not isinstance(model, DiffusionGenerationMixin):
        cls = type(model)
        bases = (ScoringMixin, DiffusionGenerationMixin, cls)
        model.__class__ = type(cls.__name__, bases, {"__module__": cls.__module__})  # type: ignore[assignment]

    model.shift_logits = shift_logits
    model.takes_visibility = has_masks
    model.hides_padding = hides_padding
    model.attention = "full"
    if block_length is not None:
        model.attention = "block_causal"
        model.config.block_length = block_length
    model.generation_config = config.updated(mask_token_id=mask_token_id)
    return model


def _check_frequencies(model: PreTrainedModel) -> None:
    """Raises a `ValueError` if the rotary frequencies of a model are not those that its class computes."""
    for path, frequencies in model.named_buffers():
        if "inv_freq" in path and not 1e-6 < frequencies.max() <= 1:
            raise ValueError(
                f"The rotary frequencies of {type(model).__name__} are lost: transformers 5 does not load such "
                "buffers of remote code for transformers 4. Use a class of transformers, or the release that its code "
                "is for."
            )


def _takes_positions(model: PreTrainedModel) -> bool:
    """Returns whether `position_ids` from 0 mean to a model what it counts by itself (to RoBERTa they do not).

    Otherwise it counts them, padding included, so that only rows of one length can be decoded together.
    """
    input_ids = torch.arange(2, 6, device=model.device)[None] % vocabulary_size(model)
    position_ids = torch.arange(4, device=model.device)[None]
    if "position_ids" not in accepted_inputs(model, {"position_ids": position_ids}):
        return False

    logits = _logits(model, input_ids=input_ids)
    with_positions = _logits(model, input_ids=input_ids, position_ids=position_ids)
    return torch.allclose(logits, with_positions, atol=1e-4)


def _takes_visibility(model: PreTrainedModel) -> bool:
    """Returns whether a 4-D mask decides for each position of a model which others it sees."""

    def is_visible(row, head, query, key):
        # The first position sees all, and no other one sees it.
        return (key > 0) | (query == 0)

    try:
        mask = make_attention_mask(
            model.config.get_text_config(), is_visible, (2, 4, 4), dtype=model.dtype, device=model.device
        )
        return not any(_reactions(model, 0, mask)[1:]) and _reactions(model, 3, mask)[0]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # Any of these, for a mask that the class does not expect.
        return False


def _check_attention(model: PreTrainedModel) -> None:
    """Raises a `ValueError` unless the first position sees the last one."""
    # Longer than any blocks, and half of what the model takes: some count positions up from the padding's id.
    length = min(96, (longest_sequence(model) or 192) // 2)
    if not _reactions(model, length - 1, torch.ones(2, length, dtype=torch.long, device=model.device))[0]:
        raise ValueError(
            f"{type(model).__name__} is causal: its first position does not react to the last one, so it cannot fill "
            "in masks. Diffusion models that are published as Llama or Qwen load by an A2D class."
        )


def _reactions(model: PreTrainedModel, place: int, attention_mask: torch.Tensor) -> list[bool]:
    """Returns for each position whether changing the token at `place` changes its logits beyond rounding."""
    input_ids = torch.zeros(2, attention_mask.shape[-1], dtype=torch.long, device=model.device)
    input_ids[1, place] = min(7, vocabulary_size(model) - 1)

    logits = _logits(model, input_ids=input_ids, attention_mask=attention_mask)
    # Differences by the place in a batch, or by GPU kernels.
    again = _logits(model, input_ids=input_ids.flip(0), attention_mask=attention_mask).flip(0)
    rounding = (logits - again).abs().max()
    return ((logits[0] - logits[1]).abs().amax(dim=-1) > rounding).tolist()


@torch.no_grad()
def _logits(model: PreTrainedModel, **inputs: torch.Tensor) -> torch.Tensor:
    try:
        with evaluation_mode(model):
            return model(**accepted_inputs(model, inputs)).logits
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(model).__name__} does not give `logits` for `input_ids` and `attention_mask`: {error}. Load it "
            "with `AutoModelForMaskedLM`, or wrap its forward pass in a class that does."
        ) from error
