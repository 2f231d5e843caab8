# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers that follow a JSON schema: the text that the schema fixes is written without a forward pass."""

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase

from .errors import RequestError


# The tags of a call in Qwen's chat templates, and in the many that follow them.
TAGS = ("<tool_call>", "</tool_call>")
# Limits of a schema: its characters, its levels, and the characters of each text, repeats included. Fixed text is
# computed to its end, and again for each item of an array, so a long one would block the server.
_LONGEST, _DEEPEST, _LONGEST_TEXT = 2**15, 32, 256
# Without `verbose_errors`, messages do not dump the state of the parser.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=300_000, step_max_items=5000, max_lexer_states=50_000, verbose_errors=False
)
# The most common spacing of JSON. If whitespace were free, the schema would fix no text.
_SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Keywords that map names to schemas, keywords whose values are not schemas, and keywords without effect.
_MAPS, _VALUES = {"properties", "$defs", "definitions"}, {"enum", "const"}
_NOTES = {"title", "description", "default", "examples", "$comment"}
# The first two can take minutes to compile; the last would change the spacing.
_REFUSED = {"multipleOf", "patternProperties", "x-guidance"}


class CompiledSchema(NamedTuple):
    """A schema as a matcher, which finds the tokens that may follow, and the vocabulary of these tokens."""

    matcher: LLMatcher
    vocabulary: LLTokenizer


class JsonAnswer:
    """The state of an answer that follows a schema: from left to right, without a gap."""

    def __init__(self, schema: CompiledSchema):
        self._matcher = schema.matcher.deep_copy()
        self._vocabulary = schema.vocabulary

    def given(self) -> list[int]:
        """Returns the tokens that the schema fixes as the next ones, and counts them as written."""
        tokens = self._matcher.compute_ff_tokens()
        if any(map(self._vocabulary.is_special_token, tokens)):
            # A key that is spelled like a special token is plain text.
            tokens = self._vocabulary.greedy_tokenize(self._matcher.compute_ff_bytes().decode(errors="ignore"))
        self._matcher.consume_tokens(tokens)
        return [*tokens, self._vocabulary.eos_token] if self._matcher.is_stopped() else tokens

    def commit(self, predicted: list[int], logits: torch.Tensor) -> tuple[list[int], list[int]]:
        """Returns the predicted tokens to commit, and the tokens that the schema fixes after them.

        These are the first ones that fit; if none does, the likeliest token that fits, by the `logits` of the first
        place, `(vocab_size,)`.
        """
        kept = predicted[: self._matcher.validate_tokens(predicted)]
        if not kept:
            bias = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
            fits = bias[: len(logits)].to(logits.device) > 0
            kept = [int(logits[: len(fits)].masked_fill(~fits, -torch.inf).argmax())]
        self._matcher.consume_tokens(kept)
        return kept, [] if kept[-1] in self._vocabulary.eos_tokens else self.given()

    def error(self) -> RequestError | None:
        """Returns an error if the matcher has reached one of its limits, after which only the end fits."""
        if not self._matcher.is_error():
            return None
        reason = self._matcher.get_error().partition("\n")[0]
        return RequestError(f"The answer cannot follow the JSON schema any more: {reason}")


def compile_schema(
    schema: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    vocab_size: int,
    eos_token_ids: list[int],
    calls: dict[str, Any] | None = None,
) -> CompiledSchema:
    """Compiles a schema, or raises a `ValueError`. Answers have all properties of an object, in their order.

    With the schema of a call, `calls`, answers may be calls of functions instead, each between the tags of `TAGS`.
    """
    closed, call = _closed(schema), _closed(calls)
    text = json.dumps([closed, call], ensure_ascii=False, allow_nan=False)
    if len(text) > _LONGEST:
        raise ValueError(f"a schema may have at most {_LONGEST} characters.")
    if max(map(len, re.findall(r'"((?:[^"\\]|\\.)*)"', text)), default=0) > _LONGEST_TEXT:
        raise ValueError(f"a text in a schema may have at most {_LONGEST_TEXT} characters.")
    vocabulary = _vocabulary(tokenizer, max(vocab_size, len(tokenizer)), tuple(eos_token_ids))
    if calls is None:
        grammar = LLMatcher.grammar_from_json_schema(closed, overrides=_SPACING)
    else:
        grammar = LLMatcher.grammar_from_lark(_either(closed, call, tokenizer))
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    # Some errors are raised only for the first token.
    if not matcher.is_error():
        matcher.compute_logit_bias()
    if matcher.is_error():
        raise ValueError(f"the schema is not supported: {matcher.get_error()[:300]}")
    return CompiledSchema(matcher, vocabulary)


def _closed(schema: Any, depth: int = 0) -> Any:
    """Returns the schema with all properties required, and others forbidden unless it allows them explicitly."""
    if depth > _DEEPEST:
        raise ValueError(f"a schema may have at most {_DEEPEST} levels.")
    if isinstance(schema, list):
        return [_closed(each, depth + 1) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _REFUSED:
            raise ValueError(f"`{name}` is not supported.")
        if _length(name, value) > _LONGEST_TEXT:
            raise ValueError(f"`{name}` may require at most {_LONGEST_TEXT} characters.")
        if name in _MAPS and isinstance(value, dict):
            closed[name] = {key: _closed(each, depth + 1) for key, each in value.items()}
        elif name not in _NOTES:
            closed[name] = value if name in _VALUES else _closed(value, depth + 1)
    if isinstance(closed.get("properties"), dict):
        closed = {"additionalProperties": False} | closed | {"required": list(closed["properties"])}
    return closed


def _either(schema: dict[str, Any], call: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the grammar of an answer or calls."""
    # A tag may be a token of its own, which grammars write without quotes.
    begin, end = (f'{tag} | "{tag}"' if tag in tokenizer.get_added_vocab() else f'"{tag}"' for tag in TAGS)
    answer, arguments = (json.dumps(each | {"x-guidance": _SPACING}) for each in (schema, call))
    return (
        f'start: answer | call ("\\n" call)*\nanswer: %json {answer}\n'
        f'call: begin "\\n" %json {arguments} "\\n" end\nbegin: {begin}\nend: {end}\n'
    )


def _length(name: str, value: Any) -> float:
    """Returns how many characters a keyword requires at most. In a pattern, repeats of groups multiply."""
    if name == "minLength" and isinstance(value, int | float):
        return value
    length, factor = len(value) if name == "pattern" and isinstance(value, str) else 0, 1
    for before, count in re.findall(r"(.?)\{\s*(\d+)", value, re.DOTALL) if length else ():
        if before.isalnum() or before in "].":
            length += int(count)
        else:
            factor *= max(int(count), 1)
    return length * factor


@lru_cache(maxsize=16)
def _vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    try:
        return from_tokenizer(tokenizer, vocab_size, list(eos_token_ids))
    except ValueError as error:
        raise ValueError("JSON answers need a byte-level tokenizer, and this model has another one.") from error
