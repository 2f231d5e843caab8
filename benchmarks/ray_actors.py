# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How trajectories scale with the actors of a Ray cluster, and what Ray itself takes.

    python benchmarks/ray_actors.py --num_actors 1 2

The bundled teacher answers its word problems on a cluster of this machine with one CPU for each actor. The seconds
depend on what else runs on the machine; the processor seconds of the actors and of Ray, this process included, hardly
do. The rows of all runs have to be the same.
"""

import argparse
import collections
import contextlib
import functools
import tempfile
import threading
import time
from pathlib import Path

import psutil
import ray
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.data.on_ray import generate_trajectories_on_ray
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_actors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--num_prompts", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--output", help="JSON file to write")
    arguments = parser.parse_args()
    prompts = word_problem_dataset(arguments.num_prompts, seed=0, split="train")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        answers = []
        for num_actors in arguments.num_actors:
            figures, answer = measure(prompts, num_actors, arguments.batch_size, Path(folder, str(num_actors)))
            rows.append(figures)
            answers.append(answer)
        assert all(answer[:] == answers[0][:] for answer in answers)
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows], num_text_columns=0))
    if arguments.output:
        result = {"settings": vars(arguments), "rows": rows, "environment": describe_environment()}
        write_json(result, arguments.output)


def measure(prompts, num_actors: int, batch_size: int, folder: Path) -> tuple[dict, object]:
    """Returns the figures of a run, from the start of its actors, and its rows."""
    ray.init(num_cpus=num_actors, object_store_memory=2**27, include_dashboard=False, log_to_driver=False)
    used: dict[str, dict[int, float]] = collections.defaultdict(dict)
    stop = threading.Event()
    thread = threading.Thread(target=watch, args=(used, stop), daemon=True)
    thread.start()
    start = time.perf_counter()
    rows = generate_trajectories_on_ray(
        functools.partial(load_teacher, torch.float32),
        prompts,
        folder,
        DiffusionGenerationConfig(entropy_threshold=0.5),
        batch_size=batch_size,
        max_actors=num_actors,
    )
    seconds = time.perf_counter() - start
    stop.set()
    thread.join()
    ray.shutdown()
    figures = {"Actors": num_actors, "Prompts": len(prompts), "Seconds": round(seconds, 1)}
    for kind in ("actors", "Ray"):
        figures[f"CPU seconds of {kind}"] = round(sum(used[kind].values()), 1)
    return figures, rows


def watch(used: dict[str, dict[int, float]], stop: threading.Event) -> None:
    """Notes the processor seconds of all processes, until stopped."""
    this = psutil.Process()
    at_start = sum(this.cpu_times()[:2])
    while not stop.wait(0.5):
        used["Ray"][this.pid] = sum(this.cpu_times()[:2]) - at_start
        for process in this.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                is_actor = (process.cmdline() or [""])[0].startswith("ray::TeacherActor")
                used["actors" if is_actor else "Ray"][process.pid] = sum(process.cpu_times()[:2])


if __name__ == "__main__":
    main()
