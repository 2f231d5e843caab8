# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The word-level tokenizer of the bundled teacher, with LLaDA's special tokens and chat template."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .word_problems import vocabulary


_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|startoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|unk|>",
)
_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of the word-problem language: one token a word, one a number."""
    words = [*_SPECIAL_TOKENS, "system", "user", "assistant", *vocabulary()]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        mask_token="<|mdm_mask|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        chat_template=_CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
