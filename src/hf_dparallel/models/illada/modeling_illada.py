# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""iLLaDA (https://huggingface.co/papers/2606.25331), the successor of LLaDA: a bidirectional Llama."""

from transformers.models.llama.modeling_llama import LlamaModel, LlamaPreTrainedModel

from ..backbones import DiffusionBackbone
from ..base import MaskedDiffusionModel
from ..family import register_family
from .configuration_illada import ILLaDAConfig


class ILLaDAModel(DiffusionBackbone, LlamaModel):
    config: ILLaDAConfig


@register_family
class ILLaDAForMaskedDiffusion(MaskedDiffusionModel, LlamaPreTrainedModel):
    """iLLaDA with its prediction head and [`~DiffusionGenerationMixin.generate`].

    ```python
    >>> import hf_dparallel
    >>> from transformers import AutoModelForMaskedLM

    >>> model = AutoModelForMaskedLM.from_pretrained("GSAI-ML/iLLaDA-8B-Instruct", dtype="bfloat16")  # doctest: +SKIP
    ```
    """

    config: ILLaDAConfig
    backbone_class = ILLaDAModel
