# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Loads datasets by name: from the Hub, a folder or a file."""

from pathlib import Path

import datasets

from .folder import MANIFEST_NAME, filtered_file


def has_one_split(name: str) -> bool:
    """Tells whether a dataset is in a file or a folder of trajectories, whose only split is `train`."""
    path = Path(name)
    return path.is_file() or (path / MANIFEST_NAME).is_file()


def load_rows(name: str, config: str | None = None, split: str = "train") -> datasets.Dataset:
    """Returns a split of a dataset on the Hub, in a folder, or in a file.

    From a folder of `hf-dparallel trajectories`, returns the kept rows.
    """
    path = Path(name)
    if not has_one_split(name):
        if path.is_dir():
            name = str(path.resolve())  # `load_dataset` needs a name, and a path such as "./" has none
        return datasets.load_dataset(name, config, split=split)

    file = path if path.is_file() else filtered_file(path)
    try:
        return datasets.load_dataset(str(file.resolve().parent), data_files=str(file.resolve()), split=split)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, StopIteration) as error:
        cause = error.__cause__ or error
        # After this, `datasets` lists hundreds of endings.
        problem = f"{type(cause).__name__}: {cause}".partition(" with any supported")[0]
        if isinstance(cause, StopIteration):
            problem = "it has no rows."
        raise ValueError(f"`{file}` cannot be read: {problem}") from error
