# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing trajectories as a data set with a card."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from huggingface_hub import CommitInfo, DatasetCardData
from huggingface_hub.utils import filter_repo_objects

from ..data.folder import check_rows, read_description, read_run, trajectory_files
from ..reports import markdown_table
from .card import TAGS, fill_card
from .files import CARD_NAME, Content, check_own_paths, hub_name
from .upload import check_name, full_name, upload_files


_SHARDS = ["data/train-*-of-*.parquet"]
_COLUMNS = {
    "prompt_ids": "token ids of the prompt",
    "completion_ids": "token ids of the answer, up to and including its end-of-sequence token",
    "commit_step": "the forward pass at which each token of the answer was decided",
    "nfe": "number of forward passes",
}


def push_trajectories_to_hub(
    path: str | os.PathLike,
    repo_id: str,
    *,
    teacher: str | None = None,
    license: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | None = None,
    commit_message: str | None = None,
) -> CommitInfo:
    r"""
    Publishes trajectories as a data set, with a data card; `datasets.load_dataset(repo_id)` reads them.

    They take the place of an earlier version (`data/train-*-of-*.parquet`), in one commit. A card that you have
    edited on the Hub is kept.

    Args:
        path (`str` or `os.PathLike`):
            A parquet file; or the `output_dir` of `hf-dparallel trajectories`, whose kept rows (filtered.parquet) are
            taken, or all shards of [`generate_trajectories`] if there is no such file.
        repo_id (`str`):
            Name of the repository, by default one of yours. It is created if there is none.
        teacher (`str`, *optional*):
            Name on the Hub of the model that gave the answers. By default what the folder says.
        license (`str`, *optional*):
            Identifier of the licence, for the card.
        private, revision, create_pr, token, commit_message:
            As in `create_repo` and [`~huggingface_hub.HfApi.create_commit`]. A branch is created if there is none.

    Returns:
        [`~huggingface_hub.CommitInfo`]

    Raises:
        ValueError: before anything is uploaded: if there are no rows, or they are no trajectories, the teacher is a
            local folder, or the repository holds something else.
        OSError: if there is no such file, or the Hub refuses.
    """
    repo_id = full_name(repo_id, token)
    return upload_files(
        data_to_push(path, repo_id, teacher, license),
        repo_id,
        repo_type="dataset",
        describe_other=_describe_other,
        replaces=_SHARDS,
        private=private,
        revision=revision,
        create_pr=create_pr,
        token=token,
        commit_message=commit_message or "Upload trajectories with hf-dparallel",
    )


def data_to_push(
    path: str | os.PathLike, repo_id: str, teacher: str | None = None, license: str | None = None
) -> dict[str, Content]:
    """Returns what [`push_trajectories_to_hub`] would upload, as [`files_to_push`] does for a model."""
    check_name(repo_id)
    path = Path(path)
    shards = [path] if path.is_file() and path.suffix == ".parquet" else trajectory_files(path)
    rows = _read_rows(shards)
    for shard in shards:
        check_rows(shard)
    run = read_run(shards[0].parent)
    teacher = teacher or run.get("model name")
    if teacher is not None and hub_name(teacher) is None:
        raise ValueError(
            f"The teacher is {teacher!r}, which is a folder of this machine or no name of a repository. Name it as it "
            "is called on the Hub: `teacher=` (`--base_model GSAI-ML/LLaDA-8B-Instruct`)."
        )
    columns = [(f"`{name}`", _COLUMNS.get(name, "from the data set of the prompts")) for name in rows.column_names]
    card = fill_card(
        "data_card.md",
        DatasetCardData(
            pretty_name=repo_id.split("/")[-1],
            tags=[*TAGS, "trajectories"],
            task_categories=["text-generation"],
            license=license,
        ),
        repo_id,
        num_rows=len(rows),
        columns=markdown_table(["Column", "Meaning"], columns, num_text_columns=2),
        mean_length=fmean(map(len, rows["completion_ids"])),
        mean_passes=fmean(rows["nfe"]) if "nfe" in rows.column_names else None,
        teacher=teacher,
        recipe=run.get("generation_config"),
        # How they were filtered, see `filter_trajectories`.
        description=read_description(shards[0].parent),
    )
    names = [f"data/train-{index:05d}-of-{len(shards):05d}.parquet" for index in range(len(shards))]
    files: dict[str, Content] = {**dict(zip(names, shards, strict=True)), CARD_NAME: f"{card}\n".encode()}
    check_own_paths(files, path.parent)
    return files


def _read_rows(shards: Sequence[Path]) -> Any:
    from datasets import Dataset
    from pyarrow.parquet import ParquetFile

    empty = next((path for path in shards if not path.stat().st_size or not ParquetFile(path).metadata.num_rows), None)
    if empty is not None:
        raise ValueError(f"`{empty}` has no rows. Has a filter left none, or was the run stopped? Make it anew.")
    rows = Dataset.from_parquet([str(shard) for shard in shards])
    missing = {"prompt_ids", "completion_ids"} - set(rows.column_names)
    if missing:
        raise ValueError(
            f"`{shards[0]}` has no column {sorted(missing)[0]!r}, so that these are no trajectories: it has "
            f"{rows.column_names}. Make them with `hf-dparallel trajectories`."
        )
    return rows


def _describe_other(existing: Sequence[str], read: Callable[[str], str]) -> str | None:
    data = [name for name in existing if name.endswith((".parquet", ".json", ".jsonl", ".csv"))]
    other = list(filter_repo_objects(data, ignore_patterns=_SHARDS))
    return f"other data ({other[0]}), which would be read together with these" if other else None
