# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Loads datasets by name: from the Hub, a folder or a file."""

from pathlib import Path

import datasets

from .folder import MANIFEST_NAME, trajectory_files


_FORMATS = {"csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet", "arrow": "arrow"}
_FORMATS |= {"txt": "text"}
# What `Dataset.save_to_disk` writes beside the rows.
_SAVED_NAME = "state.json"


def has_one_split(name: str) -> bool:
    """Tells whether a dataset is in a file or a folder of trajectories, whose only split is `train`."""
    path = Path(name)
    return path.is_file() or bool(_format(path)) or any((path / x).is_file() for x in (MANIFEST_NAME, _SAVED_NAME))


def load_rows(name: str, config: str | None = None, split: str = "train") -> datasets.Dataset:
    """Returns a split of a dataset on the Hub, in a folder (of `save_to_disk`, too), or in a file.

    From a folder of `hf-dparallel trajectories`, returns the kept rows.
    """
    path = Path(name)
    if not has_one_split(name):
        # `load_dataset` needs a name, and a path such as "./" has none.
        return datasets.load_dataset(str(path.resolve()) if path.is_dir() else name, config, split=split)
    files = [path]
    if path.is_dir():
        files = trajectory_files(path) if (path / MANIFEST_NAME).is_file() else sorted(path.glob("*.arrow"))
    elif not path.is_file():
        raise FileNotFoundError(f"`dataset={name}` does not exist. Check the path.")
    file_format = _format(files[0])
    if file_format is None:
        raise ValueError(f"`dataset={name}` has an unsupported file type. Supported: .{', .'.join(_FORMATS)}, or .gz.")
    if split.partition("[")[0] not in ("train", "all"):
        raise ValueError(
            f"`{name}` has only the split 'train', got {split!r}. Leave the split out. To hold out a part during "
            'training, use --dataset_train_split "train[:90%]" --dataset_test_split "train[90%:]".'
        )
    options = {"sep": "\t"} if ".tsv" in files[0].suffixes else {}
    try:
        return datasets.load_dataset(file_format, data_files=list(map(str, files)), split=split, **options)
    # An empty file raises `StopIteration`.
    except (datasets.exceptions.DatasetGenerationError, ValueError, StopIteration) as error:
        raise ValueError(
            f"`{files[0]}` cannot be read as a {file_format} file ({error.__cause__ or error!r}). Check that it has "
            "rows, is not damaged, and that its format matches its name."
        ) from error


def _format(path: Path) -> str | None:
    return _FORMATS.get((path.with_suffix("") if path.suffix == ".gz" else path).suffix.lstrip("."))
