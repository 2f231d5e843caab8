# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trajectories by the machines of a Ray cluster: actors of Ray Data answer shards, this process writes them.

Scheduling, restarts and scaling are Ray's. What an actor does with a shard is what [`generate_trajectories`] does.
"""

import collections
import contextlib
import functools
import io
import logging
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.rows import check_batch_size
from .teacher import AnsweredShard, Prompts, PromptShard, Teacher, gather_shards
from .trajectory_folder import SHARD_SIZE, ShardStore


if TYPE_CHECKING:
    from datasets import Dataset

# Prompts of a task for each slot of its actor: when a task comes to its end, slots are empty.
_PROMPTS_PER_SLOT = 8
# How often Ray may begin with the same prompts, before they are what ends their actors.
_MAX_ATTEMPTS = 5


def generate_trajectories_on_ray(
    load: Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    dataset: "Dataset",
    output_dir: str | os.PathLike,
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    seed: int = 0,
    num_workers: int = 1,
    max_actors: int = 1,
    gpus_per_actor: float | None = None,
    address: str | None = None,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset, on the machines of a Ray cluster.

    It writes the folder that [`generate_trajectories`] writes for the same arguments, and goes on with one that either
    of them has begun. Only this process reads `dataset` and writes `output_dir`, so the machines need no folder in
    common. What an actor has not sent when it is lost, another one decodes anew; machines may join and leave.

    Args:
        load (`Callable`):
            Returns the teacher and its tokenizer. Each actor calls it, so it must be something that the machines can
            import, or a `functools.partial` of it.
        dataset, generation_config, batch_size, seed:
            As for [`generate_trajectories`].
        output_dir (`str` or `os.PathLike`):
            Where to keep the shards.
        num_workers (`int`, *optional*, defaults to 1):
            Threads of each actor, and the CPUs that it takes.
        max_actors (`int`, *optional*, defaults to 1):
            Actors, each with a model of its own. While the cluster has no room for all of them, there are fewer.
        gpus_per_actor (`float`, *optional*):
            GPUs that each actor takes. By default one if the cluster has any, else none.
        address (`str`, *optional*):
            Address of the cluster, as for `ray.init`: by default that in `$RAY_ADDRESS`, else that of a cluster on
            this machine, else a new one is started here. Has no effect if this process is connected already.

    Returns:
        `datasets.Dataset`: as [`generate_trajectories`].

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no cluster at `address`.
        ValueError: as from [`generate_trajectories`]; if no machine has room for an actor; or if the models of two
            machines differ.
        RuntimeError: if the same prompts end their actors again and again.
        FloatingPointError: if not one row of a shard can be decoded.
    """
    if find_spec("ray") is None:
        raise ImportError("Trajectories on a cluster need Ray: `pip install 'hf-dparallel[ray]'`.")
    check_batch_size(batch_size)
    make_teacher = functools.partial(_make_teacher, load, generation_config, batch_size, seed, num_workers)
    with _cluster(address):
        resources = _resources_of_actor(num_workers, gpus_per_actor)
        description, tokenizer, mask_token_id = _describe_on_cluster(make_teacher, resources)
        prompts = Prompts(dataset, tokenizer, mask_token_id)
        store = ShardStore(Path(output_dir), description | prompts.describe(), len(dataset))
        store.check_run()
        store.prepare()
        missing = store.missing()
        tasks = [
            [prompts.of_shard(store, shard) for shard in task]
            for task in plan_tasks(missing, batch_size * num_workers, max_actors)
        ]
        with tqdm(total=sum(len(store.rows(shard)) for shard in missing), desc="Trajectories") as bar:
            for shard in _answer_on_cluster(tasks, make_teacher, description, max_actors, resources):
                store.write(shard.number, shard.rows, shard.failed)
                bar.update(len(store.rows(shard.number)))
        return store.read()


def plan_tasks(shards: Sequence[int], num_slots: int, max_actors: int) -> list[Sequence[int]]:
    """Returns the shards of each task: enough to keep the slots of an actor busy, but some for every actor."""
    size = min(-(-_PROMPTS_PER_SLOT * num_slots // SHARD_SIZE), -(-len(shards) // max_actors))
    return [shards[start : start + size] for start in range(0, len(shards), max(1, size))]


class TeacherActor:
    """Answers tasks, one after the other, with one model.

    Args:
        make_teacher (`Callable`): loads the model.
        description (`dict[str, Any]`): what [`Teacher.describe`] has to return.
        count_attempt (`Callable`): called with the number of a shard, says how often its task has been begun.
    """

    def __init__(
        self,
        make_teacher: Callable[[], Teacher],
        description: dict[str, Any],
        count_attempt: Callable[[int], int],
    ):
        self._make_teacher = make_teacher
        self._description = description
        self._count_attempt = count_attempt

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Returns the shards with their answers, or the error. Ray would send an error without its type."""
        try:
            return {"answer": pack(self._answer(pickle.loads(item["task"])))}
        except Exception as error:  # noqa: BLE001  # the other process raises it
            error.add_note(traceback.format_exc())
            return {"answer": pack(error)}

    @functools.cached_property
    def _teacher(self) -> Teacher:
        teacher = self._make_teacher()
        # Its folder may have another name there.
        description = teacher.describe() | {"model name": self._description["model name"]}
        differing = [name for name, value in description.items() if value != self._description[name]]
        if differing:
            raise ValueError(
                f"The model that {socket.gethostname()} has loaded differs from that of another machine in "
                f"{', '.join(differing)}. Give all machines the same files, or name a commit as `revision`."
            )
        return teacher

    def _answer(self, shards: list[PromptShard]) -> list[AnsweredShard]:
        first, last = shards[0].rows[0], shards[-1].rows[-1]
        if self._count_attempt(shards[0].number) > _MAX_ATTEMPTS:
            raise RuntimeError(
                f"Actors have been lost {_MAX_ATTEMPTS} times while they answered the rows from {first} to {last}. "
                "Ray's messages say how; if memory was short, lower `batch_size`. The other shards are intact."
            )
        return list(gather_shards(self._teacher.answer(shards)))


def pack(value: Any) -> bytes:
    """Pickles something for another machine: datasets by their rows, where they would be pickled by their files."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        import pyarrow
        from datasets import Dataset

        if not isinstance(value, Dataset):
            return NotImplemented
        table = value.with_format("arrow")[:]
        buffer = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(buffer, table.schema) as stream:
            stream.write_table(table)
        return _read_dataset, (buffer.getvalue().to_pybytes(),)


def _read_dataset(content: bytes) -> "Dataset":
    import pyarrow
    from datasets import Dataset

    return Dataset(pyarrow.ipc.open_stream(content).read_all())


def _make_teacher(
    load: Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    generation_config: DiffusionGenerationConfig | None,
    batch_size: int,
    seed: int,
    num_workers: int,
) -> Teacher:
    model, tokenizer = load()
    return Teacher(model.eval(), tokenizer, generation_config, batch_size, seed, num_workers)


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """Connects this process with a cluster, if it is not yet."""
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def _resources_of_actor(num_cpus: int, num_gpus: float | None) -> dict[str, float]:
    """Returns what an actor takes. Ray would wait for a machine that has room for it, for any time."""
    import ray

    if num_gpus is None:
        num_gpus = 1 if ray.cluster_resources().get("GPU") else 0
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(machine.get("CPU", 0) >= num_cpus and machine.get("GPU", 0) >= num_gpus for machine in machines):
        have = ", ".join(f"{machine.get('CPU', 0):g} and {machine.get('GPU', 0):g}" for machine in machines)
        raise ValueError(
            f"No machine of the cluster has the {num_cpus} CPUs (`num_workers`) and {num_gpus:g} GPUs "
            f"(`gpus_per_actor`) that an actor takes: they have {have}. Lower these, or start a machine that has them."
        )
    return {"num_cpus": num_cpus, "num_gpus": num_gpus}


def _describe_on_cluster(
    make_teacher: Callable[[], Teacher], resources: dict[str, float]
) -> tuple[dict[str, Any], PreTrainedTokenizerBase, int]:
    """Loads the teacher on one of the machines, since there may be no room for it in this process."""
    import ray

    # With `max_calls`, the process ends after it and leaves its memory to an actor.
    @ray.remote(**resources, max_calls=1)
    def describe() -> tuple[dict[str, Any], PreTrainedTokenizerBase, int]:
        teacher = make_teacher()
        return teacher.describe(), teacher.tokenizer, teacher.config.mask_token_id

    try:
        return ray.get(describe.remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _answer_on_cluster(
    tasks: list[list[PromptShard]],
    make_teacher: Callable[[], Teacher],
    description: dict[str, Any],
    max_actors: int,
    resources: dict[str, float],
) -> Iterator[AnsweredShard]:
    """Yields shards as their tasks are finished."""
    if not tasks:
        return
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    num_actors = min(max_actors, len(tasks))
    attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Attempts).remote()
    answers = ray.data.from_items([{"task": pack(task)} for task in tasks], override_num_blocks=len(tasks)).map(
        TeacherActor,
        fn_constructor_args=(make_teacher, description, functools.partial(_count_attempt, attempts)),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=num_actors, initial_size=num_actors),
        **resources,
    )
    for item in answers.iter_rows():
        answer = pickle.loads(item["answer"])
        if isinstance(answer, Exception):
            raise answer
        yield from answer


class _Attempts:
    """Counts how often tasks are begun, in an actor of its own, which outlives those that answer them."""

    def __init__(self):
        self._counts: collections.Counter[int] = collections.Counter()

    def count(self, shard: int) -> int:
        self._counts[shard] += 1
        return self._counts[shard]


def _count_attempt(attempts: Any, shard: int) -> int:
    import ray

    return ray.get(attempts.count.remote(shard))
