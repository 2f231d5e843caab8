# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: measures accuracy and cost of decoding on a dataset."""

from collections.abc import Sequence
from typing import Any

import click

from .options import OUTPUT_FOLDER, batch_option, data_options, decoding_options, json_option, reward_option


@click.command()
@decoding_options
@data_options
@reward_option
@click.option("--output_dir", type=OUTPUT_FOLDER, help="Folder for report.json, report.md and curves of --sweep.")
@click.option(
    "--sweep",
    multiple=True,
    metavar="SETTING=VALUES",
    help="Values to try, such as denoising_steps=16,32,64. May be given several times; each makes a curve of accuracy "
    "against speed.",
)
@batch_option
@json_option
def evaluate_command(reward: str, output_dir: str | None, sweep: Sequence[str], **options: Any) -> dict[str, Any]:
    """Measure accuracy and cost of decoding on a dataset.

    Prints accuracy, passes, tokens per pass and latency, for each setting that is tried. In float32 an adapter is
    merged first; half precision would round the weights. For benchmarks of lm-eval:
    python -m hf_dparallel.evaluation.lm_eval --model hf-dparallel

    Example: hf-dparallel evaluate demo-student --dataset demo --num_samples 64
    """
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.environment import describe_hardware
    from hf_dparallel.evaluation.calibration import parse_sweep
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.evaluation.intervals import wilson_interval
    from hf_dparallel.evaluation.rows import make_rows, write_evaluation
    from hf_dparallel.reports import results_table

    from .loading import load_answerer, load_prompts, merge_adapter

    sweeps = [parse_sweep(text) for text in sweep]
    dataset = load_prompts(options, reward, default_split="test")
    reward_function = get_reward(reward, dataset)
    answerer = load_answerer(options)
    merge_adapter(answerer.model)
    # Wrong values are found here, before hours of decoding.
    answerers = {f"{name} {x}": answerer.with_(**{name: x}) for name, values in sweeps for x in values}
    if not sweep:
        rule = str(answerer.config.commit_rule())
        answerers = {f"{rule} {getattr(answerer.config, rule)}": answerer}

    measured = {}
    for method, tried in answerers.items():
        evaluation = evaluate_answers(tried, dataset, reward_function, method)
        figures: dict[str, Any] = evaluation.metrics()
        if evaluation.acceptance:
            figures["acceptance"] = evaluation.acceptance
        if reward == "none":
            del figures["accuracy"]
        else:
            figures["accuracy_interval"] = list(wilson_interval(figures["accuracy"], len(dataset)))
        # A setting that is swept makes a curve of its values.
        about = {"curve": method.split()[0] if sweep else method, "recipe": tried.config.non_defaults()}
        measured[method] = {**figures, **about}

    report: dict[str, Any] = {
        "name": options["adapter"] or options["model"],
        "dataset": options["dataset"],
        "hardware": describe_hardware(answerer.model) | {"batch_size": answerer.batch_size},
        "rows": make_rows(measured),
    }
    if output_dir is not None:
        write_evaluation(report, output_dir)
    click.echo(results_table(report["rows"]))
    if len(measured) > 1:
        click.echo("\nThe speed-up is that against the first row.")
    return report if sweep else next(iter(measured.values())) | report
