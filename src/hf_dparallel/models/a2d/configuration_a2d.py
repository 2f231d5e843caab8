# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Configurations of A2D: those of the autoregressive models that it starts from, and the attention."""

from dataclasses import dataclass

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from ..family import NO_BLOCKS, PublishedConfigMixin


@dataclass
class A2DConfigMixin(PublishedConfigMixin):
    r"""
    Comes before the configuration of an autoregressive model, every argument of which is accepted.

    Args:
        block_length (`int`, *optional*):
            Tokens of a block: attention is then bidirectional inside a block and causal across blocks. By default
            every token sees every other one. Published files do not say it: pass `block_length=32` for the "bd3lm"
            checkpoints, and nothing for the "mdlm" ones.
        mask_token_id (`int`, *optional*):
            Id of the mask token. By default decoding takes the one of the tokenizer.
        shift_logits (`bool`, *optional*, defaults to `False`):
            Whether the hidden state at position `i - 1` predicts token `i`, as in Open-dCoder, which is loaded as
            `A2DQwen2ForMaskedDiffusion.from_pretrained("fredzzp/open-dcoder-0.5B", shift_logits=True)`.
        causal_past (`bool`, *optional*, defaults to `False`):
            Whether decided tokens are causal, as in the autoregressive model, and only masks see one another:
            [`convert_to_diffusion`] with `attention="causal_past"`. `block_length` is then how many tokens a pass may
            decide.
    """

    other_architectures = dict.fromkeys(NO_BLOCKS, "Pass `block_length` instead.")
    given_at_load = ("block_length", "shift_logits", "causal_past", "mask_token_id")

    block_length: int | None = None
    shift_logits: bool = False
    causal_past: bool = False
    mask_token_id: int | None = None

    def validate_token_ids(self):
        """Checks them as transformers does, but for a mask token after the vocabulary (with a causal past)."""
        if not self.causal_past:
            super().validate_token_ids()  # type: ignore[misc]

    @property
    def attention(self) -> str:  # type: ignore[override]
        if self.causal_past:
            return "causal_past"
        return "full" if self.block_length is None else "block_causal"


@strict
class A2DQwen3Config(A2DConfigMixin, Qwen3Config):
    """Configuration of an [`A2DQwen3ForMaskedDiffusion`]. See [`A2DConfigMixin`]."""

    model_type = "a2d-qwen3"

    mask_token_id: int | None = 151669


@strict
class A2DQwen3MoeConfig(A2DConfigMixin, Qwen3MoeConfig):
    """Configuration of an [`A2DQwen3MoeForMaskedDiffusion`]. See [`A2DConfigMixin`]."""

    model_type = "a2d-qwen3-moe"


@strict
class A2DQwen2Config(A2DConfigMixin, Qwen2Config):
    """Configuration of an [`A2DQwen2ForMaskedDiffusion`]. See [`A2DConfigMixin`]."""

    model_type = "a2d-qwen2"


@strict
class A2DLlamaConfig(A2DConfigMixin, LlamaConfig):
    """Configuration of an [`A2DLlamaForMaskedDiffusion`]. See [`A2DConfigMixin`]."""

    model_type = "a2d-llama"
    # Mistral has one.
    required_values = {"sliding_window": None}
