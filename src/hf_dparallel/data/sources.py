# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Loads datasets by name: from the Hub, a folder or a file."""

from pathlib import Path
from typing import Any

import datasets

from .folder import MANIFEST_NAME, check_rows, read_description, trajectory_files


_FILE_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".txt": "text",
}
# The roles in ShareGPT's format.
_ROLES = {"human": "user", "gpt": "assistant"}


def has_one_split(name: str) -> bool:
    """Tells whether a dataset is in a file or a folder of trajectories, whose only split is `train`."""
    path = Path(name)
    return path.is_file() or path.suffix in _FILE_FORMATS or (path / MANIFEST_NAME).is_file()


def load_rows(name: str, config: str | None = None, split: str = "train") -> datasets.Dataset:
    """Returns a split of a dataset on the Hub, in a folder, or in a file.

    From a folder of `hf-dparallel trajectories`, returns the kept rows.
    """
    path, file_format = Path(name), _FILE_FORMATS.get(Path(name).suffix)
    if (path / MANIFEST_NAME).is_file():
        return _read_files(trajectory_files(path), "parquet", split)
    if file_format is None and path.is_file():
        raise ValueError(f"`dataset={name}` has an unsupported file type. Supported: {', '.join(_FILE_FORMATS)}.")
    if file_format is None:
        # `load_dataset` needs a name, and a path such as "./" has none.
        name = str(path.resolve()) if path.is_dir() else name
        return _with_messages(datasets.load_dataset(name, config, split=split))
    if not path.is_file():
        raise FileNotFoundError(f"`dataset={name}` does not exist. Check the path.")
    return _read_files([path], file_format, split)


def _read_files(files: list[Path], file_format: str, split: str) -> datasets.Dataset:
    if split.partition("[")[0] not in ("train", "all"):
        raise ValueError(
            f"`{files[0]}` has only the split 'train', got {split!r}. Leave the split out. To hold out a part during "
            'training, use --dataset_train_split "train[:90%]" --dataset_test_split "train[90%:]".'
        )
    try:
        options = {"sep": "\t"} if files[0].suffix == ".tsv" else {}
        dataset = datasets.load_dataset(file_format, data_files=list(map(str, files)), split=split, **options)
    # An empty file raises `StopIteration`.
    except (datasets.exceptions.DatasetGenerationError, ValueError, StopIteration) as error:
        # The first line of a .csv has the names of the columns.
        if file_format != "parquet" and len(files[0].read_bytes().splitlines()) <= (file_format == "csv"):
            raise ValueError(f"`{files[0]}` has no rows.") from error
        raise ValueError(
            f"`{files[0]}` cannot be read as a {file_format} file ({error.__cause__ or error!r}). Check that it is "
            "not damaged, and that its format matches its name."
        ) from error
    if file_format == "parquet":
        for file in files:
            check_rows(file)
    dataset.info.description = read_description(files[0].parent)
    return _with_messages(dataset)


def _with_messages(dataset: datasets.Dataset) -> datasets.Dataset:
    """Returns the dataset with chats in ShareGPT's format (`conversations` of `from` and `value`) as `messages`."""

    def read(chat: list[dict[str, str]]) -> dict[str, Any]:
        turns = [(turn["from"], turn["value"]) for turn in chat]
        return {"messages": [{"role": _ROLES.get(who, who), "content": text} for who, text in turns]}

    if "from" not in str(dataset.features.get("conversations")):
        return dataset
    return dataset.map(read, input_columns="conversations", remove_columns="conversations")
