# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""From a dataset of prompts to token ids, and to the answers of a model."""

import contextlib
import hashlib
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.configuration import DiffusionGenerationConfig


if TYPE_CHECKING:
    from datasets import Dataset


def tokenize_prompts(
    dataset: "Dataset", tokenizer: PreTrainedTokenizerBase, mask_token_id: int | None = None
) -> list[list[int]]:
    """Returns the token ids of the column `prompt` (texts, or lists of messages) or `messages` of a dataset.

    Texts are tokenized as they are. Messages go through the chat template, without a trailing answer. `mask_token_id`,
    by default that of the tokenizer, must not be among the ids.

    Raises:
        ValueError: if there are no rows or no such column, or for a prompt that is empty or has a mask token.
    """
    if len(dataset) == 0:
        raise ValueError("`dataset` has no rows, so there is nothing to answer. Check its split and its filters.")
    column = next((name for name in ("prompt", "messages") if name in dataset.column_names), None)
    if column is None:
        raise ValueError(
            f"`dataset` needs a column `prompt` (texts or lists of messages) or `messages`, it has "
            f"{dataset.column_names}. Rename one: `dataset.rename_column('question', 'prompt')`."
        )
    prompts = [prompt if isinstance(prompt, str) else _without_answer(prompt or []) for prompt in dataset[column][:]]
    _check_not_empty([[prompt] if isinstance(prompt, str) else prompt for prompt in prompts], column)
    if isinstance(prompts[0], str):
        prompt_ids = tokenizer(prompts)["input_ids"]
    else:
        prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    _check_not_empty(prompt_ids, column)
    _check_no_mask(prompt_ids, column, tokenizer.mask_token_id if mask_token_id is None else mask_token_id)
    return prompt_ids


def check_batch_size(batch_size: int) -> None:
    """Raises a `ValueError` for a batch without rows."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")


def check_new_columns(dataset: "Dataset", new: Sequence[str]) -> None:
    """Raises a `ValueError` if a dataset already has one of the columns that would be added to it."""
    taken = [name for name in new if name in dataset.column_names]
    if taken:
        raise ValueError(
            f"`dataset` already has the column(s) {taken}, which the answers of the model would overwrite. Remove "
            f"them: `dataset.remove_columns({taken})`."
        )


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


def decode_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: dict[int, list[int]],
    recipe: DiffusionGenerationConfig,
    batch_size: int,
    seed: int,
    num_workers: int = 1,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Decodes prompts, given by row, and yields the answers as they are finished.

    Each row has its own draws, from `seed` and its number, so that they do not depend on the batch. With several
    workers each is a thread that decodes its share of the prompts: on the cores of a CPU, small models are decoded
    faster side by side than with all cores on one operation.

    Yields:
        `tuple`: the row, and its `prompt_ids`, `completion_ids`, `commit_step` and `nfe` (see
        [`generate_trajectories`]).
    """

    def decode(rows: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        decoded = model.generate_many(
            [prompts[row] for row in rows],
            recipe,
            batch_size,
            tokenizer=tokenizer,
            generator_for=lambda index: row_generator(model.device, seed, rows[index]),
        )
        for answer in decoded.as_completed():
            row = rows[answer.index]
            # Beyond the first end token decoding goes on with `stop_at_eos=False`.
            completion = slice(answer.num_tokens)
            yield (
                row,
                {
                    "prompt_ids": prompts[row],
                    "completion_ids": answer.tokens[completion].tolist(),
                    "commit_step": answer.commit_step[completion].tolist(),
                    "nfe": answer.nfe,
                },
            )

    rows = list(prompts)
    if num_workers == 1:
        return decode(rows)
    return _in_threads(decode, [rows[worker::num_workers] for worker in range(num_workers)])


def _in_threads(work: Callable[[list[int]], Iterator[Any]], shares: list[list[int]]) -> Iterator[Any]:
    """Yields what `work` yields for each share, as it comes; the first error ends all."""
    results: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    threads_each = max(1, torch.get_num_threads() // len(shares))

    def run(share: list[int]) -> None:
        # Of this thread only.
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


def row_generator(device: torch.device, seed: int, row: int) -> torch.Generator:
    """The random state of a row's draws, whatever the batch."""
    return torch.Generator(device).manual_seed(stable_hash(seed, row))


def stable_hash(*parts: Any) -> int:
    """Hashes values that JSON can write, the same in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])


def _without_answer(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    return messages


def _check_not_empty(prompts: Sequence[Sequence[Any]], column: str) -> None:
    empty = [row for row, prompt in enumerate(prompts) if not prompt]
    if empty:
        raise ValueError(
            f"The column `{column}` has an empty prompt in row {empty[0]} ({len(empty)} of {len(prompts)} rows). Give "
            f"each at least one token, or leave such rows out with `dataset.filter`."
        )


def _check_no_mask(prompt_ids: list[list[int]], column: str, mask_token_id: int | None) -> None:
    row = next((row for row, ids in enumerate(prompt_ids) if mask_token_id in ids), None)
    if row is not None:
        raise ValueError(
            f"The column `{column}` contains the mask token ({mask_token_id}) in row {row}. Only what follows the "
            "prompt is decoded: remove the mask tokens from the prompts."
        )
