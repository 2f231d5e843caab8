# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Stop strings: answers that end before an end token does it."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from .configuration import DiffusionGenerationConfig


class StopTextCriteria(StoppingCriteria):
    """Holds when the text of the answer, without the prompt, contains one of the strings.

    `StopStringCriteria` of transformers fails for tokenizers whose tokens do not join to the string.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): decodes the answer.
        strings (`Sequence[str]`): the strings; empty ones end nothing.
        skip_special_tokens (`bool`): whether special tokens are no part of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str], skip_special_tokens: bool = True):
        self.tokenizer = tokenizer
        self.strings = [text for text in strings if text]
        self.skip_special_tokens = skip_special_tokens

    def __call__(self, input_ids: torch.LongTensor, scores, answer_start: int = 0, **kwargs) -> torch.BoolTensor:
        texts = self.tokenizer.batch_decode(input_ids[:, answer_start:], skip_special_tokens=self.skip_special_tokens)
        return torch.tensor([any(stop in text for stop in self.strings) for text in texts], device=input_ids.device)

    def cut(self, tokens: list[int]) -> list[int]:
        """The tokens up to and including the first one with which it holds."""
        ids = torch.tensor([tokens])
        return next((tokens[:end] for end in range(1, len(tokens) + 1) if self(ids[:, :end], None)), tokens)


def all_criteria(
    criteria: StoppingCriteriaList | None,
    config: DiffusionGenerationConfig,
    tokenizer: PreTrainedTokenizerBase | None,
) -> StoppingCriteriaList:
    """The criteria of the caller and the stop strings of the configuration.

    Raises:
        ValueError: if there are stop strings and no tokenizer, or criteria and no answer to end.
    """
    criteria = StoppingCriteriaList(criteria or [])
    if criteria and config.is_infilling:
        raise ValueError("`stopping_criteria` end an answer, and `max_new_tokens=0` has none to end. Leave them out.")
    if config.stop_strings:
        if tokenizer is None:
            raise ValueError(
                f"`stop_strings={config.stop_strings!r}` needs the tokenizer: pass `tokenizer=` to `generate`."
            )
        strings = [config.stop_strings] if isinstance(config.stop_strings, str) else config.stop_strings
        criteria.append(StopTextCriteria(tokenizer, strings, skip_special_tokens=False))
    return criteria
