# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The hooks that the settings and the arguments of `generate` ask for."""

from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_dparallel_rules.settings import SettingError

from ..configuration import DiffusionGenerationConfig
from ..revision.editing import Editing
from ..revision.soft import SoftDecoding
from ..revision.verified import VerifiedCommits
from .base import DecodingHook
from .history import CertaintyHistory
from .processing import ScoreProcessing
from .stopping import StopCheck, StopTextCriteria
from .streaming import DraftStream


def make_hooks(
    config: DiffusionGenerationConfig,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    streamer: BaseStreamer | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[DecodingHook]:
    """Returns the hooks that a resolved configuration and arguments of `generate` need, in calling order."""
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if criteria and config.is_infilling:
        raise ValueError("`stopping_criteria` cannot be used for infilling (`max_new_tokens=0`). Remove them.")

    if config.stop_strings:
        if tokenizer is None:
            raise SettingError(
                "stop_strings", config.stop_strings, rule="needs the tokenizer", remedy="Pass `tokenizer=`."
            )
        criteria.append(StopTextCriteria(tokenizer, config.stop_strings, skip_special_tokens=False))

    hooks: list[DecodingHook] = []
    for revision in (VerifiedCommits, Editing, SoftDecoding):
        if config.is_on(revision.setting):
            hooks.append(revision(config))
    processing = ScoreProcessing(config, logits_processor)
    if processing:
        hooks.append(processing)
    if config.output_certainty:
        hooks.append(CertaintyHistory())
    if criteria:
        hooks.append(StopCheck(criteria))
    if streamer is not None:
        hooks.append(DraftStream(streamer))
    return hooks
