# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel calibrate`: finds the fastest decoding settings that keep the teacher's accuracy, a recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import OUTPUT_FOLDER, batch_option, data_options, decoding_options, json_option, reward_option


if TYPE_CHECKING:
    from datasets import Dataset

    from hf_dparallel.evaluation.calibration import Evaluate, Trial
    from hf_dparallel.evaluation.decoding import Evaluation
    from hf_dparallel.generation.answerer import Answerer

_SWEEP = "entropy_threshold=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0"
_FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@decoding_options
@data_options
@reward_option
@click.option("--output_dir", type=OUTPUT_FOLDER, required=True, help="Folder for the recipe, such as the adapter's.")
@click.option("--max_accuracy_drop", type=_FRACTION, default=0.01, help="Largest loss; 0.01 is a point of accuracy.")
@click.option("--confidence", type=_FRACTION, default=0.9, help="Probability of staying within that loss.")
@click.option("--sweep", default=_SWEEP, metavar="SETTING=VALUES", help="Values to try.")
@batch_option
@json_option
def calibrate_command(
    reward: str, output_dir: str, sweep: str, max_accuracy_drop: float, confidence: float, **options: Any
) -> dict[str, Any]:
    """Find the fastest decoding settings that keep the accuracy of the teacher.

    The teacher is the base model without its adapter, at one token per pass. A model without an adapter, such as a
    merged student, is compared with itself. All values of --sweep are tried on one half of the prompts, and the
    promising ones confirmed on the other half.

    Example: hf-dparallel calibrate demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe
    """
    from hf_dparallel.data.rewards import get_reward
    from hf_dparallel.evaluation.calibration import calibrate, check_num_prompts, parse_sweep
    from hf_dparallel.generation.adapters import active_adapter
    from hf_dparallel.generation.configuration import recipe_of

    from .loading import load_answerer, load_prompts

    setting, values = parse_sweep(sweep)
    promise = {"max_accuracy_drop": max_accuracy_drop, "confidence": confidence}
    dataset = load_prompts(options, reward, default_split="train").shuffle(options["seed"]).flatten_indices()
    reward_function = get_reward(reward, dataset)
    answerer = load_answerer({**options, setting: values[0]})

    # Exact decoding changes no answer, so any number of prompts confirms that.
    is_exact = bool(answerer.config.exact)
    if reward == "none" and not is_exact:
        raise click.UsageError("--reward none is for exact decoding, where all settings give the same answers.")
    if not is_exact:
        check_num_prompts(len(dataset) // 2, **promise)
    Path(output_dir).mkdir(parents=True, exist_ok=True)

    # The answers of exact decoding are those of the base model already.
    has_adapter = active_adapter(answerer.model) is not None
    has_teacher = has_adapter and not is_exact
    reference = "the base model without its adapter" if has_teacher else "the model itself"
    click.echo(f"The accuracy to keep is that of {reference}, one token per pass.")
    if not has_adapter:
        click.echo("There is no adapter: what a merged student lost against its teacher does not show here.")

    candidates = [{setting: value} for value in values]
    evaluate = _evaluator(answerer, candidates, has_teacher, dataset, reward_function)
    best, trials = calibrate(evaluate, candidates, {}, max_accuracy_drop, 0.0 if is_exact else confidence)
    for trial in trials:
        click.echo(f"{setting} {trial.settings[setting]}: {trial.nfe:.1f} passes, {_kept(trial)}")
    if best is None:
        raise ValueError(
            f"No setting was confirmed, on {len(dataset) - len(dataset) // 2} prompts, to lose at most "
            f"{100 * max_accuracy_drop:g} points of the accuracy of {reference}, with a `confidence` of "
            f"{confidence}. Give more prompts, a larger `max_accuracy_drop`, or a surer `sweep`."
        )

    given: Any = answerer.with_(**best.settings).generation_config
    recipe_of(answerer.model).updated(**given.settings()).save_pretrained(output_dir)
    click.echo(
        f"\n{setting} {best.settings[setting]} keeps the accuracy of {reference} and is written to {output_dir}: "
        f"{_kept(best)}."
    )
    figures = {"reference": f"{reference}, one token per pass", "reward": reward, "seed": answerer.seed}
    return vars(best) | promise | figures | {"num_prompts": len(dataset), "trials": [vars(trial) for trial in trials]}


def _evaluator(
    answerer: "Answerer",
    candidates: Sequence[Mapping[str, Any]],
    has_teacher: bool,
    dataset: "Dataset",
    reward_function: Any,
) -> "Evaluate":
    """Returns what decodes one half of the prompts with one of the candidates, or with the reference (no settings).

    That is one token per pass, without the adapter if it has a teacher.
    """
    from dataclasses import replace

    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.generation.adapters import active_adapter, set_adapter

    half = len(dataset) // 2
    splits = {"calibration": dataset.select(range(half)), "confirmation": dataset.select(range(half, len(dataset)))}
    # Wrong values are found here, before hours of decoding.
    answerers = [answerer.with_(**settings) for settings in candidates]
    plain = replace(answerer, generation_config=answerers[0].config.one_token_per_pass())
    adapter = active_adapter(answerer.model)

    def evaluate(split: str, tried: Mapping[str, Any]) -> "Evaluation":
        if tried:
            name = " ".join(f"{name} {value}" for name, value in tried.items())
            by = answerers[candidates.index(tried)]
            return evaluate_answers(by, splits[split], reward_function, f"{split}, {name}")

        set_adapter(answerer.model, None if has_teacher else adapter)
        try:
            return evaluate_answers(plain, splits[split], reward_function, f"{split}, reference")
        finally:
            set_adapter(answerer.model, adapter)

    return evaluate


def _kept(trial: "Trial") -> str:
    """Says the accuracy of the reference and that with the settings, on each half where they were tried."""
    halves = []
    for number, (split, p_value) in enumerate(trial.p_value.items(), start=1):
        before = trial.reference_accuracy[split]
        after = trial.accuracy[split]
        halves.append(f"{before:.1%} -> {after:.1%} on half {number} (p = {p_value:.3f})")
    return f"accuracy {', '.join(halves)}"
