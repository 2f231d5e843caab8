# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decoding of the rows of a dataset: each with random numbers of its own, on one thread or several."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..hashes import stable_hash
from .configuration import DiffusionGenerationConfig
from .decoder import DecodedRow


def check_batch_size(batch_size: int) -> None:
    """Raises a `ValueError` for a batch without rows."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, and every module back in its own mode, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def row_generator(device: torch.device, seed: int, row: int) -> torch.Generator:
    """The random state of a row, which does not depend on the batch that the row is decoded in."""
    return torch.Generator(device).manual_seed(stable_hash(seed, row))


def decode_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    shares: Sequence[Iterable[tuple[int, list[int]]]],
    generation_config: DiffusionGenerationConfig,
    batch_size: int,
    seed: int,
    raise_errors: bool = True,
) -> Iterator[tuple[int, DecodedRow]]:
    """Decodes the prompts of one or more shares, and yields the answers as they are finished.

    Several shares are decoded side by side, by a thread each. Small models are decoded faster so on a CPU than with
    all cores on one operation: docs/results.md, "Time of an evaluation", relies on it. (Processes, as `torchrun`
    starts them, are for several GPUs.)

    Args:
        model, tokenizer: as for [`~DiffusionGenerationMixin.generate_many`].
        shares (`Sequence[Iterable]`): pairs of the number of a row and the token ids of its prompt. They are read when
            there is room in the batch.
        generation_config ([`DiffusionGenerationConfig`]): the settings.
        batch_size (`int`): prompts decoded together, for each share.
        seed (`int`): each row draws from this seed and its number, so that it does not depend on the batch.
        raise_errors (`bool`, *optional*, defaults to `True`): whether a row that fails, because its logits are NaN,
            ends the decoding. Otherwise its answer says so in `error`.

    Yields:
        `tuple[int, DecodedRow]`: the number of a row, and its answer.
    """

    def decode(share: Iterable[tuple[int, list[int]]]) -> Iterator[tuple[int, DecodedRow]]:
        # The number of each prompt that was read.
        numbers: list[int] = []

        def prompts() -> Iterator[list[int]]:
            for number, prompt in share:
                numbers.append(number)
                yield prompt

        answers = model.generate_many(
            prompts(),
            generation_config,
            batch_size,
            tokenizer=tokenizer,
            generator_for=lambda index: row_generator(model.device, seed, numbers[index]),
        )
        for answer in answers.as_completed(raise_errors):
            yield numbers[answer.index], answer

    return decode(shares[0]) if len(shares) == 1 else _in_threads(decode, shares)


def _in_threads(work: Callable[[Any], Iterator[Any]], shares: Sequence[Any]) -> Iterator[Any]:
    """Yields the results of `work` for each share as they come; the first error ends all threads."""
    results: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    threads_each = max(1, torch.get_num_threads() // len(shares))

    def run(share: Any) -> None:
        # Holds for the operations of this thread only.
        torch.set_num_threads(threads_each)
        try:
            for result in work(share):
                if stop.is_set():
                    return
                results.put(result)
            results.put(None)
        except Exception as error:  # noqa: BLE001
            results.put(error)

    threads = [threading.Thread(target=run, args=[share], daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            result = results.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                running -= 1
            else:
                yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join()
