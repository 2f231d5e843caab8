# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From tokens to text, whole or as it comes in."""

from collections.abc import Callable, Iterable

from transformers import PreTrainedTokenizerBase


def decode_without(tokenizer: PreTrainedTokenizerBase, token_ids: Iterable[int], hidden: set[int]) -> str:
    """Returns the text of tokens without the hidden ones, see [`hidden_tokens`]."""
    return tokenizer.decode([token for token in token_ids if token not in hidden], skip_special_tokens=False)


def num_begun(text: str, strings: Iterable[str]) -> int:
    """Counts the last characters of a text that are the beginning of one of the strings, without its end."""
    longest = 0
    for string in strings:
        for length in range(1, min(len(string), len(text) + 1)):
            if text.endswith(string[:length]):
                longest = max(longest, length)
    return longest


def text_after(decode: Callable[[list[int]], str], before: list[int], token: int) -> str:
    """Returns the text of a token after others, which decide in some tokenizers whether it begins with a space.

    After a part of a character, it is the text of the token alone.
    """
    text = decode(before)
    if text.endswith("\N{REPLACEMENT CHARACTER}"):
        return decode([token])
    return decode([*before, token])[len(text) :]
