# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: accuracy and cost of decoding on a dataset."""

from collections.abc import Sequence
from typing import Any

from hf_dparallel_cli.flags import (
    BatchArguments,
    DatasetArguments,
    DecodingArguments,
    FolderArguments,
    LoadingArguments,
    OutputArguments,
    RewardArguments,
    SweepArguments,
)

from ..environment import describe_hardware
from ..evaluation.decoding import evaluate_answers
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..hashes import dataset_hash
from ..reports import make_rows, metrics_with_intervals, results_table, write_evaluation
from .console import make_folder, note, say, say_table, write_json
from .loading import (
    REFERENCE_COLUMNS,
    batch_options,
    get_reward,
    load_model,
    load_prompts,
    read_settings,
    read_sweep,
    resolve_settings,
)


def run(
    loading: LoadingArguments,
    data: DatasetArguments,
    reward: RewardArguments,
    batch: BatchArguments,
    decoding: DecodingArguments,
    sweeps: SweepArguments,
    folder: FolderArguments,
    output: OutputArguments,
) -> None:
    """Prints accuracy, passes, tokens per pass and latency, for each setting that is tried."""
    recipes = recipes_to_try(read_settings(decoding), sweeps.sweep)
    dataset = load_prompts(data, default_split="test")
    reward_function = get_reward(reward.reward, dataset)
    model, tokenizer = load_model(loading)
    make_folder(folder.output_dir)
    for recipe in recipes.values():
        resolve_settings(model, recipe, tokenizer)
    options = batch_options(batch)
    evaluated = {}
    for method, recipe in recipes.items():
        answerer = Answerer(model, tokenizer, recipe, seed=decoding.seed, **options)
        evaluated[method] = evaluate_answers(answerer, dataset, reward_function, method)
    measured = {
        method: {
            **metrics_with_intervals(answers),
            # A setting that is swept makes a curve of its values.
            "curve": method.split()[0] if sweeps.sweep else method,
            "recipe": recipes[method].settings(),
        }
        for method, answers in evaluated.items()
    }
    report: dict[str, Any] = {
        "name": sweeps.name or loading.adapter or loading.model,
        "dataset": data.dataset,
        "conditions": {
            "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[reward.reward]]),
            "num_prompts": len(dataset),
            "reward": reward.reward,
            "max_new_tokens": next(iter(evaluated.values())).costs[0].num_canvas_tokens,
        },
        "hardware": describe_hardware(model) | options,
        "rows": make_rows(measured),
    }
    if folder.output_dir is not None:
        write_evaluation(report, folder.output_dir)
        note(f"Written to {folder.output_dir}")
    if sweeps.sweep:
        say(results_table(report["rows"]))
        write_json(report, output.json)
        return
    (metrics,) = measured.values()
    say_table({name: value for name, value in metrics.items() if name not in ("answers", "curve", "recipe")})
    write_json(metrics | {"dataset": data.dataset}, output.json)


def recipes_to_try(given: DiffusionGenerationConfig, sweeps: Sequence[str]) -> dict[str, DiffusionGenerationConfig]:
    """Returns the recipes to try, by name: one for each value that is swept, or else what the flags say."""
    if not sweeps:
        rule = given.commit_rule()
        return {"the model's recipe" if rule is None else f"{rule} {getattr(given, rule)}": given}
    values = [(name, value) for name, values in map(read_sweep, sweeps) for value in values]
    return {f"{name} {value}": given.updated(**{name: value}) for name, value in values}
