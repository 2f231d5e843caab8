# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""One decode as text: the tokens after each pass, and what the model predicted for the masks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import dropwhile, pairwise
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
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
        tokens (`list[str]`): the text of each position in the end.
        commit_step (`list[int]`): the pass, counted from 0, that committed each position, -1 for none.
        block_length (`int`): positions of a block; the last one may have fewer.
        first_block_length (`int`): positions of the first block, which has fewer where the prompt shares it.
        nfe (`int`): forward passes.
        tokens_per_forward (`float`): tokens of the answer over passes.
        settings (`dict[str, Any]`): decoding settings that differ from the defaults, by name.
        predictions (`list[dict[int, Prediction]]`): for each pass, the predictions of masked tokens, by position.
        revised (`dict[int, list[tuple[int, str | None]]]`): of each position of the answer that was revised, the
            passes that set it and the texts that they set it to, `None` for a mask, in their order.
    """

    name: str
    prompt: str
    tokens: list[str]
    commit_step: list[int]
    block_length: int
    first_block_length: int
    nfe: int
    tokens_per_forward: float
    settings: dict[str, Any]
    predictions: list[dict[int, Prediction]]
    revised: dict[int, list[tuple[int, str | None]]] = field(default_factory=dict)

    def standing(self, position: int, number: int) -> tuple[int, str | None]:
        """Returns the last of `number` passes that set a position, or -1, and the text there, `None` for a mask."""
        if self.is_given(position):
            return -1, self.tokens[position]
        last = [(self.commit_step[position], self.tokens[position])]
        events = [event for event in self.revised.get(position, last) if 0 <= event[0] < number]
        return events[-1] if events else (-1, None)

    def is_given(self, position: int) -> bool:
        """Returns whether a position was never masked, as tokens of the prompt in infilling."""
        return self.commit_step[position] < 0 and not any(position in masked for masked in self.predictions)

    def blocks(self) -> list[range]:
        """Returns the positions of each block, from left to right."""
        length = len(self.tokens)
        starts = [0, *range(self.first_block_length, length, self.block_length)]
        return [range(start, end) for start, end in zip(starts, [*starts[1:], length], strict=True)]


def trace_decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: list[int],
    generation_config: DiffusionGenerationConfig | None = None,
    name: str = "Decode",
    seed: int = 0,
) -> DecodeTrace:
    """Decodes a prompt and returns the trace of its decode.

    Args:
        model ([`~transformers.PreTrainedModel`]): with [`~DiffusionGenerationMixin.generate`].
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        prompt_ids (`list[int]`): token ids of the prompt.
        generation_config ([`DiffusionGenerationConfig`], *optional*): the recipe. By default the model's own.
        name (`str`, *optional*): title of the decode.
        seed (`int`, *optional*, defaults to 0): seed of the draws with `temperature > 0`.
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

    Raises:
        ValueError: if `out` has no certainty.
    """
    length = out.commit_step.shape[1]
    padded = out.sequences[row, : out.sequences.shape[1] - length].tolist()
    prompt_ids = list(dropwhile(lambda token: token == config.padding_token_id, padded))
    text_of = cache(partial(_text_of, tokenizer))
    # When infilling, there is no token before the first.
    tokens = [None, *out.sequences[row].tolist()][-length - 1 :]
    return DecodeTrace(
        name=name,
        prompt=tokenizer.decode(prompt_ids),
        tokens=[text_of(token, before) for before, token in pairwise(tokens)],
        commit_step=out.commit_step[row].tolist(),
        block_length=config.block_length,
        first_block_length=_first_block_length(config, len(prompt_ids), length, attention),
        nfe=int(out.nfe[row]),
        tokens_per_forward=float(out.tokens_per_forward[row]),
        settings=config.non_defaults(),
        predictions=[_predictions(out, row, step, text_of) for step in range(int(out.nfe[row]))],
        revised=_revised(out, row, text_of) if out.num_revisions[row] else {},
    )


def required(out: DiffusionGenerationOutput, name: str) -> torch.Tensor:
    """Returns a field of an output that was decoded with `output_certainty=True`, or raises a `ValueError`."""
    values = getattr(out, name)
    if values is None:
        raise ValueError(
            f"`out` has no {name}. Decode with `output_certainty=True` and `return_dict_in_generate=True`."
        )
    return values


def _revised(out: DiffusionGenerationOutput, row: int, text_of: _TextOf) -> dict[int, list[tuple[int, str | None]]]:
    states = required(out, "standing")[row, : int(out.nfe[row])].tolist()
    # When infilling, there is no token before the first.
    first, *last = [None, *out.sequences[row].tolist()][-len(states[0]) - 1 :]
    states.append(last)
    events: dict[int, list[tuple[int, str | None]]] = {}
    for step, (before, after) in enumerate(pairwise(states)):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new and out.commit_step[row, position] >= 0:
                text = None if new < 0 else text_of(new, states[-1][position - 1] if position else first)
                events.setdefault(position, []).append((step, text))
    return {position: changes for position, changes in events.items() if len(changes) > 1}


def _first_block_length(config: DiffusionGenerationConfig, start: int, length: int, attention: str) -> int:
    if attention != "full" and config.block_origin != "answer":
        return config.block_length - start % config.block_length
    # When infilling, the first block is the shorter one.
    return length % config.block_length or config.block_length if config.is_infilling else config.block_length


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
