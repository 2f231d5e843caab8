# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The recipe of an autoregressive checkpoint, from its generation_config.json."""

from typing import Any

from transformers import GenerationConfig

from hf_dparallel_rules.settings import SettingError, settings_of


# What else chooses tokens in transformers, with the value that does nothing.
_CHOOSES_OTHERWISE = {
    **dict.fromkeys(("begin_suppress_tokens", "constraints", "dola_layers", "exponential_decay_length_penalty")),
    **dict.fromkeys(("force_words_ids", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias", "top_h")),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff", "min_length"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beams", "typical_p"), 1),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), 0),
    "watermarking_config": None,
}
# What transformers samples with where a file does not say it.
_DEFAULTS = {"temperature": 1.0, "top_k": 50}


def recipe_of_checkpoint(original: GenerationConfig) -> dict[str, Any]:
    """Returns the settings of a checkpoint's own `generate` that choose tokens, by name.

    Answers are greedy, as those of `do_sample=False`, also where the file samples; a caller who samples does it by the
    temperature and the other settings of the file.

    Raises:
        SettingError: for a setting that exact decoding does not have.
    """
    for name, nothing in _CHOOSES_OTHERWISE.items():
        value = getattr(original, name, None)
        if value not in (None, nothing):
            raise SettingError(
                name,
                value,
                rule="of the checkpoint's generation_config.json chooses tokens in a way that exact decoding lacks",
                remedy="Remove it there, in a copy of the checkpoint, if you can do without it.",
            )

    names = (*settings_of("sampling", "processing"), "max_new_tokens", "stop_strings")
    given = {name: getattr(original, name, None) for name in names}
    kept = {name: value for name, value in given.items() if value is not None}
    return {**_DEFAULTS, **kept, "do_sample": False}
