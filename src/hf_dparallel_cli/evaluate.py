# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: measures accuracy and cost of decoding, on a dataset or on benchmarks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from . import options


tasks_options = options.grouped(
    "tasks",
    click.option("--tasks", help="Instead of a dataset, use these tasks of lm-eval, separated by commas."),
    click.option("--include_path", type=click.Path(), help="With --tasks: folder with more tasks, as YAML files."),
    click.option("--num_fewshot", type=click.IntRange(0), help="With --tasks: solved examples in each prompt."),
    click.option("--limit", type=click.FloatRange(0, min_open=True), help="With --tasks: only the first N samples."),
    click.option("--apply_chat_template", is_flag=True, help="With --tasks: apply the chat template to prompts."),
    click.option("--mc_num", type=options.COUNT, default=128, help="With --tasks: samples for a log-likelihood."),
    click.option("--confirm_run_unsafe_code", is_flag=True, help="Run programs of the model without bubblewrap, too."),
)


@click.command()
@options.model_options
@options.data_options
@options.reward_option()
@click.option("--output_dir", type=options.FOLDER, help="Folder for report.json, report.md and curves of --sweep.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="SETTING=VALUES",
    help="Values to try: entropy_threshold=0.1:1.0:0.1 (from, to, step) or denoising_steps=16,32,64. May be given "
    "several times; each makes a curve of accuracy against speed.",
)
@tasks_options
@options.batch_option
@options.settings_options
@options.seed_option
@options.json_option
def evaluate_command(
    data: dict[str, Any], reward: str, sweep: tuple[str, ...], tasks: dict[str, Any], **how: Any
) -> dict[str, Any] | None:
    """Measure accuracy and cost of decoding, on a dataset or on benchmarks.

    Prints accuracy, passes, tokens per pass and latency, for each setting that is tried, or the results of --tasks.

    Example: hf-dparallel evaluate demo-student --dataset demo --num_samples 64
    """
    if tasks["tasks"] is None:
        return evaluate_dataset(data, reward, sweep, **how)
    for option, value in (("dataset", data["dataset"]), ("sweep", sweep)):
        if value:
            raise click.UsageError(f"`{option}` and `tasks` are both given. Remove one.")
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
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.environment import describe_hardware
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.evaluation.intervals import wilson_interval
    from hf_dparallel.evaluation.rows import make_rows, write_evaluation
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.reports import results_table

    from .loading import default_batch_size, load_model, load_prompts, read_settings, read_sweep

    given = read_settings(settings)
    recipes = {
        f"{name} {value}": given.updated(**{name: value})
        for name, values in map(read_sweep, sweep)
        for value in values
    }
    if not sweep:
        rule = given.commit_rule()
        recipes = {"the model's recipe" if rule is None else f"{rule} {getattr(given, rule)}": given}
    dataset = load_prompts(source, data, reward, default_split="test")
    reward_function = get_reward(reward, dataset)
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(**source)
    batch_size = batch_size or default_batch_size()
    answerers = {method: Answerer(model, tokenizer, recipe, batch_size, seed) for method, recipe in recipes.items()}
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
        "hardware": describe_hardware(model) | {"batch_size": batch_size},
        "rows": make_rows(measured),
    }
    if output_dir is not None:
        write_evaluation(report, output_dir)
    click.echo(results_table(report["rows"]))
    return report if sweep else next(iter(measured.values())) | report


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

    given = read_settings(settings).settings()
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
    if given.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        given["do_sample"] = True
    results = runner.run(lm, names, given)
    # Processes that end without it may abort.
    state.destroy_process_group()
    if results is None:
        return None
    for kind in ("results", "groups"):
        if results.get(kind):
            click.echo(make_table(results, kind))
    scores = {name: scores_of(results, name) for name in results["results"]}
    return {"model": source["model"], "adapter": source["adapter"], "settings": given, "results": scores}
