# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: measures accuracy and cost of decoding, on a dataset or on benchmarks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .console import make_folder, note
from .options import (
    COUNT,
    batch_option,
    common_options,
    data_options,
    grouped,
    model_options,
    reward_option,
    seed_option,
    settings_options,
)


if TYPE_CHECKING:
    from hf_dparallel.generation.configuration import DiffusionGenerationConfig

tasks_options = grouped(
    "tasks",
    click.option("--tasks", help="Instead of a dataset, use these tasks of lm-eval, separated by commas."),
    click.option("--include_path", type=click.Path(), help="With --tasks: folder with more tasks, as YAML files."),
    click.option("--num_fewshot", type=click.IntRange(0), help="With --tasks: solved examples in each prompt."),
    click.option("--limit", type=click.FloatRange(0, min_open=True), help="With --tasks: only the first N samples."),
    click.option("--apply_chat_template", is_flag=True, help="With --tasks: apply the chat template to prompts."),
    click.option("--mc_num", type=COUNT, default=128, help="With --tasks: samples for a log-likelihood."),
    click.option("--confirm_run_unsafe_code", is_flag=True, help="Run programs of the model without bubblewrap, too."),
)


@click.command()
@model_options
@data_options
@reward_option()
@click.option("--output_dir", type=click.Path(), help="Folder for report.json, report.md and curves of --sweep.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="SETTING=VALUES",
    help="Values to try: entropy_threshold=0.1:1.0:0.1 (from, to, step) or denoising_steps=16,32,64. May be given "
    "several times; each makes a curve of accuracy against speed.",
)
@tasks_options
@batch_option
@settings_options
@seed_option
@common_options
def evaluate_command(
    data: dict[str, Any], reward: str, sweep: tuple[str, ...], tasks: dict[str, Any], **how: Any
) -> dict[str, Any] | None:
    """Measure accuracy and cost of decoding, on a dataset or on benchmarks.

    Prints accuracy, passes, tokens per pass and latency, for each setting that is tried, or the results of --tasks.

    Example: hf-dparallel evaluate demo-student --dataset demo --num_samples 64
    """
    if tasks["tasks"] is None:
        return evaluate_dataset(data, reward, sweep, **how)
    given = [name for name, value in (("dataset", data["dataset"]), ("sweep", sweep)) if value]
    if given:
        raise click.UsageError(f"`{given[0]}` and `tasks` are both given. Remove one.")
    return evaluate_tasks(**tasks, **how)


def evaluate_dataset(
    data: dict[str, Any],
    reward: str,
    sweep: Sequence[str],
    source: dict[str, Any],
    output_dir: str | None,
    batch_size: int | None,
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Prints a row of figures for each setting that is tried, and returns the report of them."""
    from hf_dparallel.data.rewards import REFERENCE_COLUMNS, get_reward
    from hf_dparallel.environment import describe_hardware
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.evaluation.intervals import wilson_interval
    from hf_dparallel.evaluation.rows import make_rows, write_evaluation
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.hashes import dataset_hash
    from hf_dparallel.reports import results_table

    from .loading import default_batch_size, load_model, load_prompts, read_settings, resolve_settings

    recipes = recipes_to_try(read_settings(settings), sweep)
    dataset = load_prompts(source, data, reward, default_split="test")
    reward_function = get_reward(reward, dataset)
    make_folder(output_dir)
    model, tokenizer = load_model(**source)
    batch_size = batch_size or default_batch_size()
    answerers = {
        method: Answerer(model, tokenizer, resolve_settings(model, recipe, tokenizer), batch_size, seed)
        for method, recipe in recipes.items()
    }
    measured = {}
    for method, answerer in answerers.items():
        figures = evaluate_answers(answerer, dataset, reward_function, method).metrics()
        interval = list(wilson_interval(figures["accuracy"], len(dataset)))
        # A setting that is swept makes a curve of its values.
        about = {"curve": method.split()[0] if sweep else method, "recipe": recipes[method].settings()}
        measured[method] = {**figures, "accuracy_interval": interval, **about}
    report: dict[str, Any] = {
        "name": source["adapter"] or source["model"],
        "dataset": data["dataset"],
        "conditions": {
            "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[reward]]),
            "num_prompts": len(dataset),
            "reward": reward,
            "max_new_tokens": next(iter(answerers.values())).config.max_new_tokens,
        },
        "hardware": describe_hardware(model) | {"batch_size": batch_size},
        "rows": make_rows(measured),
    }
    if output_dir is not None:
        write_evaluation(report, output_dir)
        note(f"Written to {output_dir}")
    click.echo(results_table(report["rows"]))
    return report if sweep else next(iter(measured.values())) | report


def recipes_to_try(
    given: "DiffusionGenerationConfig", sweeps: Sequence[str]
) -> "dict[str, DiffusionGenerationConfig]":
    """Returns the recipes to try, by name: one for each value that is swept, or else the given settings."""
    from .loading import read_sweep

    if not sweeps:
        rule = given.commit_rule()
        return {"the model's recipe" if rule is None else f"{rule} {getattr(given, rule)}": given}
    values = [(name, value) for name, values in map(read_sweep, sweeps) for value in values]
    return {f"{name} {value}": given.updated(**{name: value}) for name, value in values}


def evaluate_tasks(
    tasks: str,
    include_path: str | None,
    confirm_run_unsafe_code: bool,
    mc_num: int,
    source: dict[str, Any],
    output_dir: str | None,
    batch_size: int | None,
    settings: dict[str, Any],
    seed: int,
    **options: Any,
) -> dict[str, Any] | None:
    """Prints scores and costs, and writes results and samples. `options` say how lm-eval makes prompts."""
    from hf_dparallel.environment import join_processes, require

    from .loading import default_batch_size, load_model, read_settings

    read_settings(settings)
    require("evaluate --tasks", "lm_eval")
    from lm_eval.utils import make_table

    from hf_dparallel.evaluation.lm_eval.model import DiffusionHarnessLM
    from hf_dparallel.evaluation.lm_eval.run import TaskRunner, scores_of

    state = join_processes()
    options["fewshot_as_multiturn"] = options["apply_chat_template"]
    runner = TaskRunner(source["model"], include_path, confirm_run_unsafe_code, output_dir, **options)
    names = runner.load([name for name in tasks.split(",") if name])
    model, tokenizer = load_model(**source)
    size = batch_size or default_batch_size()
    lm = DiffusionHarnessLM(model, tokenizer=tokenizer, mc_num=mc_num, seed=seed, batch_size=size)
    if settings.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        settings["do_sample"] = True
    results = runner.run(lm, names, settings)
    # Processes that end without it may abort.
    state.destroy_process_group()
    if results is None:
        return None
    click.echo(make_table(results))
    if results.get("groups"):
        click.echo(make_table(results, "groups"))
    if output_dir is not None:
        note(f"Written to {output_dir}")
    scores = {name: scores_of(results, name) for name in results["results"]}
    return {"model": source["model"], "adapter": source["adapter"], "settings": settings, "results": scores}
