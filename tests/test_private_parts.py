# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every private part of another library that the package uses, and why: there is no public way to what it does.

A release that moves one of them fails here, with the reason, before it fails in another place without one.
"""

import inspect
import re
from importlib import import_module

import pytest


# The module or class, its private parts, and what they are used for.
PARTS = [
    # Models and generation of transformers
    ("transformers:PreTrainedModel", "_adjust_missing_and_unexpected_keys", "no model with weights drawn at random; "
     "`output_loading_info` tells of the adapter only, where there is one"),
    ("transformers:PreTrainedModel", "adjust_generation_fn", "no `custom_generate` of a repository instead of ours"),
    ("transformers.integrations.peft:PeftAdapterMixin", "_hf_peft_config_loaded", "`save_pretrained` "
     "and the Trainer read the first; a model inside `PeftModel` has a `peft_config`, too"),
    ("transformers.utils.loading_report:LoadStateDictInfo", "missing_keys", "what `load_adapter` returns"),
    ("transformers.core_model_loading", "WeightConverter WeightRenaming WeightTransform", "the names of published "
     "files, for adapters"),
    ("transformers.conversion_mapping", "get_model_conversion_mapping", "the same"),
    ("transformers:GenerationConfig", "_get_default_generation_params", "the settings that do nothing; an unset "
     "`GenerationConfig` has `None` for each"),
    ("transformers:PreTrainedConfig", "_attn_implementation", "the form of masks; there is a public setter only"),
    ("transformers.utils.hub:cached_files", "_raise_exceptions_for_missing_entries", "a missing file, told from a "
     "missing repository"),
    ("transformers.cache_utils", "Cache CacheLayerMixin", "the cache of windows"),
    ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS", "block-causal masks for each kind of attention"),
    ("transformers.quantizers.auto", "AUTO_QUANTIZER_MAPPING", "experts in 4 bits; a registered quantizer needs a "
     "configuration of its own"),
    ("transformers.integrations.bitsandbytes:Bnb4bitQuantize", "convert hf_quantizer", "the same"),
    # Its Trainer
    ("transformers:Trainer", "_signature_columns", "the columns of the collator, which are not those of `forward`; "
     "without `remove_unused_columns` all would be sent to each process"),
    ("transformers:Trainer", "_get_dataloader", "the same masks in each evaluation"),
    ("transformers:Trainer", "_load_from_checkpoint _load_best_model", "adapters of a `load_adapter`, complete or not "
     "at all"),
    ("transformers:Trainer", "_init_training_state", "a finished run takes no more steps"),
    ("transformers:Trainer", "_save _internal_call _finish_current_push", "the card and the recipe "
     "in every push"),
    ("transformers:TrainingArguments", "_VALID_DICT_FIELDS", "`chat_template_kwargs` as JSON on the command line"),
    # PEFT
    ("peft.tuners.tuners_utils", "BaseTunerLayer", "switching and merging without a `PeftModel`"),
    ("peft.utils.other", "AuxiliaryTrainingWrapper get_pattern_key", "modules that are trained whole, and ranks by "
     "the name of a module"),
    ("peft.utils.other:AuxiliaryTrainingWrapper", "unload_and_optionally_merge_module", "the same"),
    ("peft.mapping", "PEFT_TYPE_TO_PREFIX_MAPPING", "where the name of a module ends in that of a weight"),
    # Others
    ("accelerate.hooks", "_hf_hook", "the device of the inputs, where a model is on several"),
    ("uvicorn.server:ServerState", "connections", "clients that do not read the end of their answers, at SIGTERM"),
    ("lm_eval.models.huggingface:HFLM", "tokenizer_name apply_chat_template gather_object", "as for any model of "
     "transformers"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "part", "why"),
    [(owner, part, why) for owner, parts, why in PARTS for part in parts.split()],
    ids=lambda value: None if " " in value else value,
)
def test_a_private_part_is_still_there(owner, part, why):
    module, _, name = owner.partition(":")
    found = getattr(import_module(module), name) if name else import_module(module)
    # What only instances have, or a function takes, is in the source.
    is_there = hasattr(found, part) or re.search(rf"\b{part}\b", inspect.getsource(found))
    assert is_there, f"{owner} no longer has `{part}`, which is used for this: {why}."
