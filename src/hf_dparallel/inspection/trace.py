# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""One decode as text: the tokens after each pass, and what the model predicted for the masks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from ..data.texts import text_after
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.layout import Layout
from ..generation.output import DiffusionGenerationOutput


_TextOf = Callable[..., str]


class Prediction(NamedTuple):
    """The prediction of a pass for one masked token, with figures of four decimals.

    Args:
        entropy (`float`): in nats; 9999 where the model prefers the mask token.
        confidence (`float`): the largest probability.
        candidates (`list[tuple[str, float]]`): the likeliest tokens and their probabilities, the likeliest first.
            Those below half a thousandth are left out.
    """

    entropy: float
    confidence: float
    candidates: list[tuple[str, float]]


@dataclass
class DecodeTrace:
    """The decode of one answer, to be stepped through. Made by [`trace_decode`].

    Args:
        name (`str`): title, such as the method.
        prompt (`str`): the prompt.
        changes (`list[list[tuple[int, str | None]]]`): for each position, the passes that set it, counted from 0, and
            the texts that they set it to, `None` for a mask. A token of the prompt, in infilling, is set by -1.
        blocks (`list[range]`): the positions of each block, from left to right.
        nfe (`int`): forward passes.
        tokens_per_forward (`float`): tokens of the answer over passes.
        settings (`dict[str, Any]`): decoding settings that differ from the defaults, by name.
        predictions (`list[dict[int, Prediction]]`): for each pass, the predictions of masked tokens, by position.
    """

    name: str
    prompt: str
    changes: list[list[tuple[int, str | None]]]
    blocks: list[range]
    nfe: int
    tokens_per_forward: float
    settings: dict[str, Any]
    predictions: list[dict[int, Prediction]]


def trace_decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    generation_config: DiffusionGenerationConfig | None = None,
    name: str = "Decode",
    seed: int = 0,
    stopping_criteria: StoppingCriteriaList | None = None,
) -> DecodeTrace:
    """Decodes a prompt, its token ids, and returns the trace of its decode, with `name` as its title.

    Model, tokenizer, recipe (by default the model's own) and the seed of draws are those of [`evaluate_decoding`];
    `stopping_criteria` are those of `generate`.
    """
    answerer = Answerer(model, tokenizer, generation_config, seed=seed)
    out = answerer.with_(output_certainty=True).decode([prompt_ids], stopping_criteria=stopping_criteria)
    config = answerer.config

    # The answer begins inside a block if blocks are counted from the sequence.
    layout = Layout.of(config, model.attention)
    prompt_length = len(prompt_ids)
    first_end = layout.origin(prompt_length) + config.block_length - layout.answer(prompt_length).start
    length = out.commit_step.shape[1]
    edges = [0, *range(first_end, length, config.block_length), length]

    text_of = cache(partial(_text_of, tokenizer))
    nfe = int(out.nfe[0])
    return DecodeTrace(
        name=name,
        prompt="" if config.is_infilling else tokenizer.decode(prompt_ids),
        changes=_changes(out, text_of),
        blocks=[range(start, end) for start, end in pairwise(edges)],
        nfe=nfe,
        tokens_per_forward=float(out.tokens_per_forward[0]),
        settings=config.non_defaults(),
        predictions=[_predictions(out, step, text_of) for step in range(nfe)],
    )


def _changes(out: DiffusionGenerationOutput, text_of: _TextOf) -> list[list[tuple[int, str | None]]]:
    commit_step = out.commit_step[0].tolist()
    # When infilling, there is no token before the first.
    tokens = [None, *out.sequences[0].tolist()][-len(commit_step) - 1 :]

    # Before the first pass, after each, and at the end; -1 is a mask.
    after_passes = out["standing"][0, : int(out.nfe[0])].tolist()
    states = [[-1] * len(commit_step), *after_passes, tokens[1:]]

    changes = []
    for before, step, *of_position in zip(tokens, commit_step, *states, strict=False):
        shown: list[tuple[int, str | None]] = []
        for at, (old, new) in enumerate(pairwise(of_position), -1):
            # Behind the end of an answer only the tokens of a prompt are shown.
            if old != new and (step >= 0 or at < 0):
                shown.append((at, None if new < 0 else text_of(new, before)))
        changes.append(shown)
    return changes


def _predictions(out: DiffusionGenerationOutput, step: int, text_of: _TextOf) -> dict[int, Prediction]:
    entropies = out["entropies"][0, step].tolist()
    confidences = out["confidences"][0, step].tolist()
    candidates = out["candidates"][0, step].tolist()
    probabilities = out["candidate_probabilities"][0, step].tolist()

    predictions = {}
    for position, entropy in enumerate(entropies):
        if math.isnan(entropy):
            continue
        likeliest = []
        for token, probability in zip(candidates[position], probabilities[position], strict=True):
            if probability >= 0.0005:
                likeliest.append((text_of(token), round(probability, 4)))
        predictions[position] = Prediction(
            # JSON has no infinity.
            entropy=round(min(entropy, 9999.0), 4),
            confidence=round(confidences[position], 4),
            candidates=likeliest,
        )
    return predictions


def _text_of(tokenizer: PreTrainedTokenizerBase, token: int, before: int | None = None) -> str:
    """Returns the text of a token, or its name in the vocabulary if it is only a part of a character.

    The token before decides in some tokenizers whether a text begins with a space.
    """
    known = [] if before is None else [before]
    text = text_after(tokenizer.decode, known, token)
    is_whole = text and "\N{REPLACEMENT CHARACTER}" not in text
    return text if is_whole else str(tokenizer.convert_ids_to_tokens(token))
