# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: lets a teacher answer the prompts of a dataset, and keeps the right answers."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from .console import echo_table
from .options import (
    COUNT,
    batch_option,
    common_options,
    data_options,
    model_options,
    reward_option,
    seed_option,
    settings_options,
)


if TYPE_CHECKING:
    from datasets import Dataset


@click.command()
@model_options
@data_options
@click.option("--output_dir", type=click.Path(), required=True, help="Folder for all rows and filtered.parquet.")
@reward_option("none")
@click.option("--min_reward", type=float, default=1.0, help="Keep answers with at least this reward.")
@click.option("--ray_actors", type=COUNT, help="Decode on a Ray cluster, with up to this many actors (needs ray).")
@batch_option
@settings_options
@seed_option
@common_options
def trajectories_command(
    source: dict[str, Any],
    data: dict[str, Any],
    output_dir: str,
    reward: str,
    min_reward: float,
    ray_actors: int | None,
    batch_size: int | None,
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any] | None:
    """Let a teacher answer the prompts of a dataset, and keep the right answers.

    The same command continues a run that was killed. Rewards: 'none' keeps all answers.

    Example: hf-dparallel trajectories demo --dataset demo --num_samples 64 --output_dir runs/data
    """
    from functools import partial

    from hf_dparallel.data.folder import FILTERED_NAME, write_rows
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.data.trajectories import filter_trajectories, generate_trajectories
    from hf_dparallel.demo import path_of
    from hf_dparallel.environment import join_processes

    from .loading import default_batch_size, load_model, load_prompts, load_tokenizer, read_settings, resolve_settings

    given, reward_name = read_settings(settings), None if reward == "none" else reward
    dataset = load_prompts(source, data, reward_name, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = get_reward(reward_name, dataset) if reward_name else None
    state = join_processes()
    batch_size = batch_size or default_batch_size()
    if ray_actors is None:
        model, tokenizer = load_model(**source)
        recipe = resolve_settings(model, given, tokenizer)
        rows = generate_trajectories(model, tokenizer, dataset, recipe, batch_size, output_dir, seed)
    else:
        from hf_dparallel.data.on_ray import generate_trajectories_on_ray

        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(source["model"]), source["revision"])
        load = partial(load_model, **source)
        rows = generate_trajectories_on_ray(
            load,
            dataset,
            output_dir=output_dir,
            generation_config=given,
            batch_size=batch_size,
            seed=seed,
            max_actors=ray_actors,
        )
    kept = rows if reward_function is None else filter_trajectories(rows, tokenizer, reward_function, min_reward)
    figures = None
    if state.is_main_process:
        path = Path(output_dir, FILTERED_NAME)
        write_rows(path, kept)
        figures = summarize(rows, kept, len(dataset)) | {"file": str(path)}
        echo_table(figures)
        click.echo(
            f"\nNext: hf-dparallel train {quote(source['model'])} --dataset {quote(output_dir)} --use_peft "
            "--output_dir runs/student"
        )
    # Processes that end without it may abort.
    state.destroy_process_group()
    return figures


def summarize(rows: "Dataset", kept: "Dataset", num_prompts: int) -> dict[str, Any]:
    """Returns the counts, and the mean cost of an answer."""
    from hf_dparallel.evaluation.cost import DecodingCost, mean_cost

    # An end token is the last one of an answer, and counts.
    answers: Sequence[tuple[list[int], int]] = list(zip(rows["completion_ids"], rows["nfe"], strict=True))
    cost = mean_cost([DecodingCost.of_tokens(ids, nfe, eos_token_id=()) for ids, nfe in answers])
    return {
        "num_prompts": num_prompts,
        "num_failed": num_prompts - len(rows),
        "num_kept": len(kept),
        "num_dropped": len(rows) - len(kept),
        "nfe": cost["nfe"],
        "tokens_per_forward": cost["tokens_per_forward"],
    }
