# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A2D (https://github.com/ZHZisZZ/dllm): autoregressive models that learned diffusion."""

from typing import Any

from transformers import (
    AutoModelForMaskedLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.llama.modeling_llama import LlamaModel, LlamaPreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3PreTrainedModel

from ...exact.causal_past import CausalPastMixin
from ...exact.recipe import recipe_of_checkpoint
from ...generation.configuration import DiffusionGenerationConfig
from ..adapters import read_summary
from ..backbones import DiffusionBackbone, Qwen2Backbone, Qwen3Backbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from ..sdar.modeling_sdar import SDARMoeForMaskedDiffusion
from .configuration_a2d import A2DLlamaConfig, A2DQwen2Config, A2DQwen3Config, A2DQwen3MoeConfig


class A2DForMaskedDiffusion(CausalPastMixin, MaskedDiffusionModel):
    """What the models of A2D share: the name of a checkpoint may say that it needs blocks, which its file does not."""

    # Flash attention knows no blocks, which `config.block_length` may add to a model that is loaded.
    _supports_flash_attn = False

    @classmethod
    def from_pretrained(cls, name, *args, config=None, adapter_kwargs=None, **kwargs):  # type: ignore[override]
        """Loads a checkpoint, or a student, which remembers what its base was loaded with.

        Raises a `ValueError` for an autoregressive model: files of its type are of a diffusion model if a student or a
        keyword such as `shift_logits` says so.
        """
        said: dict[str, Any] = {}
        if config is not None and not isinstance(config, cls.config_class):
            said = _loaded_with(adapter_kwargs or {})
            for key in cls.config_class.given_at_load:
                if key in kwargs:
                    said[key] = kwargs.pop(key)

            if not said:
                raise ValueError(
                    f"{name!r} is of the autoregressive type {config.model_type!r}. If it is a diffusion model all "
                    f"the same, load it by `{cls.__name__}.from_pretrained`; to make it one, use "
                    "`convert_to_diffusion`."
                )
            config = cls.config_class(**config.to_dict() | {"model_type": cls.config_class.model_type} | said)

        model = super().from_pretrained(name, *args, config=config, adapter_kwargs=adapter_kwargs, **kwargs)
        if said and model.is_autoregressive:
            recipe = model.generation_config.settings() | recipe_of_checkpoint(model.generation_config)
            model.generation_config = DiffusionGenerationConfig(**recipe)
        if "bd3lm" in model.name_or_path and model.config.block_length is None:
            raise ValueError(
                f"`block_length` must be given for {model.name_or_path!r}, which was trained block-causal: its "
                "config.json does not say so. Pass `block_length=32` to `from_pretrained`, and save the model with "
                "its tokenizer for the command line."
            )
        return model


def _loaded_with(adapter_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns what the base of an adapter was loaded with, as its record says."""
    download = dict(adapter_kwargs)
    adapter = download.pop("_adapter_model_path", None)
    if adapter is None:
        return {}
    return dict(read_summary(str(adapter), download).get("loaded_with", {}))


@register_family
class A2DQwen3ForMaskedDiffusion(A2DForMaskedDiffusion, Qwen3PreTrainedModel):
    """A2D-Qwen3 (Qwen3-0.6B-diffusion, OPDLM) with its prediction head and [`~DiffusionGenerationMixin.generate`].

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> name = "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1"
    >>> model = AutoModelForMaskedLM.from_pretrained(name, block_length=32)  # doctest: +SKIP
    ```
    """

    config: A2DQwen3Config
    backbone_class = Qwen3Backbone


# On disk each expert has its own weights.
_of_experts = get_checkpoint_conversion_mapping("qwen3_moe")
register_checkpoint_conversion_mapping(A2DQwen3MoeConfig.model_type, _of_experts, overwrite=True)


@register_family
class A2DQwen3MoeForMaskedDiffusion(A2DForMaskedDiffusion, SDARMoeForMaskedDiffusion):
    """A2D-Qwen3-MoE with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    config: A2DQwen3MoeConfig


@register_family
class A2DQwen2ForMaskedDiffusion(A2DForMaskedDiffusion, Qwen2PreTrainedModel):
    """A2D-Qwen2 (Qwen2.5-Coder-0.5B-diffusion) with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    config: A2DQwen2Config
    backbone_class = Qwen2Backbone


class A2DLlamaModel(DiffusionBackbone, LlamaModel):
    config: A2DLlamaConfig


@register_family
class A2DLlamaForMaskedDiffusion(A2DForMaskedDiffusion, LlamaPreTrainedModel):
    """A2D-Llama with its prediction head and [`~DiffusionGenerationMixin.generate`]."""

    config: A2DLlamaConfig
    backbone_class = A2DLlamaModel


# The class with the same weight names, by the configuration of the autoregressive model. (Without a sliding window a
# Mistral is a Llama.)
FROM_CAUSAL = {
    LlamaConfig: A2DLlamaForMaskedDiffusion,
    MistralConfig: A2DLlamaForMaskedDiffusion,
    Qwen2Config: A2DQwen2ForMaskedDiffusion,
    Qwen3Config: A2DQwen3ForMaskedDiffusion,
    Qwen3MoeConfig: A2DQwen3MoeForMaskedDiffusion,
}
# Open-dCoder and Stable-DiffCoder have files of these types, and students with a causal past have such bases. No other
# model for masks is of these types. `register`, the public method, wants the configuration of the class itself; the
# mapping beneath takes that of the autoregressive model, too, and the class turns it into its own. (Up to transformers
# 5.18, the mapping's own `register` passes over the configurations of transformers.)
AutoModelForMaskedLM._model_mapping._extra_content.update(FROM_CAUSAL)
