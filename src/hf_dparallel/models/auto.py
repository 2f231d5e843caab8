# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Registration of LLaDA and Dream with the Auto classes, and `generate` for masked LMs of other classes."""

import inspect

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
)

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.mixin import DiffusionGenerationMixin
from .dream.configuration_dream import DreamConfig
from .dream.modeling_dream import DreamForMaskedDiffusion
from .dream.tokenization_dream import DreamTokenizer
from .llada.configuration_llada import LLaDAConfig
from .llada.modeling_llada import LLaDAForMaskedDiffusion


def register_models() -> None:
    """Makes `AutoModelForMaskedLM.from_pretrained` (and the other Auto classes) know LLaDA and Dream.

    The published repositories name `AutoModel` (both) and `AutoModelForCausalLM` (LLaDA) in their `auto_map`, so
    scripts written for them find our classes there too.
    """
    for config_class, model_class in ((LLaDAConfig, LLaDAForMaskedDiffusion), (DreamConfig, DreamForMaskedDiffusion)):
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
            auto_class.register(config_class, model_class, exist_ok=True)
    AutoTokenizer.register(DreamConfig, tokenizer_class=DreamTokenizer, exist_ok=True)


def enable_diffusion_generation(
    model: PreTrainedModel, mask_token_id: int | None = None, shift_logits: bool = False
) -> PreTrainedModel:
    r"""
    Gives [`~DiffusionGenerationMixin.generate`] to a masked language model of any class: remote code, ModernBERT, ...

    The model object is changed in place, and its class is left alone.

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
        ValueError: if the model is causal, or no mask token is known.

    ```python
    >>> from transformers import AutoModelForMaskedLM
    >>> from hf_dparallel import enable_diffusion_generation

    >>> model = AutoModelForMaskedLM.from_pretrained("answerdotai/ModernBERT-base")  # doctest: +SKIP
    >>> model = enable_diffusion_generation(model, mask_token_id=50284)  # doctest: +SKIP
    ```
    """
    mask_token_id = mask_token_id if mask_token_id is not None else getattr(model.config, "mask_token_id", None)
    if mask_token_id is None:
        raise ValueError(
            f"`mask_token_id` is needed: the config of {type(model).__name__} has none. Pass the id of the mask token "
            "(`tokenizer.mask_token_id`)."
        )
    check_bidirectional(model)
    if not isinstance(model, DiffusionGenerationMixin):
        cls = type(model)
        model.__class__ = type(cls.__name__, (DiffusionGenerationMixin, cls), {"__module__": cls.__module__})
    model._shift_logits_in_generate = shift_logits
    previous = getattr(model, "generation_config", None)
    config = DiffusionGenerationConfig.from_dict(previous.to_dict() if previous is not None else {})
    model.generation_config = config.updated(mask_token_id=mask_token_id)
    return model


@torch.no_grad()
def check_bidirectional(model: PreTrainedModel) -> None:
    """Checks, by running it on two short sequences, that the first position of a model sees the last one.

    Raises:
        ValueError: if the model is causal, so that masked tokens could not see what follows them.
    """
    was_training = model.training
    model.eval()
    low, high = 0, min(7, model.get_input_embeddings().num_embeddings - 1)
    input_ids = torch.tensor([[low, low, low, low], [low, low, low, high]], device=model.device)
    accepted = inspect.signature(model.forward).parameters
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    logits = model(
        **{name: value for name, value in inputs.items() if name in accepted or "kwargs" in accepted}
    ).logits
    model.train(was_training)
    if torch.equal(logits[0, 0], logits[1, 0]):
        raise ValueError(
            f"{type(model).__name__} is causal: its first position does not react to the last one, so it cannot fill "
            "in masked tokens. Use a masked diffusion model (LLaDA, Dream) or a masked language model."
        )


register_models()
