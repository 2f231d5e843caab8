# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""LLaDA (https://huggingface.co/papers/2502.09992): a bidirectional Llama under other weight names."""

from torch import nn
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.llama.modeling_llama import LlamaModel, LlamaPreTrainedModel

from ..backbones import DiffusionBackbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_llada import LLaDAConfig


_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}

# Published names on disk, transformers' names in memory; `save_pretrained` applies the rules backwards.
register_checkpoint_conversion_mapping(
    "llada",
    [
        WeightRenaming(r"^model\.transformer\.wte\.", "model.embed_tokens."),
        WeightRenaming(r"^model\.transformer\.ln_f\.", "model.norm."),
        WeightRenaming(r"^model\.transformer\.ff_out\.", "lm_head."),
        *(
            WeightRenaming(rf"^model\.transformer\.blocks\.(\d+)\.{published}\.", rf"model.layers.\1.{ours}.")
            for published, ours in _BLOCK_NAMES.items()
        ),
    ],
    overwrite=True,
)


class LLaDAPreTrainedModel(LlamaPreTrainedModel):
    config: LLaDAConfig

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            # The padding token is the end-of-text token, which is learned like any other.
            module.padding_idx = None
        super()._init_weights(module)


class LLaDAModel(DiffusionBackbone, LLaDAPreTrainedModel, LlamaModel):
    def __init__(self, config: LLaDAConfig):
        super().__init__(config)
        self.embed_tokens.padding_idx = None


@register_family
class LLaDAForMaskedDiffusion(MaskedDiffusionModel, LLaDAPreTrainedModel):
    """LLaDA with its prediction head and [`~DiffusionGenerationMixin.generate`].

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> model = AutoModelForMaskedLM.from_pretrained("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16")  # doctest: +SKIP
    ```
    """

    backbone_class = LLaDAModel
