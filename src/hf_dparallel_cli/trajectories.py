# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: lets a teacher answer the prompts of a dataset, and keeps the right answers."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from .console import echo_table, note
from .options import (
    COUNT,
    REWARDS,
    RIGHT,
    batch_options,
    common_options,
    data_options,
    model_options,
    output_dir_option,
    seed_option,
    settings_options,
)


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from hf_dparallel.data.rewards import RewardFunction


@click.command()
@model_options
@data_options
@output_dir_option(
    "Folder for the trajectories: shards with all rows, and filtered.parquet with the kept rows. The same command "
    "continues a run that was killed.",
    required=True,
)
@click.option(
    "--reward",
    type=click.Choice((*REWARDS, "none")),
    default="numeric",
    help=f"{RIGHT} 'none': keep all.",
)
@click.option("--min_reward", type=float, default=1.0, help="Keep answers with at least this reward.")
@click.option(
    "--ray_actors",
    type=COUNT,
    help="Decode on a Ray cluster (needs ray) with up to this many actors, each with a model.",
)
@batch_options
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
    batches: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any] | None:
    """Let a teacher answer the prompts of a dataset, and keep the correct answers.

    Example: hf-dparallel trajectories demo --dataset demo --num_samples 64 --output_dir runs/data
    """
    from functools import partial

    from hf_dparallel.data.folder import FILTERED_NAME, write_rows
    from hf_dparallel.data.rewards import REFERENCE_COLUMNS, get_reward
    from hf_dparallel.data.trajectories import generate_trajectories
    from hf_dparallel.demo import path_of
    from hf_dparallel.environment import join_processes

    from .loading import batch_arguments, load_model, load_prompts, load_tokenizer, read_settings, resolve_settings

    given, reward_name = read_settings(settings), None if reward == "none" else reward
    dataset = load_prompts(source, data, reward_name, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = get_reward(reward_name, dataset) if reward_name else None
    state = join_processes()
    batches = batch_arguments(**batches)
    if ray_actors is None:
        model, tokenizer = load_model(**source, has_workers=True)
        recipe = resolve_settings(model, given, tokenizer)
        rows = generate_trajectories(model, tokenizer, dataset, recipe, output_dir=output_dir, seed=seed, **batches)
    else:
        from hf_dparallel.data.on_ray import generate_trajectories_on_ray

        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(source["model"]), source["revision"])
        load = partial(load_model, **source, has_workers=True)
        rows = generate_trajectories_on_ray(
            load,
            dataset,
            output_dir=output_dir,
            generation_config=given,
            batch_size=batches["batch_size"],
            seed=seed,
            max_actors=ray_actors,
        )
    kept, dropped = split_by_reward(rows, tokenizer, reward_function, min_reward)
    figures = None
    if state.is_main_process:
        if reward_function is not None and len(dropped):
            note(describe_dropped(dropped, tokenizer, reward_function, REFERENCE_COLUMNS[reward]))
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


def split_by_reward(
    rows: "Dataset", tokenizer: "PreTrainedTokenizerBase", reward_function: "RewardFunction | None", min_reward: float
) -> "tuple[Dataset, Dataset]":
    """Returns the rows that are kept, and at most two of the others."""
    from hf_dparallel.data.trajectories import filter_trajectories

    if reward_function is None:
        return rows, rows.select([])
    numbered = rows.add_column("_row", list(range(len(rows))))
    kept = filter_trajectories(numbered, tokenizer, reward_function, min_reward)
    dropped = sorted(set(numbered["_row"]) - set(kept["_row"]))
    return kept.remove_columns("_row"), rows.select(dropped[:2])


def describe_dropped(
    rows: "Dataset", tokenizer: "PreTrainedTokenizerBase", reward_function: "RewardFunction", column: str
) -> str:
    """Shows some of the answers that were dropped, and why."""
    from textwrap import shorten

    from hf_dparallel.data.rewards import score_completions
    from hf_dparallel.terminal import printable

    lines = ["Dropped, for example:"]
    for row, reward in zip(rows, score_completions(rows, tokenizer, reward_function), strict=True):
        texts = (tokenizer.decode(row[ids], skip_special_tokens=True) for ids in ("prompt_ids", "completion_ids"))
        prompt, answer = (shorten(printable(text), 300) for text in texts)
        right = shorten(printable(str(row[column])), 100)
        lines += [f"  {prompt}", f"    answered: {answer or 'nothing'}", f"    {column}: {right} (reward {reward})"]
    return "\n".join(lines)


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
