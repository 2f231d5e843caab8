# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Dream (https://huggingface.co/papers/2508.15487): a bidirectional Qwen2 whose logits are shifted by one."""

from transformers.models.qwen2.modeling_qwen2 import Qwen2Model, Qwen2PreTrainedModel

from ...generation.mixin import DiffusionGenerationMixin
from ..adapters import AdapterLoadingMixin
from ..masked_diffusion import MaskedDiffusionHead, make_bidirectional
from ..vocabulary_head import VocabularyHead
from .configuration_dream import DreamConfig


class DreamPreTrainedModel(Qwen2PreTrainedModel):
    config: DreamConfig


class DreamModel(DreamPreTrainedModel, Qwen2Model):
    """The bidirectional transformer of Dream, without the head."""

    def __init__(self, config: DreamConfig):
        super().__init__(config)
        make_bidirectional(self)


class DreamForMaskedDiffusion(
    MaskedDiffusionHead, AdapterLoadingMixin, DiffusionGenerationMixin, DreamPreTrainedModel
):
    """Dream with its prediction head and [`~DiffusionGenerationMixin.generate`].

    Dream was started from Qwen2.5, so its hidden state at position `i - 1` predicts token `i`. The shift happens
    here: `logits[:, i]` scores token `i` like in every other model, and neither loss nor decoding know of it.

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> checkpoint = "Dream-org/Dream-v0-Instruct-7B"
    >>> model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype="bfloat16")  # doctest: +SKIP
    ```
    """

    shift_logits = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: DreamConfig):
        super().__init__(config)
        self.model = DreamModel(config)
        self.lm_head = VocabularyHead(config.hidden_size, config.vocab_size)
        self.post_init()


__all__ = ["DreamForMaskedDiffusion", "DreamModel", "DreamPreTrainedModel"]
