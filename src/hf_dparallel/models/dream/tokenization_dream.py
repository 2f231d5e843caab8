# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Tokenizer of Dream: Qwen2's, with a mask token."""

from transformers import AutoTokenizer, Qwen2Tokenizer

from .configuration_dream import DreamConfig


class DreamTokenizer(Qwen2Tokenizer):
    """
    Tokenizer of the Dream models: [`~transformers.Qwen2Tokenizer`] with the special tokens that Dream adds
    (`<|beginoftext|>`, `<|mask|>`). Takes the arguments of `Qwen2Tokenizer`.
    """

    def __init__(self, *args, bos_token="<|beginoftext|>", mask_token="<|mask|>", padding_side="left", **kwargs):
        super().__init__(*args, bos_token=bos_token, mask_token=mask_token, padding_side=padding_side, **kwargs)


AutoTokenizer.register(DreamConfig, tokenizer_class=DreamTokenizer, exist_ok=True)
