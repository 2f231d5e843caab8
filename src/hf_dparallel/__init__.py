# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Masked diffusion language models that decode many tokens per forward pass.

Importing the package registers LLaDA and Dream with the Auto classes of transformers, and imports neither transformers
nor torch: the public names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


__version__ = "0.1.0"

_PUBLIC_NAMES = {
    "certainty": ("confidence_from_logits", "entropy_from_logits"),
    "generation.configuration": ("DiffusionGenerationConfig",),
    "generation.mixin": ("DiffusionGenerationMixin",),
    "generation.output": ("DiffusionGenerationOutput",),
    "evaluation.callback": ("DecodingCallback",),
    "evaluation.decoding": ("evaluate_decoding",),
    "hub.publish": ("push_model_to_hub",),
    "hub.publish_data": ("push_trajectories_to_hub",),
    "models.foreign": ("enable_diffusion_generation",),
    "models.dream.configuration_dream": ("DreamConfig",),
    "models.dream.modeling_dream": ("DreamForMaskedDiffusion",),
    "models.dream.tokenization_dream": ("DreamTokenizer",),
    "models.llada.configuration_llada": ("LLaDAConfig",),
    "models.llada.modeling_llada": ("LLaDAForMaskedDiffusion",),
    "training.config": ("CertaintyForcingConfig",),
    "training.collator": ("DataCollatorForSemiAutoregressiveMasking",),
    "training.losses": ("certainty_forcing_loss",),
    "data.rewards": ("numeric_answer_reward",),
    "training.trainer": ("CertaintyForcingTrainer",),
    "data.trajectories": ("filter_trajectories", "generate_trajectories"),
}
_MODULE_OF = {name: module for module, names in _PUBLIC_NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604

if TYPE_CHECKING:
    from .certainty import confidence_from_logits as confidence_from_logits
    from .certainty import entropy_from_logits as entropy_from_logits
    from .data.rewards import numeric_answer_reward as numeric_answer_reward
    from .data.trajectories import filter_trajectories as filter_trajectories
    from .data.trajectories import generate_trajectories as generate_trajectories
    from .evaluation.callback import DecodingCallback as DecodingCallback
    from .evaluation.decoding import evaluate_decoding as evaluate_decoding
    from .generation.configuration import DiffusionGenerationConfig as DiffusionGenerationConfig
    from .generation.mixin import DiffusionGenerationMixin as DiffusionGenerationMixin
    from .generation.output import DiffusionGenerationOutput as DiffusionGenerationOutput
    from .hub.publish import push_model_to_hub as push_model_to_hub
    from .hub.publish_data import push_trajectories_to_hub as push_trajectories_to_hub
    from .models.dream.configuration_dream import DreamConfig as DreamConfig
    from .models.dream.modeling_dream import DreamForMaskedDiffusion as DreamForMaskedDiffusion
    from .models.dream.tokenization_dream import DreamTokenizer as DreamTokenizer
    from .models.foreign import enable_diffusion_generation as enable_diffusion_generation
    from .models.llada.configuration_llada import LLaDAConfig as LLaDAConfig
    from .models.llada.modeling_llada import LLaDAForMaskedDiffusion as LLaDAForMaskedDiffusion
    from .training.collator import (
        DataCollatorForSemiAutoregressiveMasking as DataCollatorForSemiAutoregressiveMasking,
    )
    from .training.config import CertaintyForcingConfig as CertaintyForcingConfig
    from .training.losses import certainty_forcing_loss as certainty_forcing_loss
    from .training.trainer import CertaintyForcingTrainer as CertaintyForcingTrainer


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value  # the next access does not come here again
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Last, because it imports a submodule.
from .models.registration import register_on_import as _register_on_import  # noqa: E402


_register_on_import()
