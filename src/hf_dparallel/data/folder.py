# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The folder of trajectories. Only this module knows its files:

- `trajectories.json`: the run of the shards, that is, its model, generation settings, prompts and seed;
- `shard-00000-of-00012.parquet` and so on: the answers to 64 prompts each, with the number of each row;
- `filtered.parquet`: the rows that the reward functions kept, with all columns.
"""

import json
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..hashes import stable_hash
from ..reports import read_json
from .prompts import check_new_columns, has_texts, tokenize_prompts


if TYPE_CHECKING:
    from datasets import Dataset

    from ..generation.configuration import DiffusionGenerationConfig

logger = logging.get_logger(__name__)

# The same for any number of processes, so that a restart with another number finds the same shards.
SHARD_SIZE = 64
MANIFEST_NAME = "trajectories.json"
FILTERED_NAME = "filtered.parquet"
_CHAT_COLUMN = "chat_template_kwargs"
_NEW_COLUMNS = ("prompt_ids", "completion_ids", "commit_step", "nfe")


def filtered_file(folder: Path) -> Path:
    """Returns the file with the kept rows of a folder."""
    path = folder / FILTERED_NAME
    if not path.is_file():
        raise ValueError(
            f"`{folder}` has no {FILTERED_NAME}: its run is not finished, or nobody has filtered its answers. Start "
            "`hf-dparallel trajectories` again with the same folder, or save there what `filter_trajectories` returns."
        )
    return path


def common_chat_template_kwargs(dataset: Any) -> dict[str, Any] | None:
    """Returns what the chat template got for all rows of trajectories, `None` if they do not say or differ."""
    columns = getattr(dataset, "features", None) or {}
    if "prompt_ids" not in columns or getattr(columns.get(_CHAT_COLUMN), "dtype", None) != "string":
        return None

    values = dataset.unique(_CHAT_COLUMN)
    if len(values) != 1 or not values[0]:
        return None
    return json.loads(values[0])


def write_rows(path: Path, rows: "Dataset") -> None:
    """Writes a parquet file whole or not at all, even if the process is killed or the disk is full."""
    from pyarrow.parquet import write_table

    with _replacing(path) as temporary:
        write_table(rows.with_format("arrow")[:], temporary)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields the file to write, which takes the place of `path` once it is whole."""
    # A random name: two runs, even on two machines, may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class TrajectoryFolder:
    """The prompts of a run, and the folder to which their answers are written, shard by shard.

    `config` is how it decodes, and `teacher` describes the model that answers, in values that JSON can write. Raises a
    `ValueError` if a prompt cannot be decoded, or the folder holds another run.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        dataset: "Dataset",
        tokenizer: PreTrainedTokenizerBase,
        config: "DiffusionGenerationConfig",
        teacher: dict[str, Any],
    ):
        check_new_columns(dataset, _NEW_COLUMNS)
        self.path = Path(path)
        self.dataset = dataset
        arguments = config.chat_template_kwargs
        self.prompt_ids = tokenize_prompts(dataset, tokenizer, config.mask_token_id, arguments)

        # What the chat template gets, where no column says it.
        self._arguments = json.dumps(arguments)
        self._tells_arguments = bool(arguments) and _CHAT_COLUMN not in dataset.column_names and not has_texts(dataset)

        count = math.ceil(len(dataset) / SHARD_SIZE)
        self.shards = [self.path / f"shard-{index:05d}-of-{count:05d}.parquet" for index in range(count)]
        # By shard and row, until their shard is complete.
        self._answers: dict[int, dict[int, dict[str, Any] | None]] = {}

        run = {"shard_size": SHARD_SIZE, **teacher, "prompts": stable_hash(self.prompt_ids)}
        # Through JSON, to compare it with what is read from the folder.
        self._run = json.loads(json.dumps(run))
        self._check_run()

    def _check_run(self) -> None:
        """Raises a `ValueError` if the folder holds another run."""
        manifest = self.path / MANIFEST_NAME
        if not manifest.is_file():
            return

        held = read_json(manifest)
        changed = [name for name in held | self._run if held.get(name) != self._run.get(name)]
        if changed:
            raise ValueError(
                f"`output_dir={str(self.path)!r}` holds trajectories of another run, which differs in "
                f"{', '.join(changed)}. Choose another folder, or delete this one."
            )

    def prepare(self) -> None:
        """Makes the folder, and writes the description of the run."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / MANIFEST_NAME).exists():
            with _replacing(self.path / MANIFEST_NAME) as temporary:
                temporary.write_text(json.dumps(self._run, indent=2) + "\n", encoding="utf-8")

    def missing(self) -> list[int]:
        """Returns the numbers of the shards that are not written yet."""
        return [index for index, shard in enumerate(self.shards) if not shard.exists()]

    def prompts(self, process: int = 0, num_processes: int = 1) -> Iterator[tuple[int, list[int]]]:
        """Yields the number and the prompt of each row in the missing shards of a process."""
        for shard in self.missing():
            if shard % num_processes != process:
                continue
            # Batches of prompts with similar lengths need little padding.
            for row in sorted(self._rows(shard), key=lambda row: len(self.prompt_ids[row])):
                yield row, self.prompt_ids[row]

    def add(self, row: int, answer: dict[str, Any] | None) -> None:
        """Adds the columns of an answer, `None` if it failed, and writes the shard of the row once it is complete."""
        shard = row // SHARD_SIZE
        answers = self._answers.setdefault(shard, {})
        answers[row] = answer
        if len(answers) == len(self._rows(shard)):
            self._write(self.shards[shard], dict(sorted(answers.items())))
            del self._answers[shard]

    def read(self) -> "Dataset":
        """Returns the rows with the answers of all shards, and warns if there are fewer than prompts."""
        from datasets import Dataset, concatenate_datasets
        from pyarrow.parquet import read_table

        answers = Dataset(read_table(list(map(str, self.shards))))
        failed = len(self.dataset) - len(answers)
        if failed:
            logger.warning(f"{failed} of {len(self.dataset)} rows are left out: their logits were NaN.")

        if self._tells_arguments:
            answers = answers.add_column(_CHAT_COLUMN, [self._arguments] * len(answers))
        asked = self.dataset.select(answers["row"])
        return concatenate_datasets([asked, answers.remove_columns("row")], axis=1)

    def _rows(self, shard: int) -> range:
        return range(shard * SHARD_SIZE, min((shard + 1) * SHARD_SIZE, len(self.dataset)))

    def _write(self, path: Path, answers: dict[int, dict[str, Any] | None]) -> None:
        import pyarrow
        from pyarrow.parquet import write_table

        done = {row: answer for row, answer in answers.items() if answer}
        # A small last shard may fail because of its prompts, a whole one only because of the model.
        if not done and len(answers) == min(SHARD_SIZE, len(self.dataset)):
            raise FloatingPointError(
                f"The logits of the model are NaN in all rows from {min(answers)} to {max(answers)}. Check the "
                "weights and the dtype: float16 overflows in models that were trained in bfloat16."
            )

        rows = [{"row": row, "prompt_ids": self.prompt_ids[row], **answer} for row, answer in done.items()]
        number = pyarrow.int64()
        ids = pyarrow.list_(number)
        columns = {"row": number, "prompt_ids": ids, "completion_ids": ids, "commit_step": ids, "nfe": number}
        table = pyarrow.Table.from_pylist(rows, pyarrow.schema(columns))
        with _replacing(path) as temporary:
            write_table(table, temporary)
