# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A plug-in of SGLang: the commit rules as its algorithms, each by its name (`--dllm-algorithm EntropyThreshold`).

SGLang needs an older transformers than the package does, so this module imports torch, SGLang and the rules only, and
works after `pip install --no-deps ./hf-dparallel`, a clone. SGLang finds it by its entry point, `sglang.srt.plugins`.
"""

from contextlib import suppress
from typing import Any

import torch
from sglang.srt.dllm.algorithm import algo_name_to_cls
from sglang.srt.dllm.algorithm.base import DllmAlgorithm
from sglang.srt.dllm.config import ModelConfig, resolving_view
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.utils.hf_transformers.common import AutoConfig, PretrainedConfig

from .certainty import measure_certainty
from .commit_rules import rules_of_one_pass
from .settings import SETTINGS, SettingError


RULES = rules_of_one_pass()


class PlainConfig(PretrainedConfig):
    """Has what config.json has, at the top level, where SGLang reads it. transformers moves `rope_theta` elsewhere."""

    def __post_init__(self, **values):
        super().__post_init__(**values)
        self.rope_theta = (getattr(self, "rope_parameters", None) or values).get("rope_theta", 10000)


# SGLang pickles configurations, so that their classes need names.
SDARConfig = type("SDARConfig", (PlainConfig,), {"model_type": "sdar"})
SDARMoeConfig = type("SDARMoeConfig", (PlainConfig,), {"model_type": "sdar_moe"})
LLaDA2MoeConfig = type("LLaDA2MoeConfig", (PlainConfig,), {"model_type": "llada2_moe"})


class CommitRule(DllmAlgorithm):
    """Decodes by a commit rule, whose value the file of `--dllm-algorithm-config` has under the name of the rule."""

    rule: str

    def __init__(self, config: Any):
        super().__init__(config)
        setting, value = SETTINGS[self.rule], config.algorithm_config.get(self.rule)
        with suppress(SettingError):
            self.value = setting.read(value)
            if value is not None:
                return
        remedy = f"Write it into the file of `--dllm-algorithm-config`, as a line `{self.rule}: ...`."
        raise SettingError(self.rule, value, f"must be {setting.rule}", remedy)

    def step(self, forward_batch: Any, full_logits: torch.Tensor, states: list) -> list[bool]:
        """Commits tokens of a pass in place, and returns which blocks had no mask in it."""
        tokens = forward_batch.input_ids.view(-1, self.block_size)
        masked = tokens == self.mask_id
        if forward_batch.dllm_prompt_mask is not None:
            masked &= ~forward_batch.dllm_prompt_mask
        prediction = measure_certainty(full_logits.view(*tokens.shape, -1), self.mask_id)
        committed = RULES[self.rule](prediction, masked, self.value)
        tokens.copy_(torch.where(committed, prediction.tokens, tokens))
        return (~masked.any(dim=1)).tolist()


def read_checkpoint(config: Any, server_args: Any) -> None:
    """Takes mask token and block length from the checkpoint, and checks the rule, before the weights are loaded."""
    if config is None or config.requires_separate_context_encoding:
        return
    args = resolving_view(server_args)
    model = ModelConfig.from_server_args(server_args, model_path=args.model_path, model_revision=args.revision)
    mask_id, *lengths = (getattr(model.hf_config, f, None) for f in ("mask_token_id", "block_size", "block_length"))
    config.mask_id = config.mask_id if mask_id is None else mask_id
    if config.mask_id >= model.vocab_size:
        rule = f"must be less than {model.vocab_size}, the size of the vocabulary"
        raise SettingError("mask_token_id", config.mask_id, rule, "Write it into config.json.")
    if "block_size" not in config.algorithm_config:
        config.block_size = next(filter(None, lengths), config.block_size)
    if issubclass(algo_name_to_cls[config.algorithm], CommitRule):
        algo_name_to_cls[config.algorithm](config)


def register() -> None:
    """Registers rules, hook and configurations. SGLang calls it in each of its processes."""
    for rule in RULES:
        name = rule.title().replace("_", "")
        algo_name_to_cls[name] = type(name, (CommitRule,), {"rule": rule})
    HookRegistry.register("sglang.srt.dllm.config.DllmConfig.from_server_args", read_checkpoint, HookType.AFTER)
    for config in PlainConfig.__subclasses__():
        with suppress(ValueError):  # transformers knows it
            AutoConfig.register(config.model_type, config)
