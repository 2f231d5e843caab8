# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers in JSON by a schema: its keys and braces are given, and the model writes the values."""

import json
import string
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import regex
from transformers import PreTrainedTokenizerBase


_CHARACTERS = [*string.ascii_letters, *string.digits, *string.punctuation, " "]
# Values in a schema, and in an enumeration.
_MOST = 256
# Parts of a schema that change no answer.
_NOTES = {"title", "description", "examples", "default", "$schema"}
# A number has ended when something else begins.
_END = r"(?=[\s,}])"
_INTEGER = "-?(?:0|[1-9][0-9]{0,14})"
_SCALARS = {
    "integer": _INTEGER + _END,
    "number": _INTEGER + r"(?:\.[0-9]{1,15})?" + _END,
    "boolean": "true|false",
    "null": "null",
}
_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])'


class JsonGuide:
    """Guides an answer: what a schema gives is written, and values may be what it allows. Made for one answer.

    Args:
        parts (`list`): texts that are given and patterns of values in turn, as [`read_schema`] returns them.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): with [`single_characters`].
        eos_token_id (`int`): what follows the end.
    """

    def __init__(self, parts: "list[str | regex.Pattern]", tokenizer: PreTrainedTokenizerBase, eos_token_id: int):
        self.last_resort = list(single_characters(tokenizer).values())
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._parts: list[Any] = list(parts)
        self._tokens: list[int] = []
        # What they say, and how much of it precedes the value that is being written.
        self._text, self._start = "", 0

    def begin(self) -> list[int]:
        """The tokens up to the first value."""
        return self._give("")

    def follow(self, token: int) -> list[int] | None:
        """Takes the next token of a value; a token that ends it is replaced by the end and what is given behind it."""
        if not self._decode([token]):  # a special token
            return None
        text = self._decode([*self._tokens, token])
        match = self._parts[0].match(text[self._start :], partial=True)
        if match is None:
            return None
        if match.partial:
            self._tokens, self._text = [*self._tokens, token], text
            return [token]
        value = text[: self._start] + match.group()
        # Unless the token has also completed a character of the value.
        return self._give(value[len(self._text) :], 1) if value.startswith(self._text) else None

    def _give(self, end_of_value: str, num_done: int = 0) -> list[int]:
        given, *self._parts = self._parts[num_done:]
        tokens = self._tokenizer(end_of_value + given, add_special_tokens=False)["input_ids"]
        self._tokens = [*self._tokens, *tokens]
        self._text = self._decode(self._tokens)
        self._start = len(self._text)
        return tokens if self._parts else [*tokens, self._eos_token_id]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def read_schema(schema: Any, tokenizer: PreTrainedTokenizerBase) -> "list[str | regex.Pattern]":
    """Returns what a schema gives and the patterns of the values between, beginning and ending with what is given.

    Raises:
        ValueError: for what is not supported, naming the part of the schema, or if the tokenizer cannot write it.
    """
    single_characters(tokenizer)
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError("`schema` must be an object whose `type` is object.")
    parts: list[str | regex.Pattern] = [""]
    for part in _object(schema, "schema", ""):
        if isinstance(part, str) and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
        if len(parts) > 2 * _MOST:
            raise ValueError(f"`schema` must have at most {_MOST} values.")
    for given in parts[::2]:
        ids = tokenizer(given, add_special_tokens=False)["input_ids"]
        # Without special tokens: a key that is written like one would end the answer, or begin another turn.
        if tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) != given:
            raise ValueError(f"The tokenizer of this model cannot write {str(given)[:80]!r}.")
    return parts


def _object(schema: dict[str, Any], place: str, space: str) -> "Iterator[str | regex.Pattern]":
    _check_names(schema, place, {"properties", "required", "additionalProperties"})
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        raise ValueError(f"`{place}.properties` must be an object that is not empty: its keys are what is given.")
    required = schema.get("required", [])
    if not isinstance(required, list) or any(name not in properties for name in required):
        raise ValueError(f"`{place}.required` must be a list of names of the properties.")
    for index, (name, value) in enumerate(properties.items()):
        yield ("," if index else space + "{") + (" " if index else "") + json.dumps(name, ensure_ascii=False) + ":"
        of_value = f"{place}.properties.{name}"
        if not isinstance(value, dict):
            raise ValueError(f"`{of_value}` must be an object.")
        if value.get("type") == "object":
            yield from _object(value, of_value, " ")
        else:
            yield regex.compile(f" ?(?:{_pattern(value, of_value)})")
    yield "}"


def _pattern(schema: dict[str, Any], place: str) -> str:
    if "enum" in schema or "const" in schema:
        _check_names(schema, place, {"enum", "const"})
        options = schema.get("enum", [schema.get("const")])
        if not isinstance(options, list) or not options or any(isinstance(each, (list, dict)) for each in options):
            raise ValueError(f"`{place}.enum` must be a list of texts, numbers, true, false or null, not empty.")
        if len(options) > _MOST:
            raise ValueError(f"`{place}.enum` must have at most {_MOST} values, got {len(options)}.")
        return "|".join(map(_option, options))
    kind = schema.get("type")
    if kind == "string":
        _check_names(schema, place, {"minLength", "maxLength"})
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10**6)
        if not all(type(length) is int and 0 <= length <= 10**6 for length in (least, most)) or least > most:
            raise ValueError(f"`{place}` must have `minLength` and `maxLength` that are integers, up to a million.")
        return f'"{_CHARACTER}{{{least},{most}}}"'
    _check_names(schema, place, set())
    if isinstance(kind, str) and kind in _SCALARS:
        return _SCALARS[kind]
    raise ValueError(
        f"`{place}` must have the `type` object, string, integer, number, boolean or null, or an `enum`; "
        f"got {str(kind)[:80]}."
    )


def _option(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return regex.escape(json.dumps(value)) + (_END if is_number else "")


def _check_names(schema: dict[str, Any], place: str, known: set[str]) -> None:
    for name in schema:
        if name not in known | _NOTES | {"type"}:
            raise ValueError(f"`{place}.{name[:80]}` is not supported. Leave it out, and check the answer yourself.")


@lru_cache(maxsize=16)
def single_characters(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens of the characters of which JSON can be written one by one.

    Raises:
        ValueError: if a tokenizer has no such tokens, as one of words.
    """
    before = tokenizer("{", add_special_tokens=False)["input_ids"]
    tokens = {}
    for char in _CHARACTERS:
        ids = tokenizer(char, add_special_tokens=False)["input_ids"]
        if tokenizer.decode([*before, *ids], clean_up_tokenization_spaces=False) != "{" + char or len(ids) != 1:
            raise ValueError(f"The tokenizer of this model has no token for {char!r} alone, which JSON needs.")
        tokens[char] = ids[0]
    return tokens
