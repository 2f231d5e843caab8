# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The class of transformers, with `generate` of this package, under the Auto classes that the other families have."""

from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, DiffusionGemmaConfig
from transformers import DiffusionGemmaForBlockDiffusion as PublishedModel

from .decoding import generate


class DiffusionGemmaForBlockDiffusion(PublishedModel):
    """DiffusionGemma for text. Rows of a batch are decoded independently of one another.

    A causal encoder stores what precedes the canvas, and a decoder, which sees in both directions, reads it. Both have
    the same weights, and adapters of their own.

    Raises:
        ValueError: if the encoder is not causal.
    """

    # Linear layers that adapters are for, as in the published training: those of attention and dense MLPs.
    target_modules = r".*\.(language_model|decoder)\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"

    def __init__(self, config: DiffusionGemmaConfig):
        super().__init__(config)
        if config.text_config.use_bidirectional_attention == "all":
            raise ValueError(
                "`use_bidirectional_attention='all'` is not supported: DiffusionGemma's encoder is causal. Load a "
                "checkpoint that was trained with 'vision'."
            )

    generate = generate

    def generate_many(self, *args, **kwargs):
        """Raises `NotImplementedError`: this model has a loop and a trainer of its own."""
        raise NotImplementedError(
            "DiffusionGemma has a loop and a trainer of its own. Call `generate` for each batch of prompts, and train "
            "with `hf_dparallel.experimental.diffusion_gemma.training`."
        )

    # The first thing that trajectories, evaluation and the server ask of a model.
    recipes = generate_many


# transformers has no model under these; the configuration and all other Auto classes stay those of transformers.
for auto_class in (AutoModelForMaskedLM, AutoModelForCausalLM):
    auto_class.register(DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, exist_ok=True)
