# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: measures accuracy and cost of decoding, on a dataset or on benchmarks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hf_dparallel_rules.settings import settings_of

from .options import COUNT, FOLDER, batch_option, data_options, decoding_options, json_option, reward_option


@click.command()
@decoding_options
@data_options
@reward_option()
@click.option("--output_dir", type=FOLDER, help="Folder for report.json, report.md and curves of --sweep.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="SETTING=VALUES",
    help="Values to try: entropy_threshold=0.1:1.0:0.1 (from, to, step) or denoising_steps=16,32,64. May be given "
    "several times; each makes a curve of accuracy against speed.",
)
@click.option("--tasks", help="Instead of a dataset, use these tasks of lm-eval, separated by commas.")
@click.option("--include_path", type=click.Path(), help="With --tasks: folder with more tasks, as YAML files.")
@click.option("--num_fewshot", type=click.IntRange(0), help="With --tasks: solved examples in each prompt.")
@click.option("--limit", type=click.FloatRange(0, min_open=True), help="With --tasks: only the first N samples.")
@click.option("--apply_chat_template", is_flag=True, help="With --tasks: apply the chat template to prompts.")
@click.option("--mc_num", type=COUNT, default=128, help="With --tasks: samples for a log-likelihood.")
@click.option("--confirm_run_unsafe_code", is_flag=True, help="Run programs of the model without bubblewrap, too.")
@batch_option
@json_option
def evaluate_command(**options: Any) -> dict[str, Any] | None:
    """Measure accuracy and cost of decoding, on a dataset or on benchmarks.

    Prints accuracy, passes, tokens per pass and latency, for each setting that is tried, or the results of --tasks.

    Example: hf-dparallel evaluate demo-student --dataset demo --num_samples 64
    """
    if options["tasks"] is None:
        return evaluate_dataset(**options)
    for name in ("dataset", "sweep"):
        if options[name]:
            raise click.UsageError(f"`{name}` and `tasks` are both given. Remove one.")
    return evaluate_tasks(options)


def evaluate_dataset(reward: str, output_dir: str | None, sweep: Sequence[str], **options: Any) -> dict[str, Any]:
    """Prints a row of figures for each setting that is tried, and returns the report of them."""
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.environment import describe_hardware
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.evaluation.intervals import wilson_interval
    from hf_dparallel.evaluation.rows import make_rows, write_evaluation
    from hf_dparallel.reports import results_table

    from .loading import load_answerer, load_prompts, read_sweep

    sweeps = [read_sweep(text) for text in sweep]
    dataset = load_prompts(options, reward, default_split="test")
    reward_function = get_reward(reward, dataset)
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    answerer = load_answerer(options)
    # Wrong values are found here, before hours of decoding.
    answerers = {f"{name} {x}": answerer.with_(**{name: x}) for name, values in sweeps for x in values}
    if not sweep:
        rule = str(answerer.config.commit_rule())
        answerers = {f"{rule} {getattr(answerer.config, rule)}": answerer}
    measured = {}
    for method, tried in answerers.items():
        figures = evaluate_answers(tried, dataset, reward_function, method).metrics()
        interval = list(wilson_interval(figures["accuracy"], len(dataset)))
        # A setting that is swept makes a curve of its values.
        about = {"curve": method.split()[0] if sweep else method, "recipe": tried.config.non_defaults()}
        measured[method] = {**figures, "accuracy_interval": interval, **about}
    report: dict[str, Any] = {
        "name": options["adapter"] or options["model"],
        "dataset": options["dataset"],
        "hardware": describe_hardware(answerer.model) | {"batch_size": answerer.batch_size},
        "rows": make_rows(measured),
    }
    if output_dir is not None:
        write_evaluation(report, output_dir)
    click.echo(results_table(report["rows"]))
    return report if sweep else next(iter(measured.values())) | report


def evaluate_tasks(options: dict[str, Any]) -> dict[str, Any] | None:
    """Prints scores and costs, and writes results and samples."""
    from hf_dparallel.environment import join_processes, require

    from .loading import load_answerer, read_settings

    settings = read_settings(options).settings()
    require("evaluate --tasks", "lm_eval")
    from lm_eval.utils import make_table

    from hf_dparallel.evaluation.lm_eval.model import DiffusionHarnessLM
    from hf_dparallel.evaluation.lm_eval.run import TaskRunner, scores_of

    state = join_processes()
    names = ("include_path", "confirm_run_unsafe_code", "output_dir", "num_fewshot", "limit", "apply_chat_template")
    how = {name: options[name] for name in names}
    runner = TaskRunner(options["model"], fewshot_as_multiturn=options["apply_chat_template"], **how)
    tasks = runner.load([name for name in options["tasks"].split(",") if name])
    answerer = load_answerer(options)
    how = {"batch_size": answerer.batch_size, "mc_num": options["mc_num"]}
    # The harness renders chats before it asks the model.
    how |= {name: settings.pop(name, None) for name in settings_of("chat")}
    lm = DiffusionHarnessLM(answerer.model, tokenizer=answerer.tokenizer, seed=answerer.seed, **how)
    # Most tasks ask for the likeliest tokens.
    results = runner.run(lm, tasks, settings | ({"do_sample": True} if settings.get("temperature") else {}))
    # Processes that end without it may abort.
    state.destroy_process_group()
    if results is None:
        return None
    for kind in ("results", "groups"):
        if results.get(kind):
            click.echo(make_table(results, kind))
    scores = {name: scores_of(results, name) for name in results["results"]}
    return {"model": options["model"], "adapter": options["adapter"], "settings": settings, "results": scores}
