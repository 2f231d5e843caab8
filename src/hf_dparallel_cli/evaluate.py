# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: measures accuracy and cost of decoding, on a dataset or on benchmarks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .console import make_folder, note
from .options import (
    COUNT,
    batch_options,
    common_options,
    data_options,
    grouped,
    model_options,
    output_dir_option,
    reward_option,
    seed_option,
    settings_options,
)


if TYPE_CHECKING:
    from hf_dparallel.generation.configuration import DiffusionGenerationConfig


tasks_options = grouped(
    "tasks",
    {
        "tasks": click.option(
            "--tasks",
            multiple=True,
            help="Evaluate on these tasks of the lm-evaluation-harness, separated by commas, instead of on a dataset.",
        ),
        "include_path": click.option(
            "--include_path", type=click.Path(), help="Folder with more tasks, as YAML files."
        ),
        "num_fewshot": click.option(
            "--num_fewshot", type=click.IntRange(0), help="Solved examples in each prompt of a task."
        ),
        "limit": click.option(
            "--limit",
            type=click.FloatRange(0, min_open=True),
            help="Use only the first N samples of each task; below 1, this fraction of them.",
        ),
        "apply_chat_template": click.option(
            "--apply_chat_template", is_flag=True, help="Apply the chat template to the prompts of tasks."
        ),
        "system_instruction": click.option(
            "--system_instruction", help="Text at the beginning of each prompt of a task."
        ),
        "fewshot_as_multiturn": click.option(
            "--fewshot_as_multiturn/--no_fewshot_as_multiturn",
            default=None,
            help="Give solved examples as turns of the chat. By default with a chat template.",
        ),
        "gen_kwargs": click.option(
            "--gen_kwargs", help="More settings for tasks: name=value,... They override tasks and options."
        ),
        "mc_num": click.option("--mc_num", type=COUNT, default=128, help="Masked samples for each log-likelihood."),
        "check_greedy": click.option(
            "--check_greedy",
            is_flag=True,
            help="For log-likelihoods, decode to find out whether an answer is the greedy one.",
        ),
        "confirm_run_unsafe_code": click.option(
            "--confirm_run_unsafe_code",
            is_flag=True,
            help="Let tasks run programs that the model writes without bubblewrap, too.",
        ),
    },
)


@click.command()
@model_options
@data_options
@reward_option
@output_dir_option("Folder for report.json, report.md and, with --sweep, curves.png.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="SETTING=VALUES",
    help="Setting to try at several values, one curve of accuracy against speed: entropy_threshold=0.1:1.0:0.1 "
    "(from, to, step) or denoising_steps=16,32,64. May be given several times.",
)
@tasks_options
@batch_options
@settings_options
@seed_option
@common_options
def evaluate_command(
    source: dict[str, Any],
    data: dict[str, Any],
    reward: str,
    output_dir: str | None,
    sweep: tuple[str, ...],
    tasks: dict[str, Any],
    batches: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any] | None:
    """Measure accuracy and cost of decoding, on a dataset or on benchmarks.

    Prints accuracy, passes, tokens per pass and latency, for each setting that is tried, or the results of --tasks.

    Example: hf-dparallel evaluate demo-student --dataset demo --num_samples 64
    """
    if not tasks["tasks"]:
        return evaluate_dataset(source, data, reward, output_dir, sweep, batches, settings, seed)
    given = [name for name, value in (("dataset", data["dataset"]), ("sweep", sweep)) if value]
    if given:
        raise click.UsageError(f"`{given[0]}` and `tasks` are both given. Remove one.")
    return evaluate_tasks(source, output_dir, batches["batch_size"], settings, seed, **tasks)


def evaluate_dataset(
    source: dict[str, Any],
    data: dict[str, Any],
    reward: str,
    output_dir: str | None,
    sweep: Sequence[str],
    batches: dict[str, Any],
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Prints a row of figures for each setting that is tried, and returns the report of them."""
    from hf_dparallel.data.rewards import REFERENCE_COLUMNS, get_reward
    from hf_dparallel.environment import describe_hardware
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.evaluation.rows import make_rows, metrics_with_intervals, write_evaluation
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.hashes import dataset_hash
    from hf_dparallel.reports import results_table

    from .loading import batch_arguments, load_model, load_prompts, read_settings, resolve_settings

    recipes = recipes_to_try(read_settings(settings), sweep)
    dataset = load_prompts(source, data, reward, default_split="test")
    reward_function = get_reward(reward, dataset)
    make_folder(output_dir)
    model, tokenizer = load_model(**source, has_workers=True)
    batches = batch_arguments(**batches)
    answerers = {
        method: Answerer(model, tokenizer, resolve_settings(model, recipe, tokenizer), seed=seed, **batches)
        for method, recipe in recipes.items()
    }
    measured = {
        method: {
            **metrics_with_intervals(evaluate_answers(answerer, dataset, reward_function, method)),
            # A setting that is swept makes a curve of its values.
            "curve": method.split()[0] if sweep else method,
            "recipe": recipes[method].settings(),
        }
        for method, answerer in answerers.items()
    }
    report: dict[str, Any] = {
        "name": source["adapter"] or source["model"],
        "dataset": data["dataset"],
        "conditions": {
            "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[reward]]),
            "num_prompts": len(dataset),
            "reward": reward,
            "max_new_tokens": next(iter(answerers.values())).config.max_new_tokens,
        },
        "hardware": describe_hardware(model) | batches,
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
    source: dict[str, Any],
    output_dir: str | None,
    batch_size: int | None,
    settings: dict[str, Any],
    seed: int,
    *,
    tasks: Sequence[str],
    include_path: str | None,
    confirm_run_unsafe_code: bool,
    gen_kwargs: str | None,
    mc_num: int,
    check_greedy: bool,
    **options: Any,
) -> dict[str, Any] | None:
    """Prints scores and costs, and writes results and samples. `options` say how the harness makes prompts."""
    from hf_dparallel.environment import join_processes, require

    from .loading import default_batch_size, load_model, read_settings

    read_settings(settings)
    names = [name for text in tasks for name in text.split(",") if name]
    if not names:
        raise click.UsageError("`tasks` must have a name, if it is given.")
    require("evaluate --tasks", "lm_eval")
    from lm_eval.utils import make_table

    from hf_dparallel.harness.model import DiffusionHarnessLM
    from hf_dparallel.harness.run import TaskRunner, scores_of

    settings = settings_of_tasks(settings, gen_kwargs)
    state = join_processes()
    if options["fewshot_as_multiturn"] is None:
        options["fewshot_as_multiturn"] = options["apply_chat_template"]
    runner = TaskRunner(source["model"], include_path, confirm_run_unsafe_code, output_dir, **options)
    names = runner.load(names)
    model, tokenizer = load_model(**source)
    lm = DiffusionHarnessLM(
        model,
        tokenizer=tokenizer,
        mc_num=mc_num,
        check_greedy=check_greedy,
        seed=seed,
        batch_size=batch_size or default_batch_size(),
    )
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


def settings_of_tasks(settings: dict[str, Any], gen_kwargs: str | None) -> dict[str, Any]:
    """Returns the decoding settings of all tasks; refuses an unknown one, or one out of range."""
    from lm_eval.utils import simple_parse_args_string

    from hf_dparallel.harness.request_settings import check_gen_kwargs

    settings = settings | simple_parse_args_string(gen_kwargs)
    if settings.get("temperature"):
        # Most tasks ask for the likeliest tokens.
        settings.setdefault("do_sample", True)
    check_gen_kwargs(settings)
    return settings
