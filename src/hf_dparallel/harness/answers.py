# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers to `generate_until` requests, with what each cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from lm_eval.models.utils import postprocess_generated_text
from transformers import StoppingCriteriaList

from ..environment import device_name
from ..evaluation.cost import DecodingCost
from ..generation.answerer import Answerer
from ..generation.stopping import StopTextCriteria
from .costs import Record


def decode_answers(
    answerer: Answerer, prompts: Mapping[str, list[int]], stop_texts: Sequence[str]
) -> Iterator[tuple[str, Record]]:
    """Decodes prompts, given by key, and yields the answers as they are finished, each cut at the first stop text.

    With `stop_at_eos=False` the whole canvas is decoded, as the published samplers do, also past strings that end the
    answer; what stands after the answer does not count. Draws depend on the seed and the key only.

    Yields:
        `tuple`: the key, and a record with `text`, `cost` (the fields of [`DecodingCost`]; tokens count up to and
        including the last one of a stop string), and `batch_size` and `device`, which its seconds depend on.
    """
    # The longest first: a prompt too long for the memory shows at once.
    keys = sorted(prompts, key=lambda key: len(prompts[key]), reverse=True)
    conditions = {"batch_size": answerer.batch_size, "device": device_name(answerer.model.device)}
    tokenizer, config = answerer.tokenizer, answerer.config
    until = StopTextCriteria(tokenizer, stop_texts)
    criteria = StoppingCriteriaList([until] if stop_texts and config.stop_at_eos else [])
    for key, row in answerer.rows(((key, prompts[key]) for key in keys), criteria):
        tokens = row.tokens[: row.num_tokens].tolist()
        if stop_texts:
            tokens = until.cut(tokens)
        cost = DecodingCost.of_tokens(tokens, row.nfe, config.eos_token_ids, len(row.tokens), row.seconds)
        text = tokenizer.decode(tokens[: cost.num_answer_tokens], skip_special_tokens=True)
        text = postprocess_generated_text(text, list(stop_texts), None)
        yield key, {"text": text, "cost": asdict(cost), **conditions}
