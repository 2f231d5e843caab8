# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""SDAR (https://huggingface.co/papers/2510.06303): a block-causal Qwen3."""

from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model, Qwen3PreTrainedModel

from ...generation.mixin import DiffusionGenerationMixin
from ..adapters import AdapterLoadingMixin
from ..block_causal import BlockCausalBackbone
from ..masked_diffusion import MaskedDiffusionHead, make_bidirectional
from .configuration_sdar import SDARConfig


class SDARPreTrainedModel(Qwen3PreTrainedModel):
    config: SDARConfig
    # Flash attention knows no block-causal mask.
    _supports_flash_attn = False


class SDARModel(BlockCausalBackbone, SDARPreTrainedModel, Qwen3Model):
    """The block-causal transformer of SDAR, without the head."""

    def __init__(self, config: SDARConfig):
        super().__init__(config)
        make_bidirectional(self)


class SDARForMaskedDiffusion(MaskedDiffusionHead, AdapterLoadingMixin, DiffusionGenerationMixin, SDARPreTrainedModel):
    """SDAR with its prediction head and [`~DiffusionGenerationMixin.generate`]. TraDo has the same architecture.

    The length of a block, `config.block_length`, belongs to the checkpoint.

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> model = AutoModelForMaskedLM.from_pretrained("JetLM/SDAR-8B-Chat", dtype="bfloat16")  # doctest: +SKIP
    ```
    """

    is_block_causal = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: SDARConfig):
        super().__init__(config)
        self.model = SDARModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


__all__ = ["SDARForMaskedDiffusion", "SDARModel", "SDARPreTrainedModel"]
