# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Masked diffusion language models that decode many tokens per forward pass.

Importing the package registers all families with the Auto classes of transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_dparallel_rules.certainty import entropy_from_logits as entropy_from_logits

from . import _releases
from ._version import __version__ as __version__


with _releases.named_releases():
    from . import demo as demo
    from .generation.configuration import DiffusionGenerationConfig as DiffusionGenerationConfig
    from .generation.mixin import DiffusionGenerationMixin as DiffusionGenerationMixin
    from .generation.output import DiffusionGenerationOutput as DiffusionGenerationOutput
    from .models.a2d.configuration_a2d import A2DLlamaConfig as A2DLlamaConfig
    from .models.a2d.configuration_a2d import A2DQwen2Config as A2DQwen2Config
    from .models.a2d.configuration_a2d import A2DQwen3Config as A2DQwen3Config
    from .models.a2d.configuration_a2d import A2DQwen3MoeConfig as A2DQwen3MoeConfig
    from .models.a2d.modeling_a2d import A2DLlamaForMaskedDiffusion as A2DLlamaForMaskedDiffusion
    from .models.a2d.modeling_a2d import A2DQwen2ForMaskedDiffusion as A2DQwen2ForMaskedDiffusion
    from .models.a2d.modeling_a2d import A2DQwen3ForMaskedDiffusion as A2DQwen3ForMaskedDiffusion
    from .models.a2d.modeling_a2d import A2DQwen3MoeForMaskedDiffusion as A2DQwen3MoeForMaskedDiffusion
    from .models.convert import convert_to_diffusion as convert_to_diffusion
    from .models.dream.configuration_dream import DreamConfig as DreamConfig
    from .models.dream.modeling_dream import DreamForMaskedDiffusion as DreamForMaskedDiffusion
    from .models.dream.tokenization_dream import DreamTokenizer as DreamTokenizer
    from .models.fast_dllm.configuration_fast_dllm import FastDLLMConfig as FastDLLMConfig
    from .models.fast_dllm.modeling_fast_dllm import FastDLLMForMaskedDiffusion as FastDLLMForMaskedDiffusion
    from .models.foreign import enable_diffusion_generation as enable_diffusion_generation
    from .models.illada.configuration_illada import ILLaDAConfig as ILLaDAConfig
    from .models.illada.modeling_illada import ILLaDAForMaskedDiffusion as ILLaDAForMaskedDiffusion
    from .models.llada.configuration_llada import LLaDAConfig as LLaDAConfig
    from .models.llada.modeling_llada import LLaDAForMaskedDiffusion as LLaDAForMaskedDiffusion
    from .models.llada2.configuration_llada2 import LLaDA2Config as LLaDA2Config
    from .models.llada2.modeling_llada2 import LLaDA2ForMaskedDiffusion as LLaDA2ForMaskedDiffusion
    from .models.moe.configuration_moe import LLaDAMoeConfig as LLaDAMoeConfig
    from .models.moe.configuration_moe import RND1Config as RND1Config
    from .models.moe.modeling_moe import LLaDAMoeForMaskedDiffusion as LLaDAMoeForMaskedDiffusion
    from .models.moe.modeling_moe import RND1ForMaskedDiffusion as RND1ForMaskedDiffusion
    from .models.nemotron.configuration_nemotron import NemotronDiffusionConfig as NemotronDiffusionConfig
    from .models.nemotron.modeling_nemotron import (
        NemotronDiffusionForMaskedDiffusion as NemotronDiffusionForMaskedDiffusion,
    )
    from .models.sdar.configuration_sdar import SDARConfig as SDARConfig
    from .models.sdar.configuration_sdar import SDARMoeConfig as SDARMoeConfig
    from .models.sdar.modeling_sdar import SDARForMaskedDiffusion as SDARForMaskedDiffusion
    from .models.sdar.modeling_sdar import SDARMoeForMaskedDiffusion as SDARMoeForMaskedDiffusion


if TYPE_CHECKING:
    from ._on_demand import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Imports the names of `_on_demand.py`, all at once, when the first of them is used."""
    with _releases.named_releases():
        on_demand = None if name.startswith("_") else import_module("._on_demand", __name__)
    if not hasattr(on_demand, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(on_demand, name)


def __dir__() -> list[str]:
    on_demand = import_module("._on_demand", __name__)
    return sorted({*globals(), *(name for name in vars(on_demand) if not name.startswith("_"))})
