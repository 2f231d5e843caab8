# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Generates trajectories on a Ray cluster: actors answer prompts, and this process writes the answers.

Ray schedules, restarts and scales the actors. They decode as [`generate_trajectories`] does.
"""

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..environment import require
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from .folder import SHARD_SIZE
from .trajectories import TrajectoryRun, as_columns


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)

# Returns a model and its tokenizer.
Loader = Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]]
# Rows with their prompts.
Task = list[tuple[int, list[int]]]

# Prompts per task and slot of an actor. With fewer, slots would often be empty at the end of a task.
_PROMPTS_PER_SLOT = 8
# Retries before we assume that the prompts themselves crash the actor.
_MAX_RETRIES = 4


def generate_trajectories_on_ray(
    load: Loader,
    dataset: "Dataset",
    output_dir: str | os.PathLike,
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    seed: int = 0,
    num_workers: int = 1,
    max_actors: int = 1,
    gpus_per_actor: float | None = None,
    address: str | None = None,
    overwrite: bool = False,
    on_shard: Callable[["Dataset", int], None] | None = None,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset, on the machines of a Ray cluster.

    Writes the same folder as [`generate_trajectories`] for the same arguments, and either function continues a run of
    the other. Only this process reads `dataset` and writes `output_dir`, so the machines need no shared folder.
    Machines may join and leave: another actor decodes the prompts that a lost actor has not answered.

    Args:
        load (`Callable`):
            Returns the teacher and its tokenizer. Each actor calls it, so it must be a function that all machines can
            import, or a `functools.partial` of one.
        dataset, generation_config, batch_size, seed, overwrite, on_shard:
            As in [`generate_trajectories`].
        output_dir (`str` or `os.PathLike`):
            Folder for the shards.
        num_workers (`int`, *optional*, defaults to 1):
            Threads of each actor, and CPUs that it reserves.
        max_actors (`int`, *optional*, defaults to 1):
            Upper limit of the number of actors, each with its own model. Decoding starts as soon as one actor runs.
        gpus_per_actor (`float`, *optional*):
            GPUs that each actor reserves. By default one if the cluster has any, else none.
        address (`str`, *optional*):
            Address of the cluster, as for `ray.init`. By default `$RAY_ADDRESS`, else a cluster that runs on this
            machine, else a new cluster on this machine. Has no effect if this process is already connected.

    Returns:
        `datasets.Dataset`: as [`generate_trajectories`].

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no cluster at `address`.
        ValueError: as from [`generate_trajectories`]; if no machine has enough resources for an actor; or if the
            models of two machines differ.
        RuntimeError: if the same prompts crash their actors repeatedly.
        FloatingPointError: if no row of a whole shard can be decoded.
    """
    require("ray_actors", "ray")
    import ray

    settings = {"generation_config": generation_config, "batch_size": batch_size}
    settings |= {"seed": seed, "num_workers": num_workers}
    with _cluster(address):
        options = _resources_of_actor(num_workers, gpus_per_actor) | {"max_task_retries": _MAX_RETRIES}
        actor_class = ray.remote(max_restarts=-1, **options)(TeacherActor)
        actors = [actor_class.remote(load, settings)]
        # From an actor, because this machine may have no GPU for the teacher.
        teacher, tokenizer, mask_token_id = _result_of(actors[0].describe.remote())
        run = TrajectoryRun(dataset, tokenizer, mask_token_id, output_dir, teacher, overwrite, on_shard)
        run.store.prepare()
        shards = plan_tasks(run.store.missing(), batch_size * num_workers, max_actors)
        tasks = [list(run.prompts(of_task)) for of_task in shards]
        actors += [actor_class.remote(load, settings) for _ in tasks[1:max_actors]]
        answers = _answer_by_actors(tasks, actors, teacher)
        for row, answer in tqdm(answers, "Trajectories", sum(map(len, tasks))):
            run.add(row, answer)
        if missing := run.store.missing():
            rows = [row for shard in missing for row in run.store.rows(shard)]
            raise RuntimeError(
                f"Actors were lost {1 + _MAX_RETRIES} times while they answered rows from {min(rows)} to {max(rows)}. "
                "Ray's log has the reason. If memory ran out, lower `batch_size`. Start the run again with the same "
                f"folder: the other {len(dataset) - len(rows)} rows are written."
            )
        return run.store.read()


def plan_tasks(shards: Sequence[int], num_slots: int, max_actors: int) -> list[Sequence[int]]:
    """Returns the shards of each task: enough to keep all slots of an actor busy, but at least one task per actor."""
    size = min(-(-_PROMPTS_PER_SLOT * num_slots // SHARD_SIZE), -(-len(shards) // max_actors))
    return [shards[start : start + size] for start in range(0, len(shards), max(1, size))]


class TeacherActor:
    """Answers tasks, one after the other, with one [`Answerer`]. `settings` are its arguments."""

    def __init__(self, load: Loader, settings: dict[str, Any]):
        self._load, self._settings = load, settings

    @functools.cached_property
    def _answerer(self) -> Answerer:
        return Answerer(*self._load(), **self._settings)

    @functools.cached_property
    def _fingerprint(self) -> dict[str, Any]:
        return self._answerer.fingerprint()

    def describe(self) -> tuple[dict[str, Any], PreTrainedTokenizerBase, int]:
        """Returns the fingerprint of the model, the tokenizer and the mask token."""
        return self._fingerprint, self._answerer.tokenizer, self._answerer.config.mask_token_id

    def answer(self, task: Task, teacher: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Returns the rows of a task with their answers. Raises a `ValueError` if the model is not `teacher`."""
        # The folder of the model may have another name on each machine.
        fingerprint = self._fingerprint | {"model name": teacher["model name"]}
        differing = [name for name, value in fingerprint.items() if value != teacher[name]]
        if differing:
            raise ValueError(
                f"The model on {socket.gethostname()} differs from the model on another machine in "
                f"{', '.join(differing)}. Give all machines the same files, or set `revision` to a commit."
            )
        return [(row, as_columns(answer)) for row, answer in self._answerer.rows(task, raise_errors=False)]


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Connects this process with a cluster, unless it is already connected."""
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        connection = ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}. If Ray's log reports a missing token, copy ~/.ray/auth_token from the machine where the "
            "cluster was started, and set RAY_AUTH_MODE=token."
        ) from error
    with connection:
        yield


def _resources_of_actor(num_cpus: int, num_gpus: float | None) -> dict[str, float]:
    """Returns the resources of an actor, or raises a `ValueError` if no machine has them.

    Otherwise Ray would wait forever for a node with enough resources.
    """
    import ray

    if num_gpus is None:
        num_gpus = 1 if ray.cluster_resources().get("GPU") else 0
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(machine.get("CPU", 0) >= num_cpus and machine.get("GPU", 0) >= num_gpus for machine in machines):
        have = ", ".join(f"{machine.get('CPU', 0):g} and {machine.get('GPU', 0):g}" for machine in machines)
        raise ValueError(
            f"No machine of the cluster has the {num_cpus} CPUs (`num_workers`) and {num_gpus:g} GPUs "
            f"(`gpus_per_actor`) of an actor: they have {have}. Lower these, or add a machine that has them."
        )
    return {"num_cpus": num_cpus, "num_gpus": num_gpus}


def _result_of(reference: Any) -> Any:
    """Waits for the result of an actor and returns it, or raises the actor's own error."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _answer_by_actors(
    tasks: Sequence[Task], actors: Sequence[Any], teacher: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields rows with their answers as tasks finish. Leaves out tasks that crash their actors."""
    import ray

    waiting, num_unfinished = list(reversed(tasks)), len(tasks)
    # An empty task is finished as soon as its actor runs, which may never happen on a full cluster.
    asked: dict[Any, tuple[Any, Task]] = {actor.answer.remote([], teacher): (actor, []) for actor in actors}
    while num_unfinished:
        (done, *_), _ = ray.wait(list(asked))
        actor, task = asked.pop(done)
        num_unfinished -= bool(task)
        # One task at a time: the loss of an actor counts as an attempt at all of its tasks.
        if waiting:
            task = waiting.pop()
            asked[actor.answer.remote(task, teacher)] = (actor, task)
        try:
            answers = _result_of(done)
        except ray.exceptions.RayError as error:
            logger.warning(f"A task failed {1 + _MAX_RETRIES} times and is left out: {error}")
        else:
            yield from answers
