# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Diffusion decoding for `model.generate(..., custom_generate=..., trust_remote_code=True)`, by hf-dparallel."""

from hf_dparallel import DiffusionGenerationMixin, enable_diffusion_generation


def generate(inputs=None, *, model, **kwargs):
    """Decodes as `DiffusionGenerationMixin.generate` does, whose arguments these are."""
    if not isinstance(model, DiffusionGenerationMixin):
        enable_diffusion_generation(model)
    # transformers passes all its own arguments, most of them as None.
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    # By the class: `model.generate` may be this function.
    return type(model).generate(model, inputs, **kwargs)
