# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers to `generate_until` requests, with what each cost."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

import torch
from lm_eval.models.utils import postprocess_generated_text
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from ..environment import device_name
from ..evaluation.cost import DecodingCost
from ..generation.rows import evaluation_mode
from ..generation.stopping import StopTextCriteria
from ..hashes import stable_hash
from .costs import Record
from .settings import RequestSettings


def decode_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, list[int]],
    settings: RequestSettings,
    batch_size: int,
    seed: int,
) -> Iterator[tuple[str, Record]]:
    """Decodes prompts, given by key, that have the same settings, and yields the answers as they are finished.

    With `stop_at_eos=False` the whole canvas is decoded, as the published samplers do, also past strings that end the
    answer; what stands after the answer does not count. Draws depend on the seed and the key only.

    Yields:
        `tuple`: the key, and a record with `text`, `cost` (the fields of [`DecodingCost`]; tokens count up to and
        including the last one of a stop string), and `batch_size` and `device`, which its seconds depend on.
    """
    # The longest first: a prompt too long for the memory shows at once.
    keys = sorted(prompts, key=lambda key: len(prompts[key]), reverse=True)
    device = device_name(model.device)
    until = StopTextCriteria(tokenizer, settings.until)
    stops = settings.until and settings.resolved.stop_at_eos
    with evaluation_mode(model):
        rows = model.generate_many(
            [prompts[key] for key in keys],
            settings.resolved,
            batch_size,
            stopping_criteria=StoppingCriteriaList([until] if stops else []),
            generator_for=lambda index: torch.Generator(model.device).manual_seed(stable_hash(seed, keys[index])),
        )
        for row in rows.as_completed():
            tokens = row.tokens[: row.num_tokens].tolist()
            if settings.until:
                tokens = until.cut(tokens)
            cost = DecodingCost.of_tokens(
                tokens,
                row.nfe,
                settings.resolved.eos_token_ids,
                num_canvas_tokens=len(row.tokens),
                seconds=row.seconds,
            )
            text = tokenizer.decode(tokens[: cost.num_answer_tokens], skip_special_tokens=True)
            text = postprocess_generated_text(text, list(settings.until), None)
            yield keys[row.index], {"text": text, "cost": asdict(cost), "batch_size": batch_size, "device": device}
