# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The folder of trajectories: damage, unfinished runs, and processes that share it."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow.parquet
import pytest
from datasets import Dataset
from transformers.utils import logging

from hf_dparallel import generate_trajectories
from hf_dparallel.data import folder, trajectories
from hf_dparallel.data.folder import (
    FILTERED_NAME,
    ShardStore,
    check_rows,
    read_description,
    read_run,
    trajectory_files,
    write_filtered,
)

from ..helpers import make_llada, make_prompts, make_tokenizer
from ..recipes import RECIPE


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(folder, "SHARD_SIZE", 4)
    monkeypatch.setattr(logging.get_logger("hf_dparallel"), "propagate", True)


def run(folder, model=None, **kwargs):
    model = model or make_llada()
    return generate_trajectories(model, make_tokenizer(), make_prompts(10), RECIPE, output_dir=folder, **kwargs)


@pytest.mark.parametrize(
    "damage",
    [
        lambda shard, other: shard[: len(shard) // 2],
        lambda shard, other: b"",
        lambda shard, other: b"x" * 100,
        lambda shard, other: other,
    ],
    ids=["cut", "empty", "garbage", "another"],
)
def test_damaged_shards_are_made_anew(tmp_path, caplog, damage):
    expected = run(tmp_path)
    first, second, _ = sorted(tmp_path.glob("shard-*"))
    second.write_bytes(damage(second.read_bytes(), first.read_bytes()))
    assert run(tmp_path)[:] == expected[:]
    assert f"`{second}` " in caplog.text and "Its rows are decoded again." in caplog.text
    caplog.clear()
    assert run(tmp_path)[:] == expected[:] and not caplog.text


def test_no_flipped_byte_changes_a_row(tmp_path):
    store, rows = ShardStore(tmp_path, {}, 4), make_prompts(4)
    store.prepare()
    store.write(0, rows, {})
    content = store.path(0).read_bytes()
    num_found = 0
    for position in range(0, len(content), 9):
        store.path(0).write_bytes(content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :])
        store.prepare()
        num_found += bool(store.missing())
        assert store.missing() or store.read()[:] == rows[:]
    assert num_found > 0.5 * len(content) / 9


def test_shards_of_an_unknown_run_are_left_alone(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", seed=1)
    name = "shard-00001-of-00003.parquet"
    shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    (tmp_path / "b" / "trajectories.json").unlink()
    with pytest.raises(ValueError, match=f"{name}` was written by another run"):
        run(tmp_path / "b", seed=1)
    (tmp_path / "b" / name).unlink()
    run(tmp_path / "b", seed=1)


def test_a_damaged_description_is_named(tmp_path):
    rows = run(tmp_path)
    (tmp_path / "trajectories.json").write_text('{"shard')
    with pytest.raises(ValueError, match=r"trajectories.json` is damaged \(.*\). Delete it and start the run again"):
        run(tmp_path)
    (tmp_path / "trajectories.json").unlink()
    assert run(tmp_path)[:] == rows[:]
    assert read_run(tmp_path)["generation_config"]["entropy_threshold"] == 1.0


def test_files_of_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder with filtered.parquet or shards"):
        trajectory_files(tmp_path)
    rows = run(tmp_path)
    shards = sorted(tmp_path.glob("shard-*"))
    assert trajectory_files(tmp_path) == shards and len(shards) == 3
    shards[1].unlink()
    with pytest.raises(ValueError, match="has 2 of 3 shards"):
        trajectory_files(tmp_path)
    assert read_description(tmp_path) == ""
    rows.info.description = "All were kept."
    assert write_filtered(rows, tmp_path) == tmp_path / FILTERED_NAME
    assert trajectory_files(tmp_path) == [tmp_path / FILTERED_NAME]
    assert read_description(tmp_path) == "All were kept."
    assert Dataset.from_parquet(str(tmp_path / FILTERED_NAME))[:] == rows[:]


def test_rows_that_were_altered_are_noticed(tmp_path):
    write_filtered(make_prompts(4), tmp_path)
    check_rows(tmp_path / FILTERED_NAME)
    table = pyarrow.parquet.read_table(tmp_path / FILTERED_NAME)
    altered = table.set_column(1, "answer", [["9"] * 4])
    pyarrow.parquet.write_table(altered.replace_schema_metadata(table.schema.metadata), tmp_path / FILTERED_NAME)
    with pytest.raises(ValueError, match=r"filtered.parquet` was altered"):
        check_rows(tmp_path / FILTERED_NAME)
    # What somebody has made of them is theirs.
    Dataset.from_list([{"prompt": "2", "answer": "4"}]).to_parquet(tmp_path / FILTERED_NAME)
    check_rows(tmp_path / FILTERED_NAME)


def test_two_runs_in_one_folder_at_the_same_time(tmp_path):
    models = [make_llada(), make_llada()]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda model: run(tmp_path, model), models)
    assert first[:] == second[:] == run(tmp_path)[:]
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"shard", "trajectories.json"}


def test_machines_must_share_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(trajectories, "_SECONDS_TO_APPEAR", 0.1)
    second = SimpleNamespace(is_main_process=False, process_index=1, num_processes=2)
    with pytest.raises(ValueError, match="Process 1, on .* `output_dir="):
        trajectories._share(ShardStore(tmp_path, {}, 4), second)


def test_shards_say_which_rows_failed(tmp_path, caplog):
    store = ShardStore(tmp_path, {}, 3)
    store.prepare()
    store.write(0, make_prompts(2), {2: "NaN at step 7"})
    assert store.read()[:] == make_prompts(2)[:]
    assert "1 of 3 rows could not be decoded and are left out: row 2 (NaN at step 7)." in caplog.text
    assert json.loads((tmp_path / "trajectories.json").read_text()) == {"shard_size": 4}
