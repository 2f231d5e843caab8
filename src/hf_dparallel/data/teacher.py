# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A teacher that answers prompts shard by shard: all that a process, or a worker of a cluster, does of a run."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.configuration import DiffusionGenerationConfig, resolve
from ..generation.decoder import DecodedRow
from ..generation.rows import check_batch_size, decode_rows
from ..generation.settings import SETTINGS
from ..hashes import dataset_hash, model_hash, stable_hash
from .prompts import check_new_columns, tokenize_prompts
from .trajectory_folder import ShardStore


if TYPE_CHECKING:
    from datasets import Dataset

_NEW_COLUMNS = ("prompt_ids", "completion_ids", "commit_step", "nfe")


@dataclass
class PromptShard:
    """The prompts of a shard.

    Args:
        number (`int`): number of the shard.
        rows (`range`): numbers of its rows in the dataset.
        full_size (`int`): rows of a shard that is not the last one.
        prompts (`datasets.Dataset`): these rows.
        prompt_ids (`list[list[int]]`): the prompt of each of them.
    """

    number: int
    rows: range
    full_size: int
    prompts: "Dataset"
    prompt_ids: list[list[int]]


@dataclass
class AnsweredShard:
    """The rows of a shard that were decoded.

    Args:
        number (`int`): number of the shard.
        rows (`datasets.Dataset`): the columns of the prompts, and those with the answers.
        failed (`dict[int, str]`): why the other rows failed, by their numbers in the dataset.
    """

    number: int
    rows: "Dataset"
    failed: dict[int, str]


class Prompts:
    """The prompts of a run. For arguments and errors see [`generate_trajectories`]."""

    def __init__(self, dataset: "Dataset", tokenizer: PreTrainedTokenizerBase, mask_token_id: int):
        check_new_columns(dataset, _NEW_COLUMNS)
        self.dataset = dataset
        self.prompt_ids = tokenize_prompts(dataset, tokenizer, mask_token_id)

    def of_shard(self, store: ShardStore, shard: int) -> PromptShard:
        """Returns the prompts of a shard."""
        rows = store.rows(shard)
        prompt_ids = self.prompt_ids[rows.start : rows.stop]
        return PromptShard(shard, rows, len(store.rows(0)), self.dataset.select(rows), prompt_ids)

    def describe(self) -> dict[str, Any]:
        """Describes what tells the prompts apart from those of other runs."""
        return {
            "num_rows": len(self.dataset),
            "columns": self.dataset.column_names,
            "rows": dataset_hash(self.dataset),
            "tokenized prompts": stable_hash(self.prompt_ids),
        }


class Teacher:
    """A model that answers prompts, with its settings. For arguments and errors see [`generate_trajectories`].

    Attributes:
        config ([`DiffusionGenerationConfig`]): every setting of the decoding.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        generation_config: DiffusionGenerationConfig | None,
        batch_size: int,
        seed: int,
        num_workers: int,
    ):
        check_batch_size(batch_size)
        self.model = model
        self.tokenizer = tokenizer
        self.config = resolve(model, generation_config, tokenizer)
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers

    def answer(self, shards: Iterable[PromptShard]) -> Iterator[tuple[PromptShard, int, DecodedRow]]:
        """Yields each answer when it is finished, with its shard and the number of its row.

        The model should be in evaluation mode. Shards are taken when there is room in the batch.
        """
        shard_of: dict[int, PromptShard] = {}

        def rows() -> Iterator[tuple[int, list[int]]]:
            for shard in shards:
                shard_of.update(dict.fromkeys(shard.rows, shard))
                # Prompts of similar length next to one another need little padding.
                yield from sorted(zip(shard.rows, shard.prompt_ids, strict=True), key=lambda row: len(row[1]))

        shares = [_Shared(rows())] * self.num_workers
        for row, answer in decode_rows(
            self.model, self.tokenizer, shares, self.config, self.batch_size, self.seed, raise_errors=False
        ):
            yield shard_of.pop(row), row, answer

    def describe(self) -> dict[str, Any]:
        """Describes what tells its answers apart from those of others, with names for people, hashes for certainty."""
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTunerLayer

        adapters = {
            name
            for module in self.model.modules()
            if isinstance(module, BaseTunerLayer) and not module.disable_adapters
            for name in module.active_adapters
        }
        base = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        settings = self.config.settings().items()
        return {
            "seed": self.seed,
            "model class": type(base).__name__,
            "model name": base.config._name_or_path,
            "dtype": str(self.model.dtype),
            "adapters": sorted(adapters),
            "weights": model_hash(self.model),
            "generation_config": {
                name: value for name, value in settings if SETTINGS[name].kind not in ("compile", "output")
            },
        }


def gather_shards(answers: Iterable[tuple[PromptShard, int, DecodedRow]]) -> Iterator[AnsweredShard]:
    """Yields shards when they are complete, with their rows in order.

    Raises:
        FloatingPointError: if not one row of a whole shard was decoded.
    """
    waiting: dict[int, dict[int, DecodedRow]] = {}
    for shard, row, answer in answers:
        of_shard = waiting.setdefault(shard.number, {})
        of_shard[row] = answer
        if len(of_shard) == len(shard.rows):
            yield _make_rows(shard, dict(sorted(waiting.pop(shard.number).items())))


class _Shared(Iterator):
    """An iterator from which several threads take."""

    def __init__(self, items: Iterable[Any]):
        self._items = iter(items)
        self._lock = threading.Lock()

    def __next__(self) -> Any:
        with self._lock:
            return next(self._items)


def _make_rows(shard: PromptShard, answers: dict[int, DecodedRow]) -> AnsweredShard:
    from datasets import Dataset, Features, List, Value, concatenate_datasets

    failed = {row: f"NaN at step {answer.nfe - 1}" for row, answer in answers.items() if answer.error is not None}
    if len(failed) == shard.full_size:
        raise FloatingPointError(
            f"The logits of the model are NaN in all rows from {min(failed)} to {max(failed)}. Check the weights and "
            "the dtype: float16 overflows in models trained in bfloat16."
        )
    done = {row - shard.rows.start: answer for row, answer in answers.items() if row not in failed}
    ids = List(Value("int64"))
    new = Dataset.from_dict(
        {
            "prompt_ids": [shard.prompt_ids[index] for index in done],
            # With `stop_at_eos=False` decoding goes on beyond the first end token.
            "completion_ids": [answer.tokens[: answer.num_tokens].tolist() for answer in done.values()],
            "commit_step": [answer.commit_step[: answer.num_tokens].tolist() for answer in done.values()],
            "nfe": [answer.nfe for answer in done.values()],
        },
        Features({"prompt_ids": ids, "completion_ids": ids, "commit_step": ids, "nfe": Value("int64")}),
    )
    rows = concatenate_datasets([shard.prompts.select(done), new], axis=1)
    return AnsweredShard(shard.number, rows, failed)
