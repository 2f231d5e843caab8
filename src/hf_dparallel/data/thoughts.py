# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Thoughts: what a model writes between two markers before its answer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_dparallel_rules.settings import SettingError

from ..generation.answerer import Answerer
from .texts import num_begun


# As chat templates write them.
_KNOWN = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


@dataclass(frozen=True)
class ThoughtMarkers:
    """What thoughts begin and end with, and whether the prompt has the beginning already."""

    begin: str
    end: str
    is_open: bool = False

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        given: Sequence[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "ThoughtMarkers | None":
        """Returns the `given` markers, or those in the chat template; `None` if it has none."""
        if given and len(given) != 2:
            raise SettingError(
                "thought_markers", given, rule="must be a list of two strings", remedy="Give beginning and end."
            )

        template = str(tokenizer.chat_template or "")
        known = [pair for pair in _KNOWN if pair[1] in template]
        if not given and not known:
            return None

        begin, end = given or known[0]
        prompt = ""
        with suppress(Exception):  # a template is a program, which may refuse this chat
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": "?"}],
                tokenize=False,
                add_generation_prompt=True,
                **(chat_template_kwargs or {}),
            )
        return cls(begin, end, prompt.rstrip().endswith(begin))

    def split(self, text: str, is_whole: bool = True) -> tuple[str, str]:
        """Returns thought and answer. Of a text that is not whole, later text only adds to both of them."""
        start = text.lstrip()
        if not is_whole and self.begin.startswith(start):
            return "", ""
        if not self.is_open and not start.startswith(self.begin):
            return "", text

        # A model may open a thought again that the prompt has opened.
        thought, end, answer = start.removeprefix(self.begin).partition(self.end)
        if not end and not is_whole:
            # Its last characters may become the marker, or be spaces before it.
            thought = thought[: len(thought) - num_begun(thought, [self.end])]
        return thought.strip(), answer.lstrip()


def markers_of(answerer: Answerer) -> ThoughtMarkers | None:
    """Returns the markers of the thoughts in the answers of a model, by its recipe or its chat template."""
    config = answerer.config
    return ThoughtMarkers.of(answerer.tokenizer, config.thought_markers, config.chat_template_kwargs)


def split_thought(markers: ThoughtMarkers | None, text: str, is_whole: bool = True) -> tuple[str, str]:
    """Returns thought and answer, all of which is answer without markers."""
    if markers is None:
        return "", text
    return markers.split(text, is_whole)


def hidden_tokens(tokenizer: PreTrainedTokenizerBase, markers: ThoughtMarkers | None = None) -> set[int]:
    """Returns the special tokens, which are no part of the text of an answer, without those that mark its thought."""
    shown = markers.begin + markers.end if markers else ""
    special = set(tokenizer.all_special_ids)
    with suppress(NotImplementedError):  # tokenizers of mistral-common have all in the first set
        special.update(number for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    return {number for number in special if str(tokenizer.convert_ids_to_tokens(number)) not in shown}
