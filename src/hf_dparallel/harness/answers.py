# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers to `generate_until` requests, with what each cost."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from ..data.prompts import stable_hash
from ..environment import device_name
from ..generation.rows import evaluation_mode
from .costs import request_cost
from .settings import RequestSettings, every_setting


class UntilCriteria(StoppingCriteria):
    """Holds when the text of the answer, without the prompt, contains one of the strings.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the answer.
        until (`tuple[str, ...]`): the strings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, until: tuple[str, ...]):
        self.tokenizer = tokenizer
        self.until = until

    def __call__(self, input_ids: torch.LongTensor, scores, answer_start: int = 0, **kwargs) -> torch.BoolTensor:
        texts = self.tokenizer.batch_decode(input_ids[:, answer_start:], skip_special_tokens=True)
        return torch.tensor([any(stop in text for stop in self.until) for text in texts], device=input_ids.device)

    def cut(self, tokens: list[int]) -> list[int]:
        """The tokens up to and including the first one with which it holds."""
        ids = torch.tensor([tokens])
        return next((tokens[:end] for end in range(1, len(tokens) + 1) if self(ids[:, :end], None)), tokens)


def decode_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, list[int]],
    settings: RequestSettings,
    batch_size: int,
    seed: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decodes prompts, given by key, that have the same settings, and yields the answers as they are finished.

    With `stop_at_eos=False` the whole canvas is decoded, as the published samplers do, also past strings that end the
    answer; what stands after the answer does not count. Draws depend on the seed and the key only.

    Yields:
        `tuple`: the key, and a record with `text` and `cost` ([`request_cost`]).
    """
    # The longest first: a prompt too long for the memory shows at once.
    keys = sorted(prompts, key=lambda key: len(prompts[key]), reverse=True)
    device = device_name(model.device)
    until = UntilCriteria(tokenizer, settings.until)
    stops = settings.until and settings.recipe.stop_at_eos
    with evaluation_mode(model):
        rows = model.generate_many(
            [prompts[key] for key in keys],
            batch_size=batch_size,
            stopping_criteria=StoppingCriteriaList([until] if stops else []),
            generator_for=lambda index: torch.Generator(model.device).manual_seed(stable_hash(seed, keys[index])),
            **every_setting(settings.recipe),
        )
        for row in rows.as_completed():
            tokens = row.tokens[: min(row.num_tokens, settings.max_tokens)].tolist()
            if tokens and tokens[-1] in settings.recipe.eos_token_ids:
                tokens.pop()
            if settings.until:
                tokens = until.cut(tokens)
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            cost = request_cost(row.nfe, len(tokens), len(row.tokens), row.seconds, batch_size, device)
            yield keys[row.index], {"text": cut_at(text, settings.until), "cost": cost}


def cut_at(text: str, until: tuple[str, ...]) -> str:
    """The text before the first of the strings."""
    for stop in until:
        text = text.split(stop)[0]
    return text
