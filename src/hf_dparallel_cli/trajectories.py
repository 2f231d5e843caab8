# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: lets a teacher answer the prompts of a dataset, and keeps the right answers."""

from pathlib import Path
from shlex import quote
from typing import Any

import click

from .options import COUNT, OUTPUT_FOLDER, batch_option, data_options, decoding_options, reward_option


@click.command()
@decoding_options
@data_options
@click.option("--output_dir", type=OUTPUT_FOLDER, required=True, help="Folder for all rows and filtered.parquet.")
@reward_option
@click.option("--ray_actors", type=COUNT, help="Decode on a Ray cluster, with at most N actors.")
@batch_option
def trajectories_command(output_dir: str, reward: str, ray_actors: int | None, **options: Any) -> None:
    """Let a teacher answer the prompts of a dataset, and keep the right answers.

    The same command continues a run that was killed. Rewards: 'none' keeps all answers.

    Example: hf-dparallel trajectories demo --dataset demo --num_samples 64 --output_dir runs/data
    """
    from functools import partial
    from statistics import fmean

    from hf_dparallel.data.folder import FILTERED_NAME, write_rows
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.data.trajectories import filter_trajectories, generate_trajectories
    from hf_dparallel.demo import path_of
    from hf_dparallel.environment import join_processes

    from .loading import load_model, load_prompts, load_tokenizer, read_settings

    settings = read_settings(options)
    dataset = load_prompts(options, reward, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = None if reward == "none" else get_reward(reward, dataset)

    state = join_processes()
    how: dict[str, Any] = {
        "generation_config": settings,
        "output_dir": output_dir,
        "batch_size": options["batch_size"],
        "seed": options["seed"],
    }
    is_autoregressive = options["causal_past"]
    if ray_actors is None:
        teacher, tokenizer = load_model(options)
        is_autoregressive = teacher.is_autoregressive
        rows = generate_trajectories(teacher, tokenizer, dataset, **how)
    else:
        from hf_dparallel.data.on_ray import generate_trajectories_on_ray

        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(options["model"]), options["revision"] or "main")
        rows = generate_trajectories_on_ray(partial(load_model, options), dataset, max_actors=ray_actors, **how)

    path = Path(output_dir, FILTERED_NAME)
    if state.is_main_process:
        path.unlink(missing_ok=True)  # of another reward
    kept = rows
    if reward_function is not None:
        kept = filter_trajectories(rows, tokenizer, reward_function, thought_markers=settings.thought_markers)
    if state.is_main_process:
        write_rows(path, kept)
        click.echo(
            f"{len(kept)} of {len(dataset)} answers were kept, {len(dataset) - len(rows)} prompts failed. "
            f"{fmean(rows['nfe']):.1f} passes for each answer. Written to {path}."
        )
        flags = training_flags(is_autoregressive, is_converted=not options["causal_past"])
        click.echo(f"\nNext: hf-dparallel train {quote(options['model'])} --dataset {quote(output_dir)} {flags}")
    # Processes that end without it may abort.
    state.destroy_process_group()


def training_flags(is_autoregressive: bool, is_converted: bool) -> str:
    """Returns flags of the training that follows: for exact decoding the preset, without which it would be in vain."""
    import torch

    if not is_autoregressive:
        return "--use_peft --output_dir runs/student"

    flags = "--config examples/exact/student.yaml"
    if is_converted:
        flags += " --causal_past false"
    if not torch.accelerator.is_available():
        flags += " --use_cpu --bf16 false"
    return flags
