# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing trajectories, and reading them back as any data set."""

import re
import shutil

import pytest
from datasets import Dataset, load_dataset
from huggingface_hub import DatasetCard

from hf_dparallel import filter_trajectories, push_trajectories_to_hub
from hf_dparallel.data.folder import write_filtered

from ..helpers import make_tokenizer
from .helpers import COLUMNS


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    """What `hf-dparallel trajectories` writes."""
    folder = tmp_path / "trajectories"
    rows = Dataset.from_dict(COLUMNS)
    rows.to_parquet(folder / "shard-00000-of-00001.parquet")

    def is_short(completion_ids, **kwargs):
        return [float(len(ids) < 3) for ids in completion_ids]

    write_filtered(filter_trajectories(rows, make_tokenizer(), is_short), folder)
    (folder / "trajectories.json").write_text(
        '{"model name": "user/teacher", "generation_config": {"max_new_tokens": 8}, "seed": 0}'
    )
    return folder


def test_a_round_trip_gives_the_same_rows(hub, folder):
    push_trajectories_to_hub(folder, "user/data", license="mit")
    pulled = load_dataset("user/data", split="train")
    assert pulled.to_dict() == Dataset.from_parquet(str(folder / "filtered.parquet")).to_dict()
    assert set(hub.repository("user/data", "datasets").files()) == {"README.md", "data/train-00000-of-00001.parquet"}


def test_the_card_says_where_the_rows_are_from(hub, folder):
    push_trajectories_to_hub(folder, "user/data", license="mit")
    card = DatasetCard(hub.repository("user/data", "datasets").files()["README.md"].decode())
    assert card.data.license == "mit"
    assert {"dparallel", "diffusion-lm", "masked-diffusion"} <= set(card.data.tags)
    for text in (
        "trajectories of user/teacher",
        "2 rows. 2 of 3 trajectories were kept: those with a reward of at least 1 from is_short.",
        "2.0 tokens on average, and took 2.0 forward passes",
        '"max_new_tokens": 8',
        "| `commit_step` | the forward pass",
        "| `prompt` | from the data set of the prompts |",
        'load_dataset("user/data", split="train")',
    ):
        assert text in re.sub(" +", " ", card.text)


def test_shards_and_single_files_are_data_sets_too(hub, folder):
    (folder / "filtered.parquet").rename(folder.parent / "kept.parquet")
    push_trajectories_to_hub(folder, "user/all", private=True, revision="v1")
    assert load_dataset("user/all", split="train", revision="v1").to_dict() == COLUMNS
    assert hub.repository("user/all", "datasets").private
    push_trajectories_to_hub(folder.parent / "kept.parquet", "user/kept", teacher="user/teacher")
    assert load_dataset("user/kept", split="train")["nfe"][:] == [1, 3]


def test_what_is_no_data_or_of_a_local_teacher_is_refused(hub, folder, tmp_path):
    with pytest.raises(OSError, match="must be a folder with filtered.parquet or shards"):
        push_trajectories_to_hub(tmp_path / "missing", "user/data")
    Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match="has no column 'completion_ids'"):
        push_trajectories_to_hub(tmp_path / "other.parquet", "user/data")
    with pytest.raises(ValueError, match="a folder of this machine"):
        push_trajectories_to_hub(folder, "user/data", teacher=str(tmp_path))
    assert "datasets/user/data" not in hub.repositories


def test_other_data_of_that_name_are_left_alone(hub, folder):
    push_trajectories_to_hub(folder, "user/data")
    push_trajectories_to_hub(folder, "user/data")
    repository = hub.repository("user/data", "datasets")
    repository.files()["train.csv"] = b"a,b\n"
    with pytest.raises(ValueError, match=r"holds other data \(train\.csv\)"):
        push_trajectories_to_hub(folder, "user/data")


def test_data_that_have_grown_replace_the_earlier_shards(hub, folder):
    (folder / "filtered.parquet").unlink()
    push_trajectories_to_hub(folder, "user/data")
    shard = folder / "shard-00000-of-00001.parquet"
    for index in range(2):
        shutil.copy(shard, folder / f"shard-{index:05d}-of-00002.parquet")
    shard.unlink()
    push_trajectories_to_hub(folder, "user/data")
    names = [f"data/train-{index:05d}-of-00002.parquet" for index in range(2)]
    assert set(hub.repository("user/data", "datasets").files()) == {"README.md", *names}
    assert load_dataset("user/data", split="train")["nfe"][:] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("rows", [{name: [] for name in COLUMNS}, None])
def test_a_file_without_rows_is_named(hub, tmp_path, rows):
    if rows is None:
        (tmp_path / "empty.parquet").touch()
    else:
        Dataset.from_dict(rows).to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"`.*empty\.parquet` has no rows"):
        push_trajectories_to_hub(tmp_path / "empty.parquet", "user/data")
    assert "datasets/user/data" not in hub.repositories


def test_names_of_columns_are_texts(hub, tmp_path):
    rows = {"prompt_ids": [[1]], "completion_ids": [[2]], "x |\n\n# Owned <script>": [1]}
    Dataset.from_dict(rows).to_parquet(tmp_path / "rows.parquet")
    push_trajectories_to_hub(tmp_path / "rows.parquet", "user/data")
    card = hub.repository("user/data", "datasets").files()["README.md"].decode()
    assert "Owned" in card and "\n# Owned" not in card and "<script" not in card
