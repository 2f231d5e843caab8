# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The word-level tokenizer of the bundled teacher, with LLaDA's special tokens and chat template."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .conversations import conversation_vocabulary
from .wording import vocabulary


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


def build_tokenizer(words: Sequence[str] | None = None) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token a word, one a number, one a mark, and one for everything else.

    Args:
        words (`Sequence[str]`, *optional*): the vocabulary, by default that of the word-problem language.
    """
    words = [*_SPECIAL_TOKENS, "system", "user", "assistant", *(vocabulary() if words is None else words)]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<|unk|>"))
    # A mark is a token also where people write no space before it.
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
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


def build_conversation_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the long testbed, which also writes as people do: no space before a mark."""
    tokenizer = build_tokenizer(conversation_vocabulary())
    marks = [decoders.Replace(f" {mark}", mark) for mark in ":;"]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=True), *marks])
    return tokenizer
