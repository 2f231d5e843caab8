# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel calibrate`: finds the fastest decoding settings that keep the accuracy, the recipe of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import OUTPUT_FOLDER, batch_option, data_options, decoding_options, json_option, reward_option


if TYPE_CHECKING:
    from hf_dparallel.evaluation.decoding import Evaluation

_SWEEP = "entropy_threshold=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0"
_FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@decoding_options
@data_options
@reward_option
@click.option("--output_dir", type=OUTPUT_FOLDER, required=True, help="Folder for the recipe, such as the adapter's.")
@click.option("--max_accuracy_drop", type=_FRACTION, default=0.01, help="Largest loss of accuracy; 0.01 is a point.")
@click.option("--confidence", type=_FRACTION, default=0.9, help="Probability of staying within that loss.")
@click.option("--sweep", default=_SWEEP, metavar="SETTING=VALUES", help="Values to try.")
@batch_option
@json_option
def calibrate_command(
    reward: str, output_dir: str, sweep: str, max_accuracy_drop: float, confidence: float, **options: Any
) -> dict[str, Any]:
    """Find the fastest decoding settings that keep the accuracy of one token per pass.

    All values of --sweep are tried on one half of the prompts, and the promising ones confirmed on the other half.

    Example: hf-dparallel calibrate demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe
    """
    from dataclasses import replace

    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.evaluation.calibration import calibrate, check_num_prompts, parse_sweep
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.generation.configuration import recipe_of

    from .loading import load_answerer, load_prompts

    setting, values = parse_sweep(sweep)
    promise = {"max_accuracy_drop": max_accuracy_drop, "confidence": confidence}
    dataset = load_prompts(options, reward, default_split="train").shuffle(options["seed"]).flatten_indices()
    reward_function = get_reward(reward, dataset)
    half = len(dataset) // 2
    splits = {"calibration": dataset.select(range(half)), "confirmation": dataset.select(range(half, len(dataset)))}
    answerer = load_answerer({**options, setting: values[0]})
    # Exact decoding changes no answer, so any number of prompts confirms that.
    is_exact = bool(answerer.config.exact)
    if reward == "none" and not is_exact:
        raise click.UsageError("--reward none is for exact decoding, where all settings give the same answers.")
    if not is_exact:
        check_num_prompts(half, **promise)
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    # Wrong values are found here, before hours of decoding.
    answerers: dict[Any, Any] = {value: answerer.with_(**{setting: value}) for value in values}
    original = answerers[values[0]].config.one_token_per_pass()
    answerers[None] = replace(answerer, generation_config=original)

    def evaluate(split: str, tried: Mapping[str, Any]) -> "Evaluation":
        value = tried.get(setting)
        name = f"{split}, {setting} {value}" if tried else f"{split}, one token per pass"
        return evaluate_answers(answerers[value], splits[split], reward_function, name)

    candidates = [{setting: value} for value in values]
    best, trials = calibrate(evaluate, candidates, {}, max_accuracy_drop, 0.0 if is_exact else confidence)
    for trial in trials:
        lost = (f"{100 * trial.accuracy_drop[split]:+.1f} points (p = {p:.3f})" for split, p in trial.p_value.items())
        click.echo(
            f"{setting} {trial.settings[setting]}: {trial.nfe:.1f} passes, accuracy lost: {', then '.join(lost)}"
        )
    if best is None:
        raise ValueError(
            f"No setting was confirmed, on {len(dataset) - half} prompts, to lose at most "
            f"{100 * max_accuracy_drop:g} points of accuracy with a `confidence` of "
            f"{confidence}. Give more prompts, a larger `max_accuracy_drop`, or a surer `sweep`."
        )
    given = answerers[best.settings[setting]].generation_config
    recipe_of(answerer.model).updated(**given.settings()).save_pretrained(output_dir)
    click.echo(f"\n{setting} {best.settings[setting]} keeps the accuracy and is written to {output_dir}.")
    figures = {"reward": reward, "seed": answerer.seed, "num_prompts": len(dataset)}
    return vars(best) | promise | figures | {"trials": [vars(trial) for trial in trials]}
