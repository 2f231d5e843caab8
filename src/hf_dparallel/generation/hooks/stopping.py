# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Ends answers at the first token for which a criterion holds."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from hf_dparallel_rules.certainty import TokenPrediction

from .base import Change, DecodingHook


class StopTextCriteria(StoppingCriteria):
    """Holds when the text of the answer, without the prompt, contains one of the non-empty strings.

    `StopStringCriteria` of transformers fails for tokenizers whose tokens do not add up to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str], skip_special_tokens: bool = True):
        self.tokenizer = tokenizer
        self.strings = [text for text in strings if text]
        self.skip_special_tokens = skip_special_tokens

    def __call__(self, input_ids: torch.LongTensor, scores, answer_start: int = 0, **kwargs) -> torch.BoolTensor:
        texts = self.tokenizer.batch_decode(input_ids[:, answer_start:], skip_special_tokens=self.skip_special_tokens)
        return torch.tensor([any(stop in text for stop in self.strings) for text in texts], device=input_ids.device)

    def cut(self, tokens: list[int]) -> list[int]:
        """Returns the tokens up to and including the first one at which the criterion holds."""
        ids = torch.tensor([tokens])
        for end in range(1, len(tokens) + 1):
            if self(ids[:, :end], None):
                return tokens[:end]
        return tokens


class StopCheck(DecodingHook):
    """Ends the answers for which a stopping criterion holds.

    Criteria look at the end of a sequence, so they are called for every newly decided token, even when several were
    committed in one pass, with the row without its padding.
    """

    def __init__(self, criteria: StoppingCriteriaList):
        self.criteria = criteria
        # By row id, the number of tokens that have been checked.
        self._checked: dict[int, int] = {}

    def after(self, prediction: TokenPrediction, change: Change) -> None:
        canvas = self.canvas
        for row, (row_id, status) in enumerate(zip(canvas.row_ids, canvas.status, strict=True)):
            sequence = canvas.sequences[row : row + 1, canvas.prompt_start(row) :]
            # Where the answer begins, for criteria that must not look at the prompt.
            start = canvas.answer(row).start - canvas.prompt_start(row)
            lengths = range(self._checked.get(row_id, 0) + 1, min(status.num_final, status.length) + 1)
            holds = [self.criteria(sequence[:, : start + end], None, answer_start=start).all() for end in lengths]
            self._checked[row_id] = status.num_final
            if not holds:
                continue

            # Waits for the device once per row, however many tokens it has decided.
            stops = torch.stack(holds).tolist()
            if True in stops:
                canvas.end_row(row, lengths[stops.index(True)])

    def leave(self, row_id: int) -> dict:
        self._checked.pop(row_id, None)
        return {}
