# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: a teacher's answers to the prompts of a dataset, of which the right ones are kept."""

from functools import partial
from pathlib import Path
from typing import Any

import datasets

from hf_dparallel_cli.flags import TrajectoriesFlags

from ..data.folder import write_filtered
from ..data.on_ray import generate_trajectories_on_ray
from ..data.trajectories import filter_trajectories, generate_trajectories
from ..demo import path_of
from ..environment import join_processes
from ..evaluation.cost import DecodingCost, mean_cost
from .console import say_table
from .loading import (
    batch_options,
    get_reward,
    load_model,
    load_prompts,
    load_tokenizer,
    read_settings,
    resolve_settings,
)


def run(flags: TrajectoriesFlags) -> dict[str, Any] | None:
    """Writes the trajectories that are kept, and prints how many it keeps."""
    given = read_settings(flags)
    dataset = load_prompts(flags, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = None if flags.reward == "none" else get_reward(flags.reward, dataset)
    state = join_processes()
    settings: dict[str, Any] = {"output_dir": flags.output_dir, "seed": flags.seed, **batch_options(flags)}
    if flags.ray_actors is None:
        model, tokenizer = load_model(flags)
        recipe = resolve_settings(model, given, tokenizer)
        rows = kept = generate_trajectories(model, tokenizer, dataset, recipe, **settings)
    else:
        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(flags.model), flags.revision)
        rows = kept = generate_trajectories_on_ray(
            partial(load_model, flags),
            dataset,
            generation_config=given,
            max_actors=flags.ray_actors,
            gpus_per_actor=flags.ray_gpus_per_actor,
            address=flags.ray_address,
            **settings,
        )
    if reward_function is not None:
        kept = filter_trajectories(rows, tokenizer, reward_function, flags.min_reward)
    figures = None
    if state.is_main_process:
        path = write_filtered(kept, Path(flags.output_dir))
        figures = summarize(rows, kept, len(dataset)) | {"file": str(path)}
        say_table(figures)
    # Processes that end without it may abort.
    state.destroy_process_group()
    return figures


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
