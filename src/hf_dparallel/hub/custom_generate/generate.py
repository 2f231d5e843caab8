# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Diffusion decoding for `model.generate(..., custom_generate=..., trust_remote_code=True)`, by hf-dparallel."""

import json
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from hf_dparallel import DiffusionGenerationConfig, DiffusionGenerationMixin, enable_diffusion_generation


def generate(inputs=None, *, model, generation_config=None, **kwargs):
    """Decodes as `DiffusionGenerationMixin.generate` does, whose arguments these are; they go before the recipe."""
    config = DiffusionGenerationConfig.from_dict(_read("generation_config.json", model))
    if not isinstance(model, DiffusionGenerationMixin):
        # The published code of Dream, which this package's class takes the place of, shifts its logits.
        shift = _read("training_summary.json", model).get("shift_logits") or model.config.model_type == "Dream"
        enable_diffusion_generation(model, config.mask_token_id, shift)
    if generation_config is not None:
        given = DiffusionGenerationConfig.from_generation_config(generation_config)
        config = config.updated(**given.settings())
    # transformers passes all its own arguments, most of them as None.
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    # By the class: `model.generate` may be this function.
    return type(model).generate(model, inputs, generation_config=config, **kwargs)


def _read(name, model):
    """Returns what a JSON file of this repository says, at the commit of this code; nothing, if there is none."""
    # What runs is a copy: transformers_modules/OWNER/REPOSITORY/COMMIT/custom_generate/generate.py, where
    # `llada-1.5` is written `llada_hyphen_1_dot_5`. Of a local folder it tells no place, but the model does.
    *_, owner, repository, commit = Path(__file__).parent.parent.parts
    try:
        if len(commit) == 40:
            repo_id = f"{owner}/{repository}".replace("_hyphen_", "-").replace("_dot_", ".")
            path = Path(hf_hub_download(repo_id, name, revision=commit))
        else:
            path = Path(model.name_or_path, name)
        return json.loads(path.read_text(encoding="utf-8"))
    except (EntryNotFoundError, FileNotFoundError):
        return {}
