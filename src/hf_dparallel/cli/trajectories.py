# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel trajectories`: a teacher's answers to the prompts of a dataset, the right ones of which are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from ..data.trajectories import filter_trajectories, generate_trajectories
from ..data.trajectory_folder import FILTERED_NAME, write_filtered
from ..environment import join_processes
from ..evaluation.cost import DecodingCost, mean_cost
from .arguments import (
    BatchArguments,
    CommandParser,
    DatasetArguments,
    DecodingArguments,
    LoadingArguments,
    OutputArguments,
)
from .console import say_table, write_json
from .loading import get_reward, load_model, load_prompts, resolve_settings


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


def make_parser() -> CommandParser:
    """The arguments of the command."""
    return CommandParser(
        "trajectories",
        [LoadingArguments, DatasetArguments, TrajectoryArguments, BatchArguments, DecodingArguments, OutputArguments],
        positionals=["model"],
    )


def run(argv: Sequence[str]) -> None:
    """Writes the trajectories that are kept, and prints how many it keeps."""
    loading, data, arguments, batch, decoding, output = make_parser().parse(argv)
    dataset = load_prompts(data, default_split="train")
    # Looked up before the decoding, which takes hours.
    reward_function = None if arguments.reward == "none" else get_reward(arguments.reward, dataset)
    state = join_processes()
    model, tokenizer = load_model(loading)
    rows = kept = generate_trajectories(
        model,
        tokenizer,
        dataset,
        resolve_settings(model, decoding.to_generation_config(), tokenizer),
        batch_size=batch.batch_size,
        output_dir=arguments.output_dir,
        seed=decoding.seed,
        num_workers=batch.num_workers,
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
