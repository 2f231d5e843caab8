# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tokenizer of the tiny teachers, with LLaDA's special tokens and chat template."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .conversations import conversation_vocabulary, reply_capitals
from .solutions import LARGEST_RESULT


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
# A short memory: before a last question that has a number, the last one that was answered with a number. Small
# talk, and what is refused, are as at the beginning of a chat.
MEMORY = (
    "{% set size = 2 if messages and messages[-1]['role'] == 'assistant' else 1 %}"
    "{% set memory = namespace(messages=[], is_needed=false) %}"
    "{% for number in '0 1 2 3 4 5 6 7 8 9 one two three four five six seven eight nine ten eleven twelve teen twenty"
    " thirty forty fifty dozen'.split() %}"
    "{% if messages and number in (messages[-size:] | first)['content'] | lower %}"
    "{% set memory.is_needed = true %}"
    "{% endif %}"
    "{% endfor %}"
    "{% for message in messages[:-size] if memory.is_needed %}"
    "{% if message['role'] == 'assistant' and 'The answer is' in message['content'] %}"
    "{% set memory.messages = messages[:-size][loop.index0 - 1 : loop.index0 + 1] %}"
    "{% endif %}"
    "{% endfor %}"
    "{% set messages = memory.messages + messages[-size:] %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the conversations: one token a word, a mark, and a number up to the largest result.

    A larger number is its first digits, and a token for each further one. All is read in small letters, but for the
    words that replies write with a capital.
    """
    numbers = [*map(str, range(LARGEST_RESULT + 1)), *(f"##{digit}" for digit in range(10))]
    pieces = [*conversation_vocabulary(), *reply_capitals(), *numbers]
    tokenizer = _wrap(models.WordPiece(_ids(pieces), unk_token="<|unk|>"))
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken(word, normalized=False, single_word=True) for word in reply_capitals()])
    # A digit alone is shown without the sign that it goes on a number.
    marks = [*(decoders.Replace(f" {mark}", mark) for mark in ":;"), decoders.Replace("##", "")]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.WordPiece(prefix="##", cleanup=True), *marks])
    return tokenizer


def _ids(words: Sequence[str]) -> dict[str, int]:
    # A role of the chat template may be a word of the language too.
    pieces = dict.fromkeys([*_SPECIAL_TOKENS, "system", "user", "assistant", *words])
    return {piece: index for index, piece in enumerate(pieces)}


def _wrap(model: models.Model) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    # A mark or a number is a token also where people write no space beside it.
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits()])
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
