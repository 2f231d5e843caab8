# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The folder of trajectories: damage, unfinished runs, and runs that share it."""

import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from datasets import Dataset

from hf_dparallel import generate_trajectories
from hf_dparallel.data import folder
from hf_dparallel.data.folder import FILTERED_NAME, filtered_file, write_rows

from ..helpers import make_llada, make_prompts, make_tokenizer
from ..recipes import RECIPE


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(folder, "SHARD_SIZE", 4)


def run(folder, model=None, **kwargs):
    model = model or make_llada()
    return generate_trajectories(model, make_tokenizer(), make_prompts(10), RECIPE, output_dir=folder, **kwargs)


def test_damaged_files_are_named(tmp_path):
    rows = run(tmp_path)
    shard = sorted(tmp_path.glob("shard-*"))[1]
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{shard.name}'.* Parquet"):
        run(tmp_path)
    shard.unlink()
    assert run(tmp_path)[:] == rows[:]
    for text, problem in (('{"shard', "is not JSON"), ("[]", "must hold a JSON object")):
        (tmp_path / "trajectories.json").write_text(text)
        with pytest.raises(ValueError, match=rf"trajectories.json` {problem}"):
            run(tmp_path)


def test_only_filtered_rows_are_read(tmp_path):
    rows = run(tmp_path)
    with pytest.raises(ValueError, match="has no filtered.parquet: its run is not finished, or nobody has filtered"):
        filtered_file(tmp_path)
    write_rows(tmp_path / FILTERED_NAME, rows)
    assert Dataset.from_parquet(str(filtered_file(tmp_path)))[:] == rows[:]


@contextmanager
def limited_files(size):
    """No file grows beyond a size: writing fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_run_which_is_continued_when_there_is_room(tmp_path):
    rows, shards = run(tmp_path / "whole"), tmp_path / "shards"
    with limited_files(1000), pytest.raises(OSError, match="File too large"):
        run(shards)
    # Nothing is half written, so that the next start finds no damage.
    assert not list(shards.iterdir())
    assert run(shards)[:] == rows[:]
    (shards / "shard-00001-of-00003.parquet").unlink()
    # More than the description of the run and what it says on stderr, but not a shard.
    with limited_files(1800), pytest.raises(OSError, match="File too large"):
        run(shards)
    assert len(list(shards.iterdir())) == 3
    assert run(shards)[:] == rows[:]


def test_two_runs_in_one_folder_at_the_same_time(tmp_path):
    models = [make_llada(), make_llada()]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda model: run(tmp_path, model), models)
    assert first[:] == second[:] == run(tmp_path)[:]
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"shard", "trajectories.json"}
