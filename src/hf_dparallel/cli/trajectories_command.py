# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: a teacher's answers to the prompts of a dataset, of which the right ones are kept."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from textwrap import shorten
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from hf_dparallel_cli.command import Flags

from ..data.folder import FILTERED_NAME, write_rows
from ..data.on_ray import generate_trajectories_on_ray
from ..data.rewards import REFERENCE_COLUMNS, get_reward, score_completions
from ..data.trajectories import filter_trajectories, generate_trajectories
from ..demo import path_of
from ..environment import join_processes
from ..evaluation.cost import DecodingCost, mean_cost
from ..terminal import printable
from .console import note, say, say_table
from .loading import batch_options, load_model, load_prompts, load_tokenizer, read_settings, resolve_settings


def run(flags: Flags) -> dict[str, Any] | None:
    """Writes the trajectories that are kept, and prints how many it keeps."""
    given = read_settings(flags)
    dataset = load_prompts(flags, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = None if flags.reward == "none" else get_reward(flags.reward, dataset)
    state = join_processes()
    settings: dict[str, Any] = {"output_dir": flags.output_dir, "seed": flags.seed, **batch_options(flags)}
    if flags.ray_actors is None:
        model, tokenizer = load_model(flags, has_workers=True)
        recipe = resolve_settings(model, given, tokenizer)
        rows = kept = generate_trajectories(model, tokenizer, dataset, recipe, **settings)
    else:
        if state.num_processes > 1:
            raise ValueError("`ray_actors` has Ray start the processes. Run the command without torchrun.")
        tokenizer = load_tokenizer(path_of(flags.model), flags.revision)
        del settings["num_workers"]
        rows = kept = generate_trajectories_on_ray(
            partial(load_model, flags, has_workers=True),
            dataset,
            generation_config=given,
            max_actors=flags.ray_actors,
            gpus_per_actor=flags.ray_gpus_per_actor,
            **settings,
        )
    dropped: list[int] = []
    if reward_function is not None:
        numbered = rows.add_column("_row", list(range(len(rows))))
        kept = filter_trajectories(numbered, tokenizer, reward_function, flags.min_reward)
        dropped = sorted(set(numbered["_row"]) - set(kept["_row"]))
        kept = kept.remove_columns("_row")
    figures = None
    if state.is_main_process:
        if reward_function is not None and dropped:
            examples = rows.select(dropped[:2])
            rewards = score_completions(examples, tokenizer, reward_function)
            note(describe_dropped(examples, rewards, tokenizer, REFERENCE_COLUMNS[flags.reward]))
        path = Path(flags.output_dir, FILTERED_NAME)
        write_rows(path, kept)
        figures = summarize(rows, kept, len(dataset)) | {"file": str(path)}
        say_table(figures)
        model, data = quote(flags.model), quote(flags.output_dir)
        say(f"\nNext: hf-dparallel train --model {model} --dataset {data} --use_peft --output_dir runs/student")
    # Processes that end without it may abort.
    state.destroy_process_group()
    return figures


def describe_dropped(
    rows: datasets.Dataset, rewards: Sequence[float | None], tokenizer: PreTrainedTokenizerBase, column: str
) -> str:
    """Shows some of the answers that were dropped, and why."""
    lines = ["Dropped, for example:"]
    for row, reward in zip(rows, rewards, strict=True):
        texts = (tokenizer.decode(row[ids], skip_special_tokens=True) for ids in ("prompt_ids", "completion_ids"))
        prompt, answer = (shorten(printable(text), 300) for text in texts)
        right = shorten(printable(str(row[column])), 100)
        lines += [f"  {prompt}", f"    answered: {answer or 'nothing'}", f"    {column}: {right} (reward {reward})"]
    return "\n".join(lines)


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
