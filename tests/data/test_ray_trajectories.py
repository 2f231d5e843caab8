# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trajectories on a Ray cluster: by its actors, called here; and, under `slow`, by clusters that lose them."""

import contextlib
import functools
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from datasets import Dataset, load_dataset

from hf_dparallel import DiffusionGenerationConfig, generate_trajectories
from hf_dparallel.data import ray_trajectories, trajectory_folder
from hf_dparallel.data.ray_trajectories import TeacherActor, generate_trajectories_on_ray, pack, plan_tasks

from ..helpers import make_llada, make_prompts, make_tokenizer
from ..processes import Program


RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, temperature=1.0)


def load(make=make_llada):
    return make().train(), make_tokenizer()


def nan_llada():
    model = make_llada()
    with torch.no_grad():
        model.lm_head.weight[:] = torch.nan
    return model


def partly_nan_llada():
    model = make_llada()
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = torch.nan
    return model


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(trajectory_folder, "SHARD_SIZE", 4)
    monkeypatch.setattr(ray_trajectories, "SHARD_SIZE", 4)


@pytest.fixture
def tasks_done(monkeypatch):
    """Has actors answer in this process, the last task first. Returns the shards of each task that was done."""
    done = []

    def describe(make_teacher, resources):
        teacher = make_teacher()
        return teacher.describe(), teacher.tokenizer, teacher.config.mask_token_id

    def answer(tasks, make_teacher, description, max_actors, resources):
        actor = TeacherActor(make_teacher, description, count_attempt=lambda shard: 1)
        for task in reversed(tasks):
            done.append([shard.number for shard in task])
            result = pickle.loads(actor({"task": pack(task)})["answer"])
            if isinstance(result, Exception):
                raise result
            yield from result

    monkeypatch.setattr(ray_trajectories, "find_spec", lambda name: True)
    monkeypatch.setattr(ray_trajectories, "_cluster", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(ray_trajectories, "_resources_of_actor", lambda *arguments: {})
    monkeypatch.setattr(ray_trajectories, "_describe_on_cluster", describe)
    monkeypatch.setattr(ray_trajectories, "_answer_on_cluster", answer)
    return done


def content(folder: Path) -> dict[str, object]:
    """All files of a folder; without the fingerprint that `datasets` draws for some of them."""
    found: dict[str, object] = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.glob("*.parquet"):
        table = pyarrow.parquet.read_table(path)
        label = table.schema.metadata.pop(b"hf_dparallel")
        found[path.name] = (Dataset(table).features, table.to_pylist(), label)
    return found


def test_actors_write_the_folder_of_a_single_process(small_shards, tasks_done, tmp_path):
    prompts = make_prompts(14).map(lambda row: {"nested": {"of": [row["answer"], None]}})
    model = partly_nan_llada()
    expected = generate_trajectories(model, make_tokenizer(), prompts, RECIPE, 3, tmp_path / "one", seed=5)
    assert len(expected) == 12
    settings = {"generation_config": RECIPE, "batch_size": 1, "seed": 5, "max_actors": 2}
    rows = generate_trajectories_on_ray(
        functools.partial(load, partly_nan_llada), prompts, tmp_path / "ray", **settings
    )
    assert rows[:] == expected[:] and rows.features == expected.features
    assert content(tmp_path / "ray") == content(tmp_path / "one")
    assert tasks_done == [[2, 3], [0, 1]]


def test_each_goes_on_with_the_folder_of_the_other(small_shards, tasks_done, tmp_path):
    prompts = make_prompts(14)
    expected = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE, output_dir=tmp_path)
    before = content(tmp_path)
    (tmp_path / "shard-00002-of-00004.parquet").unlink()
    assert generate_trajectories_on_ray(load, prompts, tmp_path, RECIPE)[:] == expected[:]
    assert tasks_done == [[2]] and content(tmp_path) == before
    with pytest.raises(ValueError, match="of another run, which differs in seed"):
        generate_trajectories_on_ray(load, prompts, tmp_path, RECIPE, seed=1)
    with pytest.raises(ValueError, match="`dataset` has no rows"):
        generate_trajectories_on_ray(load, make_prompts(1).select([]), tmp_path / "none", RECIPE)
    assert not (tmp_path / "none").exists()


def test_tasks_keep_slots_busy_and_leave_some_for_every_actor():
    assert plan_tasks([], num_slots=8, max_actors=4) == []
    assert plan_tasks([3], num_slots=8, max_actors=4) == [[3]]
    # 64 prompts a shard, 8 for each slot.
    assert list(map(len, plan_tasks(range(100), num_slots=8, max_actors=4))) == [1] * 100
    assert list(map(len, plan_tasks(range(100), num_slots=24, max_actors=4))) == [3] * 33 + [1]
    assert list(map(len, plan_tasks(range(10), num_slots=256, max_actors=4))) == [3, 3, 3, 1]


def test_a_dataset_travels_with_its_rows_only(tmp_path):
    path = tmp_path / "prompts.parquet"
    Dataset.from_dict({"prompt": [f"{row} {'x' * 1000}" for row in range(100)]}).to_parquet(path)
    dataset = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    packed = pack(dataset.select(range(10, 12)))
    assert len(packed) < 4000
    received = pickle.loads(packed)
    assert received[:] == dataset[10:12] and received.features == dataset.features and not received.cache_files


def run_actor(make, attempt=1, **changed):
    make_teacher = functools.partial(ray_trajectories._make_teacher, functools.partial(load, make), RECIPE, 2, 0, 1)
    teacher = make_teacher()
    prompts = ray_trajectories.Prompts(make_prompts(2), teacher.tokenizer, teacher.config.mask_token_id)
    store = trajectory_folder.ShardStore(Path(), {}, 2)
    actor = TeacherActor(make_teacher, teacher.describe() | changed, count_attempt=lambda shard: attempt)
    return pickle.loads(actor({"task": pack([prompts.of_shard(store, 0)])})["answer"])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"make": nan_llada}, FloatingPointError, "The logits of the model are NaN in all rows from 0 to 1"),
        ({"make": make_llada, "weights": "others"}, ValueError, "differs from that of another machine in weights."),
        ({"make": make_llada, "attempt": 6}, RuntimeError, "lost 5 times while they answered the rows from 0 to 1"),
    ],
)
def test_errors_of_an_actor_keep_their_type(arguments, kind, message):
    error = run_actor(**arguments)
    assert type(error) is kind and message in str(error) and "Traceback" in error.__notes__[0]
    assert len(run_actor(make_llada, **{"model name": "the same folder, elsewhere"})[0].rows) == 2


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_trajectories, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'hf-dparallel\[ray\]'"):
        generate_trajectories_on_ray(load, make_prompts(1), tmp_path)


# On clusters.


def load_to_be_killed(folder: Path):
    """Its first call leaves a teacher; a later one is killed while it decodes its second task, unless one was."""
    model, tokenizer = load()
    passes = []

    def die(module, args, output):
        passes.append(1)
        if len(passes) > 100:
            with contextlib.suppress(FileExistsError):
                (folder / "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    model.lm_head.register_forward_hook(die)
    return model, tokenizer


@pytest.mark.slow
def test_rows_of_an_actor_that_is_killed_are_made_again(ray_cluster, tmp_path):
    prompts = make_prompts(1000)
    expected = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE, output_dir=tmp_path / "one")
    (tmp_path / "state").mkdir()
    rows = generate_trajectories_on_ray(
        functools.partial(load_to_be_killed, tmp_path / "state"),
        prompts,
        tmp_path / "ray",
        RECIPE,
        max_actors=2,
    )
    assert (tmp_path / "state" / "killed").exists()
    assert rows[:] == expected[:] and content(tmp_path / "ray") == content(tmp_path / "one")


def no_such_model():
    raise OSError("There is no such model.")


@pytest.mark.slow
def test_refusals_and_more_actors_than_prompts(ray_cluster, tmp_path):
    with pytest.raises(ValueError, match="No machine of the cluster has the 1 CPUs .* 1 GPUs .* they have 2 and 0."):
        generate_trajectories_on_ray(load, make_prompts(1), tmp_path, gpus_per_actor=1)
    with pytest.raises(OSError, match="There is no such model.") as failure:
        generate_trajectories_on_ray(no_such_model, make_prompts(1), tmp_path)
    assert type(failure.value) is OSError
    with pytest.raises(FloatingPointError, match="NaN in all rows from 0 to 2"):
        generate_trajectories_on_ray(functools.partial(load, nan_llada), make_prompts(3), tmp_path, RECIPE)
    expected = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(1), RECIPE)
    rows = generate_trajectories_on_ray(load, make_prompts(1), tmp_path / "one", RECIPE, max_actors=5)
    assert rows[:] == expected[:]


DRIVER = """
import sys
from tests.data.test_ray_trajectories import *
import ray
ray.init(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
generate_trajectories_on_ray(load, make_prompts(1000), sys.argv[1], RECIPE)
"""


@pytest.mark.slow
def test_a_run_whose_driver_is_killed_goes_on(monkeypatch, tmp_path):
    prompts = make_prompts(1000)
    expected = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE, output_dir=tmp_path / "one")
    environment = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = Program(DRIVER, tmp_path / "ray", **environment)
    deadline = time.time() + 300
    while len(list((tmp_path / "ray").glob("shard-*"))) < 3 and time.time() < deadline:
        time.sleep(0.01)
    driver.kill()
    assert 3 <= len(list((tmp_path / "ray").glob("shard-*"))) < 16
    rows = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE, output_dir=tmp_path / "ray")
    assert rows[:] == expected[:] and content(tmp_path / "ray") == content(tmp_path / "one")
