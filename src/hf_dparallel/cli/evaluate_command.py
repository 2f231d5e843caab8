# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: accuracy and cost of decoding on a dataset."""

from collections.abc import Sequence
from typing import Any

from hf_dparallel_cli.command import Flags

from ..data.rewards import REFERENCE_COLUMNS, get_reward
from ..environment import describe_hardware
from ..evaluation.decoding import evaluate_answers
from ..evaluation.rows import make_rows, metrics_with_intervals, write_evaluation
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..hashes import dataset_hash
from ..reports import results_table
from . import evaluate_tasks
from .console import make_folder, note, say
from .loading import batch_options, load_model, load_prompts, read_settings, read_sweep, resolve_settings


def run(flags: Flags) -> dict[str, Any] | None:
    """Prints accuracy, passes, tokens per pass and latency, for each setting that is tried, or results of tasks."""
    if flags.tasks:
        return evaluate_tasks.run(flags)
    recipes = recipes_to_try(read_settings(flags), flags.sweep)
    dataset = load_prompts(flags, default_split="test")
    reward_function = get_reward(flags.reward, dataset)
    model, tokenizer = load_model(flags, has_workers=True)
    make_folder(flags.output_dir)
    options = batch_options(flags)
    answerers = {
        method: Answerer(model, tokenizer, resolve_settings(model, recipe, tokenizer), seed=flags.seed, **options)
        for method, recipe in recipes.items()
    }
    measured = {
        method: {
            **metrics_with_intervals(evaluate_answers(answerer, dataset, reward_function, method)),
            # A setting that is swept makes a curve of its values.
            "curve": method.split()[0] if flags.sweep else method,
            "recipe": recipes[method].settings(),
        }
        for method, answerer in answerers.items()
    }
    report: dict[str, Any] = {
        "name": flags.adapter or flags.model,
        "dataset": flags.dataset,
        "conditions": {
            "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[flags.reward]]),
            "num_prompts": len(dataset),
            "reward": flags.reward,
            "max_new_tokens": next(iter(answerers.values())).config.max_new_tokens,
        },
        "hardware": describe_hardware(model) | options,
        "rows": make_rows(measured),
    }
    if flags.output_dir is not None:
        write_evaluation(report, flags.output_dir)
        note(f"Written to {flags.output_dir}")
    say(results_table(report["rows"]))
    return report if flags.sweep else next(iter(measured.values())) | report


def recipes_to_try(given: DiffusionGenerationConfig, sweeps: Sequence[str]) -> dict[str, DiffusionGenerationConfig]:
    """Returns the recipes to try, by name: one for each value that is swept, or else what the flags say."""
    if not sweeps:
        rule = given.commit_rule()
        return {"the model's recipe" if rule is None else f"{rule} {getattr(given, rule)}": given}
    values = [(name, value) for name, values in map(read_sweep, sweeps) for value in values]
    return {f"{name} {value}": given.updated(**{name: value}) for name, value in values}
