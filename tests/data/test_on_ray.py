# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trajectories on a Ray cluster: an actor, called here; and, under `slow`, a cluster that loses one."""

import contextlib
import functools
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig, generate_trajectories
from hf_dparallel.data.on_ray import TeacherActor, generate_trajectories_on_ray
from hf_dparallel.generation.answerer import Answerer

from ..helpers import make_llada, make_prompts, make_tokenizer


RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, temperature=1.0)


def load(change=lambda model: None):
    model = make_llada()
    change(model)
    return model, make_tokenizer()


def break_row_9(model) -> None:
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = torch.nan


def test_an_actor_answers_as_one_process_does():
    settings = {"generation_config": RECIPE, "batch_size": 2, "seed": 5}
    teacher = Answerer(*load(break_row_9), **settings).fingerprint()
    actor = TeacherActor(functools.partial(load, break_row_9), settings, teacher)
    prompts = make_prompts(14)
    ids = make_tokenizer()(prompts["prompt"][:])["input_ids"]
    answers = actor({"prompt": [json.dumps(prompt) for prompt in enumerate(ids)]})["answer"]
    expected = generate_trajectories(*load(break_row_9), prompts, **settings)
    rows = {row: answer for row, answer in map(json.loads, answers) if answer is not None}
    assert sorted(rows) == [int(answer) for answer in expected["answer"]] and len(rows) < 14
    for row in expected:
        assert all(row[name] == rows[int(row["answer"])][name] for name in ("completion_ids", "commit_step", "nfe"))
    with pytest.raises(ValueError, match="The models of two machines differ"):
        TeacherActor(load, settings, teacher)


def kill_once(folder: Path, model) -> None:
    """Kills the process of the model after some passes, unless one was killed."""
    passes = []

    def die(module, args, output):
        passes.append(1)
        if len(passes) > 100:
            with contextlib.suppress(FileExistsError):
                (folder / "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

    model.lm_head.register_forward_hook(die)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray, about its own settings
def test_a_cluster_writes_the_folder_of_one_process(ray_cluster, tmp_path):
    prompts = make_prompts(1000)
    expected = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE)
    (tmp_path / "state").mkdir()
    load_and_die = functools.partial(load, functools.partial(kill_once, tmp_path / "state"))
    rows = generate_trajectories_on_ray(load_and_die, prompts, tmp_path / "ray", RECIPE, max_actors=2)
    assert (tmp_path / "state" / "killed").exists()
    assert rows[:] == expected[:] and rows.features == expected.features
    # Either goes on with the folder of the other.
    next((tmp_path / "ray").glob("shard-00001*")).unlink()
    rows = generate_trajectories(make_llada(), make_tokenizer(), prompts, RECIPE, output_dir=tmp_path / "ray")
    assert rows[:] == expected[:]
    next((tmp_path / "ray").glob("shard-00002*")).unlink()
    assert generate_trajectories_on_ray(load, prompts, tmp_path / "ray", RECIPE)[:] == expected[:]
