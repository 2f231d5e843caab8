# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Diffusion decoding for `model.generate(..., custom_generate=..., trust_remote_code=True)`, by hf-dparallel."""

from hf_dparallel import DiffusionGenerationConfig, DiffusionGenerationMixin, enable_diffusion_generation


# Of the repository, written when it is published.
RECIPE: dict = {}
SHIFT_LOGITS: bool = False


def generate(inputs=None, *, model, generation_config=None, **kwargs):
    """Decodes as `DiffusionGenerationMixin.generate` does, whose arguments these are; they go before the recipe."""
    config = DiffusionGenerationConfig.from_dict(RECIPE)
    if not isinstance(model, DiffusionGenerationMixin):
        # The published code of Dream, which this package's class takes the place of, shifts its logits.
        enable_diffusion_generation(model, config.mask_token_id, SHIFT_LOGITS or model.config.model_type == "Dream")
    if generation_config is not None:
        given = DiffusionGenerationConfig.from_generation_config(generation_config)
        config = config.updated(**given.settings())
    # transformers passes all its own arguments, most of them as None.
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    # By the class: `model.generate` may be this function.
    return type(model).generate(model, inputs, generation_config=config, **kwargs)
