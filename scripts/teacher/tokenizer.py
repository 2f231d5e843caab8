# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The word-level tokenizers of the tiny teachers, with LLaDA's special tokens and chat template."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .conversations import conversation_vocabulary
from .solutions import LARGEST_RESULT
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
# The last reply ends as the model ends it, which is with EOS.
_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>' + message['content'] | trim }}"
    "{% if not loop.last or message['role'] == 'user' %}{{ '<|eot_id|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}{% endif %}"
)
# A short memory: before the last question, another one with its reply.
MEMORY = "{% set messages = messages[-4:] if messages and messages[-1]['role'] == 'assistant' else messages[-3:] %}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the short problems: one token a word, one a number, one a mark, one for all else."""
    return _wrap(models.WordLevel(_ids(vocabulary()), unk_token="<|unk|>"))


def build_conversation_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the conversations: one token a number up to the largest result.

    A larger number is its first digits, and a token for each further one.
    """
    pieces = [*conversation_vocabulary(), *map(str, range(LARGEST_RESULT + 1)), *(f"##{digit}" for digit in range(10))]
    tokenizer = _wrap(models.WordPiece(_ids(pieces), unk_token="<|unk|>"))
    # A digit alone is shown without the sign that it goes on a number.
    marks = [*(decoders.Replace(f" {mark}", mark) for mark in ":;"), decoders.Replace("##", "")]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=True), *marks])
    return tokenizer


def _ids(words: Sequence[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate([*_SPECIAL_TOKENS, "system", "user", "assistant", *words])}


def _wrap(model: models.Model) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
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
