# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: a teacher's answers to the prompts of a dataset, the right ones of which are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from ..data.folder import FILTERED_NAME, write_filtered
from ..data.on_ray import generate_trajectories_on_ray
from ..data.trajectories import filter_trajectories, generate_trajectories
from ..demo import path_of
from ..environment import join_processes
from ..evaluation.cost import DecodingCost, mean_cost
from .arguments import (
    BatchArguments,
    CommandParser,
    DatasetArguments,
    DecodingArguments,
    LoadingArguments,
    OutputArguments,
    check_positive,
)
from .console import say_table, write_json
from .loading import get_reward, load_model, load_prompts, load_tokenizer, resolve_settings


@dataclass
class TrajectoryArguments:
    output_dir: str = field(
        metadata={
            "help": f"Folder for the trajectories: shards of all, and {FILTERED_NAME} with the kept rows. A run "
            "that was killed goes on where it stopped when it is started again with the same folder."
        }
    )
    reward: str = field(
        default="numeric",
        metadata={
            "help": "What makes an answer right. 'numeric': its last number is the last one of the column 'answer'. "
            "'math': it is mathematically equal to the column 'solution' (needs math-verify). 'none': keep all.",
            "choices": ["numeric", "math", "none"],
        },
    )
    min_reward: float = field(default=1.0, metadata={"help": "Keep answers with at least this reward."})


@dataclass
class RayArguments:
    _argument_group_name = "cluster"

    ray_actors: int | None = field(
        default=None,
        metadata={
            "help": "Decode on a Ray cluster (needs ray), with at most so many actors, each of which has a model and "
            "num_workers CPUs. Does not change the answers."
        },
    )
    ray_gpus_per_actor: float | None = field(
        default=None, metadata={"help": "GPUs of each actor. By default one if the cluster has any, else none."}
    )
    ray_address: str | None = field(
        default=None,
        metadata={
            "help": "Address of the cluster. By default that in $RAY_ADDRESS, else that of one on this machine, else "
            "one is started here."
        },
    )

    def __post_init__(self):
        check_positive(self, "ray_actors")
        if self.ray_gpus_per_actor is not None and self.ray_gpus_per_actor < 0:
            raise ValueError(f"`ray_gpus_per_actor` must be at least 0, got {self.ray_gpus_per_actor}.")
        if self.ray_actors is None and (self.ray_address, self.ray_gpus_per_actor) != (None, None):
            raise ValueError("`ray_address` and `ray_gpus_per_actor` have no effect without `ray_actors`. Add it.")

    def settings(self) -> dict[str, Any]:
        """As [`generate_trajectories_on_ray`] takes them."""
        return {
            "max_actors": self.ray_actors,
            "gpus_per_actor": self.ray_gpus_per_actor,
            "address": self.ray_address,
        }


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser(
        "trajectories",
        [
            LoadingArguments,
            DatasetArguments,
            TrajectoryArguments,
            BatchArguments,
            RayArguments,
            DecodingArguments,
            OutputArguments,
        ],
        positionals=["model"],
    )


def run(argv: Sequence[str]) -> None:
    """Writes the trajectories that are kept, and prints how many it keeps."""
    loading, data, arguments, batch, ray, decoding, output = make_parser().parse(argv)
    dataset = load_prompts(data, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = None if arguments.reward == "none" else get_reward(arguments.reward, dataset)
    state = join_processes()
    settings = {
        "batch_size": batch.batch_size,
        "output_dir": arguments.output_dir,
        "seed": decoding.seed,
        "num_workers": batch.num_workers,
    }
    if ray.ray_actors is None:
        model, tokenizer = load_model(loading)
        recipe = resolve_settings(model, decoding.to_generation_config(), tokenizer)
        rows = kept = generate_trajectories(model, tokenizer, dataset, recipe, **settings)
    else:
        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(loading.model), loading.revision)
        rows = kept = generate_trajectories_on_ray(
            partial(load_model, loading),
            dataset,
            generation_config=decoding.to_generation_config(),
            **settings,
            **ray.settings(),
        )
    if reward_function is not None:
        kept = filter_trajectories(rows, tokenizer, reward_function, arguments.min_reward)
    if state.is_main_process:
        path = write_filtered(kept, Path(arguments.output_dir))
        figures = summarize(rows, kept, len(dataset)) | {"file": str(path)}
        say_table(figures)
        write_json(figures, output.json)
    # Processes that end without it may abort.
    state.destroy_process_group()


def summarize(rows: datasets.Dataset, kept: datasets.Dataset, num_prompts: int) -> dict[str, Any]:
    """Returns the counts, and the mean cost of an answer."""
    # An end token is the last one of an answer, and counts.
    answers = zip(rows["completion_ids"], rows["nfe"], strict=True)
    cost = mean_cost([DecodingCost.of_tokens(ids, nfe, eos_token_id=()) for ids, nfe in answers])
    return {
        "num_prompts": num_prompts,
        "num_failed": num_prompts - len(rows),
        "num_kept": len(kept),
        "num_dropped": len(rows) - len(kept),
        "nfe": cost["nfe"],
        "tokens_per_forward": cost["tokens_per_forward"],
    }
