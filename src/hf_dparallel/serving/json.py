# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers that follow a JSON schema: the text that the schema fixes is written without a forward pass."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerBase

from hf_dparallel_rules.certainty import TokenPrediction

from ..generation.hooks.base import Change, DecodingHook


# The tags of a call in Qwen's chat templates, and in the many that follow them.
TAGS = ("<tool_call>", "</tool_call>")
# The characters of a schema, and of each text in it. Fixed text is computed to its end, and again for each item of an
# array, so a long one would block the server.
_LONGEST = 2**15
_LONGEST_TEXT = 256
# Without `verbose_errors`, messages do not dump the state of the parser.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=300_000, step_max_items=5000, max_lexer_states=50_000, verbose_errors=False
)
# The most common spacing of JSON. If whitespace were free, the schema would fix no text.
_SPACING = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
# Keywords that map names to schemas, keywords whose values are not schemas, and keywords without effect.
_MAPS = {"properties", "$defs", "definitions"}
_VALUES = {"enum", "const"}
_NOTES = {"title", "description", "default", "examples", "$comment"}
# The first two can take minutes to compile; the last would change the spacing.
_REFUSED = {"multipleOf", "patternProperties", "x-guidance"}


class SchemaError(ValueError):
    """A schema that cannot be followed, or not to the end of an answer."""


class JsonAnswer:
    """The state of an answer that follows a schema: from left to right, without a gap.

    `matcher` finds the tokens that may follow, of `vocabulary`.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: LLTokenizer):
        self.matcher = matcher
        self.vocabulary = vocabulary

    def given(self) -> list[int]:
        """Returns the tokens that the schema fixes as the next ones, and counts them as written."""
        tokens = self.matcher.compute_ff_tokens()
        if any(map(self.vocabulary.is_special_token, tokens)):
            tokens = self._spelled(self.matcher.compute_ff_bytes())

        self.matcher.consume_tokens(tokens)
        if self.matcher.is_stopped():
            return [*tokens, self.vocabulary.eos_token]
        return tokens

    def _spelled(self, fixed: bytes) -> list[int]:
        """Returns the tokens of fixed text, where a key that is spelled like a special token is plain text.

        llguidance writes a special token of the grammar, such as a tag, as a byte that no text has, and its id.
        """
        tokens: list[int] = []
        for number, part in enumerate(re.split(rb"\xff\[(\d+)\]", fixed)):
            if number % 2:
                tokens.append(int(part))
            else:
                # The last character may be begun only.
                tokens += self.vocabulary.greedy_tokenize(part.decode(errors="ignore"))
        return tokens

    def commit(self, predicted: list[int], logits: torch.Tensor, exact: bool = False) -> tuple[list[int], list[int]]:
        """Returns the predicted tokens to commit, and the tokens that the schema fixes after them.

        These are the first ones that fit; if none does, the likeliest token that fits, by the `logits` of the first
        place, `(vocab_size,)`. With `exact` the schema writes each text that it fixes, as one token at a time.
        """
        num_fitting = self.matcher.validate_tokens(predicted)
        kept = predicted[:num_fitting]
        if not kept:
            bias = torch.frombuffer(bytearray(self.matcher.compute_logit_bias()), dtype=torch.uint8)
            fits = bias[: len(logits)].to(logits.device) > 0
            likeliest = logits[: len(fits)].masked_fill(~fits, -torch.inf).argmax()
            kept = [int(likeliest)]

        steps = [[token] for token in kept] if exact else [kept]
        committed: list[int] = []
        given: list[int] = []
        for tokens in steps:
            self.matcher.consume_tokens(tokens)
            committed += tokens
            if tokens[-1] not in self.vocabulary.eos_tokens:
                given = self.given()
            if given:
                break
        return committed, given


class JsonHook(DecodingHook):
    """Keeps answers to the schemas in the `json` of their prompts. `prompts` has those of all rows by row id."""

    def __init__(self, prompts: Mapping[int, Any]):
        self._prompts = prompts

    def enter(self, row_ids: list[int]) -> None:
        """Writes the text at the beginning of the answers."""
        for row_id in row_ids:
            answer = self._prompts[row_id].json
            if answer is not None:
                # After a pass that did not fit into memory, a row enters again.
                answer.matcher.reset()
                given = answer.given()
                self.canvas.begin(self.canvas.row_ids.index(row_id), given)

    def change(self, prediction: TokenPrediction, change: Change) -> Change:
        """Keeps the predictions that fit, and writes the fixed text after them into the canvas."""
        for row, row_id in enumerate(self.canvas.row_ids):
            answer = self._prompts[row_id].json
            if answer is None:
                continue

            status = self.canvas.status[row]
            columns = self.canvas.answer(row)
            # The first columns are the masks, from left to right. In block-causal models some are after the answer.
            num_masks = min(status.num_open, columns.stop - columns.start - status.num_decided)
            num_accepted = [*change.commits[row, :num_masks].tolist(), False].index(False)
            predicted = change.tokens[row, : max(num_accepted, 1)].tolist()

            kept, given = answer.commit(predicted, prediction.logits[row, 0], self.canvas.config.exact)
            self.canvas.write(row, status.num_decided + len(kept), given)
            tokens, commits = change.tokens.clone(), change.commits.clone()
            tokens[row, : len(kept)] = tokens.new_tensor(kept)
            commits[row] = torch.arange(commits.shape[1], device=commits.device) < len(kept)
            change = change._replace(tokens=tokens, commits=commits)
        return change

    def leave(self, row_id: int) -> dict[str, Any]:
        """Returns an `error` if a matcher has reached one of its limits, after which only the end fits."""
        answer = self._prompts[row_id].json
        if answer is None or not answer.matcher.is_error():
            return {}
        reason = answer.matcher.get_error().partition("\n")[0]
        return {"error": SchemaError(f"The answer cannot follow the JSON schema any more: {reason}")}


def compile_schema(
    schema: dict[str, Any] | None,
    call: dict[str, Any] | None,
    tokenizer: PreTrainedTokenizerBase,
    vocab_size: int,
    eos_token_ids: list[int],
) -> JsonAnswer:
    """Returns the beginning of an answer that follows `schema`, or is a `call` between `TAGS`; the model chooses.

    Objects have all their properties, in order. Raises a [`SchemaError`] for what is not supported.
    """
    closed = [_closed(each) for each in (schema, call) if each is not None]
    text = json.dumps(closed, ensure_ascii=False)
    texts = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    longest_text = max(map(len, texts), default=0)
    if len(text) > _LONGEST or longest_text > _LONGEST_TEXT or re.search(r"\{\s*\d{4}", text):
        raise SchemaError(f"a schema may have {_LONGEST} characters, texts of {_LONGEST_TEXT}, and repeats up to 999.")

    try:
        vocabulary = _vocabulary(tokenizer, max(vocab_size, len(tokenizer)), tuple(eos_token_ids))
    except ValueError as error:
        raise SchemaError("JSON answers need a byte-level tokenizer, and this model has another one.") from error

    forms = [f"%json {json.dumps(each | _SPACING)}" for each in closed]
    if call is not None:
        # A tag may be a token of its own, which grammars write without quotes.
        begin, end = [tag if tag in tokenizer.get_added_vocab() else f'"{tag}"' for tag in TAGS]
        forms[-1] = f'{begin} "\\n" {forms[-1]} "\\n" {end}'

    names = [f"form{number}" for number in range(len(forms))]
    rules = [f"{name}: {form}" for name, form in zip(names, forms, strict=True)]
    grammar = LLMatcher.grammar_from_lark("\n".join([f"start: {' | '.join(names)}", *rules]))

    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    # Some errors are raised only for the first token.
    if not matcher.is_error():
        matcher.compute_logit_bias()
    if matcher.is_error():
        raise SchemaError(f"the schema is not supported: {_reason(matcher, text)}.")
    return JsonAnswer(matcher, vocabulary)


def _reason(matcher: LLMatcher, schema: str) -> str:
    """Returns why a schema is not supported, without the grammar that llguidance's error has below."""
    first_line = matcher.get_error().partition("\n")[0]
    reason = first_line.rpartition("JSON schema: ")[2][:300]
    if reason == "NoExtensionBias":
        return "it refers to nothing but itself, so that no answer can begin"
    if "Unsatisfiable" in reason and '"allOf"' in schema:
        # Each of them is closed against the properties of the others.
        return f"{reason}; `allOf` cannot join objects: write their properties into one object"
    return reason


def _closed(schema: Any, is_map: bool = False) -> Any:
    """Returns the schema with all properties required, and others forbidden unless it allows them explicitly."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_map:
        return {name: _closed(each) for name, each in schema.items()}

    for name in _REFUSED.intersection(schema):
        raise SchemaError(f"`{name}` is not supported.")
    closed = {}
    for name, value in schema.items():
        if name in _VALUES:
            closed[name] = value
        elif name not in _NOTES:
            closed[name] = _closed(value, name in _MAPS)

    if isinstance(closed.get("properties"), dict):
        closed = {"additionalProperties": False} | closed | {"required": list(closed["properties"])}
    return closed


_vocabulary = lru_cache(maxsize=16)(lambda tokenizer, size, eos: from_tokenizer(tokenizer, size, list(eos)))
