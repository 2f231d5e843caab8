# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The folder of trajectories. Only this module knows its files:

- `trajectories.json`: the run of the shards, that is, its model, generation settings, data and seed;
- `shard-00000-of-00012.parquet` and so on: the answers to 64 prompts each;
- `filtered.parquet`: the answers that the reward functions kept;
- `dataset_info.json`: how the answers were filtered.
"""

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils import logging

from ..hashes import dataset_hash, stable_hash


if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

logger = logging.get_logger(__name__)

# The same for any number of processes, so that a restart with another number finds the same shards.
SHARD_SIZE = 64
MANIFEST_NAME = "trajectories.json"
FILTERED_NAME = "filtered.parquet"
_SHARD_PATTERN = "shard-*-of-*.parquet"
# The key of our metadata in a parquet file, which has a hash of the rows.
_LABEL = b"hf_dparallel"


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


def write_filtered(rows: "Dataset", folder: Path) -> Path:
    """Writes the kept rows and the description of the filter. Returns the path of the rows."""
    _write_rows(folder / FILTERED_NAME, rows, {})
    # A parquet file cannot hold the description.
    rows.info.write_to_directory(str(folder))
    return folder / FILTERED_NAME


def check_rows(path: Path) -> None:
    """Raises a `ValueError` if a file that this module wrote was altered. Other files are not checked."""
    from pyarrow.parquet import read_schema

    if _LABEL in (read_schema(path).metadata or {}):
        _read_rows(path)


def read_description(folder: Path) -> str:
    """Returns the description of how the rows of a folder were filtered, or an empty text."""
    from datasets import DatasetInfo
    from datasets.config import DATASET_INFO_FILENAME

    return DatasetInfo.from_directory(str(folder)).description if (folder / DATASET_INFO_FILENAME).is_file() else ""


def read_run(folder: Path) -> dict[str, Any]:
    """Returns the description of the run that wrote a folder, or an empty `dict`."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"`{path}` is damaged ({error}). Delete it and start the run again with the same folder: this rewrites "
            "the file and keeps intact shards."
        ) from error


class ShardStore:
    """The shards of a run. Each is written whole or not at all, and checked for changes when it is read.

    `run` describes the run, to tell it from others; `num_rows` is the number of its prompts.
    """

    def __init__(self, folder: Path, run: dict[str, Any], num_rows: int):
        self.folder = folder
        # Through JSON, to compare it with what is read from the folder.
        self.run = json.loads(json.dumps({"shard_size": SHARD_SIZE, **run}))
        self.num_rows = num_rows
        # The last shard may have fewer rows.
        self.rows_per_shard = min(SHARD_SIZE, num_rows)
        self.num_shards = -(-num_rows // SHARD_SIZE)

    def check_run(self) -> None:
        """Raises a `ValueError` if the folder belongs to another run."""
        if changed := self._changed():
            raise ValueError(
                f"`output_dir={str(self.folder)!r}` holds trajectories of another run, which differs in "
                f"{', '.join(changed)}. Choose another folder, or add `overwrite=True` (--overwrite) to delete them."
            )

    def prepare(self) -> None:
        """Writes the description of the run into the folder.

        Deletes the files of another run, and damaged shards, which are then decoded again.
        """
        from datasets.config import DATASET_INFO_FILENAME

        if self._changed():
            for pattern in (MANIFEST_NAME, FILTERED_NAME, DATASET_INFO_FILENAME, _SHARD_PATTERN):
                for path in self.folder.glob(pattern):
                    path.unlink()
        is_known = bool(read_run(self.folder))
        self.folder.mkdir(parents=True, exist_ok=True)
        for shard in set(range(self.num_shards)) - set(self.missing()):
            try:
                self._read(shard)
            except ValueError as error:
                if not is_known:
                    raise ValueError(f"{error} Choose another `output_dir`, or delete that file.") from error
                logger.warning(f"{error} Its rows are decoded again.")
                self.path(shard).unlink()
        _write_atomically(self.folder / MANIFEST_NAME, json.dumps(self.run).encode())

    def rows(self, shard: int) -> range:
        """Returns the rows of a shard."""
        return range(shard * SHARD_SIZE, min((shard + 1) * SHARD_SIZE, self.num_rows))

    def shard(self, row: int) -> int:
        """Returns the number of the shard that a row belongs to."""
        return row // SHARD_SIZE

    def path(self, shard: int) -> Path:
        """Returns the file of a shard."""
        return self.folder / f"shard-{shard:05d}-of-{self.num_shards:05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the numbers of the shards that are not written yet."""
        return [shard for shard in range(self.num_shards) if not self.path(shard).exists()]

    def write(self, shard: int, rows: "Dataset", failed: dict[int, str]) -> None:
        """Writes the decoded rows of a shard, and the errors of the `failed` rows."""
        _write_rows(self.path(shard), rows, self._label(shard) | {"failed": failed})

    def read(self) -> "Dataset":
        """Returns the rows of all shards, and warns of rows that are missing because decoding failed."""
        from datasets import Dataset, concatenate_datasets

        tables = [self._read(shard) for shard in range(self.num_shards)]
        failed = {row: error for table in tables for row, error in _read_label(table)["failed"].items()}
        if failed:
            reasons = ", ".join(f"row {row} ({error})" for row, error in failed.items())
            logger.warning(f"{len(failed)} of {self.num_rows} rows could not be decoded and are left out: {reasons}.")
        return concatenate_datasets([Dataset(table) for table in tables])

    def _changed(self) -> list[str]:
        """Returns the names of the facts in which the run in the folder differs from this one."""
        run, previous = _flat(self.run), _flat(read_run(self.folder) or self.run)
        return [name for name in previous | run if previous.get(name) != run.get(name)]

    def _read(self, shard: int) -> "pyarrow.Table":
        table = _read_rows(self.path(shard))
        label = _read_label(table)
        if any(label.get(name) != value for name, value in self._label(shard).items()):
            raise ValueError(f"`{self.path(shard)}` was written by another run.")
        return table

    def _label(self, shard: int) -> dict[str, Any]:
        return {"run": stable_hash(sorted(_flat(self.run).items())), "shard": shard}


def _flat(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of a run with each generation setting as an entry of its own."""
    settings = {f"generation_config.{name}": value for name, value in run.get("generation_config", {}).items()}
    return {name: value for name, value in run.items() if name != "generation_config"} | settings


def _write_rows(path: Path, rows: "Dataset", label: dict[str, Any]) -> None:
    """Writes rows with a label, to which it adds a hash of the rows."""
    import pyarrow
    import pyarrow.parquet

    table = rows.with_format("arrow")[:]
    label = label | {"content": dataset_hash(rows)}
    metadata = (table.schema.metadata or {}) | {_LABEL: json.dumps(label).encode()}
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), buffer)
    _write_atomically(path, buffer.getvalue())


def _read_rows(path: Path) -> "pyarrow.Table":
    """Returns the rows of a file of [`_write_rows`], or raises a `ValueError` if it is damaged or altered."""
    from datasets import Dataset
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        table = read_table(path)
        is_whole = _read_label(table).get("content") == dataset_hash(Dataset(table))
    except (OSError, ValueError, ArrowException) as error:
        raise ValueError(f"`{path}` cannot be read ({error}).") from error
    if not is_whole:
        raise ValueError(f"`{path}` was altered: its rows do not match its hash.")
    return table


def _read_label(table: "pyarrow.Table") -> dict[str, Any]:
    return json.loads((table.schema.metadata or {}).get(_LABEL, b"{}"))


def _write_atomically(path: Path, content: Any) -> None:
    """Writes a file whole or not at all, even if the process is killed or the power fails."""
    # A random name: two runs, even on two machines, may write the same file at the same time.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        remedy = "The shards before it are intact: free some space, and start the run again with the same folder"
        raise OSError(error.errno, f"{error.strerror}. {remedy}", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
