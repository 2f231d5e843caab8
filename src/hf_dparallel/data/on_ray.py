# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Generates trajectories on a Ray cluster: Ray Data runs the actors, and this process writes the answers."""

import json
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..environment import require
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from .folder import TrajectoryFolder
from .trajectories import as_columns


if TYPE_CHECKING:
    from datasets import Dataset

Loader = Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]]

# Prompts per call and slot of an actor; with fewer, slots would often be empty at the end of a call.
_PROMPTS_PER_SLOT = 8


def generate_trajectories_on_ray(
    load: Loader,
    dataset: "Dataset",
    output_dir: str | os.PathLike,
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    seed: int = 0,
    max_actors: int = 1,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset, on the machines of a Ray cluster.

    Writes and returns what [`generate_trajectories`] does, and either continues a run of the other. Only this process
    reads the data and writes. Ray replaces lost actors. The cluster is that at `$RAY_ADDRESS`, or a new one.

    Args:
        load (`Callable`): returns the teacher and its tokenizer; all machines can import it.
        dataset, output_dir, generation_config, batch_size, seed: as in [`generate_trajectories`].
        max_actors (`int`, *optional*, defaults to 1): upper limit of the number of actors, each with its own
            model, and GPU if the cluster has any.
    """
    require("ray_actors", "ray")
    import ray

    ray.init(ignore_reinit_error=True)
    gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
    settings: dict[str, Any] = {"generation_config": generation_config, "batch_size": batch_size, "seed": seed}

    # In an actor's place, because this machine may have no GPU for the teacher.
    @ray.remote(num_gpus=gpus)
    def describe() -> tuple[dict[str, Any], PreTrainedTokenizerBase, DiffusionGenerationConfig]:
        answerer = Answerer(*load(), **settings)
        return answerer.fingerprint(), answerer.tokenizer, answerer.config

    teacher, tokenizer, config = ray.get(describe.remote())
    folder = TrajectoryFolder(output_dir, dataset, tokenizer, config, teacher)
    folder.prepare()
    prompts = [{"prompt": json.dumps(prompt)} for prompt in folder.prompts()]
    if not prompts:
        return folder.read()

    size = batch_size * _PROMPTS_PER_SLOT
    asked = ray.data.from_items(prompts, override_num_blocks=math.ceil(len(prompts) / size))
    answers = asked.map_batches(
        TeacherActor,
        fn_constructor_args=(load, settings, teacher),
        batch_size=size,
        concurrency=(1, max_actors),
        num_gpus=gpus,
    )
    for answer in tqdm(answers.iter_rows(), "Trajectories", len(prompts)):
        row, columns = json.loads(answer["answer"])
        folder.add(row, columns)
    return folder.read()


class TeacherActor:
    """Answers batches of prompts with one [`Answerer`]. Raises a `ValueError` if its model is not `teacher`.

    Prompts and answers are JSON texts: the row, and its token ids or columns.
    """

    def __init__(self, load: Loader, settings: dict[str, Any], teacher: dict[str, Any]):
        self._answerer = Answerer(*load(), **settings)
        # The folder of the model may have another name on each machine.
        if self._answerer.fingerprint() | {"model name": teacher["model name"]} != teacher:
            raise ValueError("The models of two machines differ. Give all machines the same files, or a `revision`.")

    def __call__(self, prompts: dict[str, Any]) -> dict[str, list[str]]:
        answers = self._answerer.rows(map(json.loads, prompts["prompt"]), raise_errors=False)
        return {"answer": [json.dumps([row, as_columns(answer)]) for row, answer in answers]}
