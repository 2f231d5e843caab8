# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The folder of trajectories. Only this module knows its files:

- `trajectories.json`: the run of the shards, that is, its model, generation settings, data and seed;
- `shard-00000-of-00012.parquet` and so on: the answers to 64 prompts each;
- `filtered.parquet`: the answers that the reward functions kept.
"""

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)

# The same for any number of processes, so that a restart with another number finds the same shards.
SHARD_SIZE = 64
MANIFEST_NAME = "trajectories.json"
FILTERED_NAME = "filtered.parquet"
_SHARD_PATTERN = "shard-*-of-*.parquet"


def trajectory_files(folder: Path) -> list[Path]:
    """Returns the parquet files with the rows of a folder: the filtered ones, or else all shards of a whole run."""
    if (folder / FILTERED_NAME).is_file():
        return [folder / FILTERED_NAME]
    shards = sorted(folder.glob(_SHARD_PATTERN))
    if not shards:
        raise FileNotFoundError(
            f"`{folder}` must be a folder with {FILTERED_NAME} or shards. Give the `output_dir` of "
            "`hf-dparallel trajectories`."
        )
    num_shards = int(shards[-1].stem.rpartition("-")[2])
    if len(shards) < num_shards:
        raise ValueError(
            f"`{folder}` has {len(shards)} of {num_shards} shards and no {FILTERED_NAME}, because its run is not "
            "finished. Start the run again with the same folder."
        )
    return shards


def write_rows(path: Path, rows: "Dataset") -> None:
    """Writes a parquet file whole or not at all, even if the process is killed or the disk is full."""
    from pyarrow.parquet import write_table

    # A random name: two runs, even on two machines, may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_table(rows.with_format("arrow")[:], temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class TrajectoryFolder:
    """The shards of a run.

    `run` describes the run, in values that JSON can write; `num_rows` is the number of its prompts. Raises a
    `ValueError` if the folder holds another run.
    """

    def __init__(self, path: Path, run: dict[str, Any], num_rows: int):
        self.path, self.num_rows = path, num_rows
        self.num_shards = -(-num_rows // SHARD_SIZE)
        # Through JSON, to compare it with what is read from the folder.
        self.run = json.loads(json.dumps({"shard_size": SHARD_SIZE, **run}))
        held = self._read_manifest()
        changed = [name for name in held | self.run if held.get(name) != self.run.get(name)]
        if changed:
            raise ValueError(
                f"`output_dir={str(path)!r}` holds trajectories of another run, which differs in "
                f"{', '.join(changed)}. Choose another folder, or delete this one."
            )

    def prepare(self) -> None:
        """Makes the folder, and writes the description of the run."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / MANIFEST_NAME).write_text(json.dumps(self.run, indent=2) + "\n", encoding="utf-8")

    def rows(self, shard: int) -> range:
        """Returns the numbers of the rows of a shard."""
        return range(shard * SHARD_SIZE, min((shard + 1) * SHARD_SIZE, self.num_rows))

    def shard(self, index: int) -> Path:
        """Returns the file of a shard."""
        return self.path / f"shard-{index:05d}-of-{self.num_shards:05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the numbers of the shards that are not written yet."""
        return [index for index in range(self.num_shards) if not self.shard(index).exists()]

    def read(self) -> "Dataset":
        """Returns the rows of all shards, and warns if there are fewer than prompts."""
        from datasets import Dataset, concatenate_datasets
        from pyarrow.parquet import read_table

        shards = []
        for path in map(self.shard, range(self.num_shards)):
            try:
                shards.append(Dataset(read_table(path)))
            except (OSError, ValueError) as error:  # pyarrow's own errors, too
                raise ValueError(f"`{path}` is damaged ({error}). Delete it and start the run again.") from error
        rows = concatenate_datasets(shards)
        if len(rows) < self.num_rows:
            logger.warning(f"{self.num_rows - len(rows)} of {self.num_rows} rows are left out: their logits were NaN.")
        return rows

    def _read_manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST_NAME
        if path.is_file():
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"`{path}` is damaged ({error}). Choose another `output_dir`.") from error
        if shards := sorted(self.path.glob(_SHARD_PATTERN)):
            raise ValueError(f"`{shards[0]}` is of an unknown run: there is no {MANIFEST_NAME} beside it. Delete it.")
        return self.run
