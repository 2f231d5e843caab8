# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""One decode as text: the tokens after each pass, and what the model predicted for the masks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import dropwhile, pairwise
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.layout import Layout
from ..generation.output import DiffusionGenerationOutput


_TextOf = Callable[..., str]


@dataclass
class Prediction:
    """The prediction of a pass for one masked token.

    Args:
        entropy (`float`): in nats.
        confidence (`float`): the largest probability.
        candidates (`list[tuple[str, float]]`): the likeliest tokens and their probabilities, the likeliest first.
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

    def standing(self, position: int, number: int) -> tuple[int, str | None]:
        """Returns the last of `number` passes that set a position, or -1, and the text there, `None` for a mask."""
        return next((change for change in reversed(self.changes[position]) if change[0] < number), (-1, None))


def trace_decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    generation_config: DiffusionGenerationConfig | None = None,
    name: str = "Decode",
    seed: int = 0,
) -> DecodeTrace:
    """Decodes a prompt, its token ids, and returns the trace of its decode, with `name` as its title.

    Model, tokenizer, recipe (by default the model's own) and the seed of draws are those of [`evaluate_decoding`].
    """
    answerer = Answerer(model, tokenizer, generation_config, seed=seed)
    out = answerer.with_(output_certainty=True).decode([prompt_ids])
    return trace_output(out, tokenizer, answerer.config, name, attention=model.attention)


def trace_output(
    out: DiffusionGenerationOutput,
    tokenizer: PreTrainedTokenizerBase,
    config: DiffusionGenerationConfig,
    name: str,
    row: int = 0,
    attention: str = "full",
) -> DecodeTrace:
    """Returns the trace of a row, from an output of `generate` with `output_certainty=True`.

    Args:
        out ([`DiffusionGenerationOutput`]): the output.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer of the model.
        config ([`DiffusionGenerationConfig`]): the resolved settings, special tokens included.
        name (`str`): title of the decode.
        row (`int`, *optional*, defaults to 0): which answer.
        attention (`str`, *optional*, defaults to `"full"`): attention of the model. With another, blocks are counted
            from the `block_origin` of the settings.
    """
    length, block_length = out.commit_step.shape[1], config.block_length
    padded = out.sequences[row, : out.sequences.shape[1] - length].tolist()
    prompt_ids = list(dropwhile(lambda token: token == config.padding_token_id, padded))
    text_of = cache(partial(_text_of, tokenizer))
    layout, prompt_length = Layout.of(config, attention), length if config.is_infilling else len(prompt_ids)
    first_block_length = layout.origin(prompt_length) + block_length - layout.answer(prompt_length).start
    starts = [0, *range(first_block_length, length, block_length), length]
    return DecodeTrace(
        name=name,
        prompt=tokenizer.decode(prompt_ids),
        changes=_changes(out, row, text_of, config.is_infilling),
        blocks=[range(start, end) for start, end in pairwise(starts)],
        nfe=int(out.nfe[row]),
        tokens_per_forward=float(out.tokens_per_forward[row]),
        settings=config.non_defaults(),
        predictions=[_predictions(out, row, step, text_of) for step in range(int(out.nfe[row]))],
    )


def required(out: DiffusionGenerationOutput, name: str) -> torch.Tensor:
    """Returns a field of an output that was decoded with `output_certainty=True`, or raises a `ValueError`."""
    values = getattr(out, name)
    if values is None:
        raise ValueError(
            f"`out` has no {name}. Decode with `output_certainty=True` and `return_dict_in_generate=True`."
        )
    return values


def _changes(
    out: DiffusionGenerationOutput, row: int, text_of: _TextOf, is_infilling: bool
) -> list[list[tuple[int, str | None]]]:
    was_masked = ~required(out, "entropies")[row].isnan().all(dim=0)
    commit_step = out.commit_step[row].tolist()
    # When infilling, there is no token before the first.
    tokens = [None, *out.sequences[row].tolist()][-len(commit_step) - 1 :]
    changes: list[list[tuple[int, str | None]]] = []
    for position, ((before, token), step) in enumerate(zip(pairwise(tokens), commit_step, strict=True)):
        is_shown = step >= 0 or (is_infilling and not was_masked[position])
        changes.append([(step, text_of(token, before))] if is_shown else [])
    if out.num_revisions[row]:
        states = [*required(out, "standing")[row, : int(out.nfe[row])].tolist(), tokens[1:]]
        for position, step in enumerate(commit_step):
            of_position = [state[position] for state in states] if step >= 0 else []
            changed = [(at, new) for at, (old, new) in enumerate(pairwise(of_position)) if old != new]
            if len(changed) > 1:
                changes[position] = [(at, None if new < 0 else text_of(new, tokens[position])) for at, new in changed]
    return changes


def _predictions(out: DiffusionGenerationOutput, row: int, step: int, text_of: _TextOf) -> dict[int, Prediction]:
    kinds = ("entropies", "confidences", "candidates", "candidate_probabilities")
    of_pass = [required(out, kind)[row, step] for kind in kinds]
    positions = (~of_pass[0].isnan()).nonzero().flatten()
    columns = zip(positions.tolist(), *(values[positions].tolist() for values in of_pass), strict=True)
    return {
        position: Prediction(
            entropy, confidence, [(text_of(t), p) for t, p in zip(tokens, probabilities, strict=True) if t >= 0]
        )
        for position, entropy, confidence, tokens, probabilities in columns
    }


def _text_of(tokenizer: PreTrainedTokenizerBase, token: int, before: int | None = None) -> str:
    """Returns the text of a token, or its name in the vocabulary if it is only a part of a character.

    The token before decides in some tokenizers whether a text begins with a space.
    """
    first = "" if before is None else tokenizer.decode([before])
    text = tokenizer.decode([token] if before is None else [before, token])[len(first) :]
    is_whole = text and "\N{REPLACEMENT CHARACTER}" not in first + text
    return text if is_whole else str(tokenizer.convert_ids_to_tokens(token))
