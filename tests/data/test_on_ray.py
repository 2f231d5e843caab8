# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trajectories on a Ray cluster: by its actors, called here; and, under `slow`, by clusters that lose them."""

import contextlib
import functools
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import torch
from datasets import Dataset

from hf_dparallel import DiffusionGenerationConfig, generate_trajectories
from hf_dparallel.data import folder, on_ray
from hf_dparallel.data.on_ray import TeacherActor, generate_trajectories_on_ray, plan_tasks

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
    monkeypatch.setattr(folder, "SHARD_SIZE", 4)
    monkeypatch.setattr(on_ray, "SHARD_SIZE", 4)


class LocalActor:
    """An actor that answers in this process, when it is asked what it returns."""

    def __init__(self, load, settings):
        self._actor = TeacherActor(load, settings)

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *args: functools.partial(getattr(self._actor, name), *args))


@pytest.fixture
def tasks_done(monkeypatch):
    """Has actors answer in this process, the last task first. Returns the shards of each task that was done."""
    done = []

    def wait(references):
        # All actors are there before the first task is done.
        chosen = next((reference for reference in references if not reference.args[0]), references[-1])
        if chosen.args[0]:
            done.append(sorted({row // folder.SHARD_SIZE for row, _ in chosen.args[0]}))
        return [chosen], []

    errors = SimpleNamespace(RayTaskError=ZeroDivisionError, RayError=ZeroDivisionError)
    ray = SimpleNamespace(wait=wait, get=lambda reference: reference(), exceptions=errors)
    ray.remote = lambda **options: lambda actor_class: SimpleNamespace(remote=LocalActor)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: True)
    monkeypatch.setattr(on_ray, "_cluster", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(on_ray, "_resources_of_actor", lambda *arguments: {})
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
    load_partly_nan = functools.partial(load, partly_nan_llada)
    rows = generate_trajectories_on_ray(load_partly_nan, prompts, tmp_path / "ray", **settings)
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


def test_the_models_of_two_machines_must_be_the_same():
    actor = TeacherActor(load, {"generation_config": RECIPE})
    teacher, *_ = actor.describe()
    with pytest.raises(ValueError, match="differs from the model on another machine in weights."):
        actor.answer([], teacher | {"weights": "others"})
    elsewhere = teacher | {"model name": "the same folder, elsewhere"}
    assert len(actor.answer([(0, [2, 3]), (1, [4])], elsewhere)) == 2


def test_without_ray_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install ray"):
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
        functools.partial(load_to_be_killed, tmp_path / "state"), prompts, tmp_path / "ray", RECIPE, max_actors=2
    )
    assert (tmp_path / "state" / "killed").exists()
    assert rows[:] == expected[:] and content(tmp_path / "ray") == content(tmp_path / "one")


def load_to_be_killed_by_a_prompt():
    """A teacher that the prompt `9 9` always ends."""
    model, tokenizer = load()
    deadly = torch.tensor(tokenizer("9 9")["input_ids"])

    def die(module, args):
        if (args[0][:, :2] == deadly).all(dim=1).any():
            os.kill(os.getpid(), signal.SIGKILL)

    model.get_input_embeddings().register_forward_pre_hook(die)
    return model, tokenizer


@pytest.mark.slow
def test_a_prompt_that_ends_actors_loses_no_other_shard(ray_cluster, tmp_path):
    prompts = Dataset.from_dict({"prompt": ["5 6"] * 300 + ["9 9"] + ["6 7"] * 99})
    with pytest.raises(RuntimeError, match="lost 5 times while they answered rows from 256 to 319.* 336 rows are"):
        generate_trajectories_on_ray(load_to_be_killed_by_a_prompt, prompts, tmp_path, RECIPE, max_actors=2)
    assert len(list(tmp_path.glob("shard-*"))) == 6
    expected = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE)
    assert generate_trajectories_on_ray(load, prompts, tmp_path, RECIPE)[:] == expected[:]


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
from tests.data.test_on_ray import *
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
