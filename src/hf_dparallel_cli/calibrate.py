# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel calibrate`: finds the fastest decoding settings that keep the accuracy, the recipe of a model."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import make_folder
from .options import COUNT, batch_option, common_options, data_options, model_options, reward_option, settings_options


if TYPE_CHECKING:
    from datasets import Dataset

    from hf_dparallel.evaluation.calibration import Trial
    from hf_dparallel.evaluation.decoding import Evaluation

_FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@model_options
@data_options
@reward_option()
@click.option("--output_dir", type=click.Path(), required=True, help="Folder for the recipe, such as the adapter's.")
@click.option("--max_accuracy_drop", type=_FRACTION, default=0.01, help="Largest loss of accuracy; 0.01 is a point.")
@click.option("--confidence", type=_FRACTION, default=0.9, help="Probability of staying within that loss.")
@click.option("--sweep", default="entropy_threshold=0.1:1.0:0.1", metavar="SETTING=VALUES", help="Values to try.")
@click.option(
    "--block_lengths", type=COUNT, multiple=True, help="Block length to try them with. May be given several times."
)
@click.option("--seed", type=int, default=0, help="Seed for splitting the prompts into two halves.")
@batch_option
@settings_options
@common_options
def calibrate_command(
    source: dict[str, Any],
    data: dict[str, Any],
    reward: str,
    output_dir: str,
    sweep: str,
    block_lengths: tuple[int, ...],
    batch_size: int | None,
    settings: dict[str, Any],
    **promise: Any,
) -> dict[str, Any]:
    """Find the fastest decoding settings that keep the accuracy of one token per pass.

    All values of --sweep are tried on one half of the prompts, and the promising ones confirmed on the other half.

    Example: hf-dparallel calibrate demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe
    """
    from hf_dparallel import DiffusionGenerationConfig, __version__
    from hf_dparallel.data.rewards import REFERENCE_COLUMNS, get_reward
    from hf_dparallel.evaluation.calibration import calibrate, check_num_prompts
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.generation.configuration import recipe_of
    from hf_dparallel.hashes import dataset_hash
    from hf_dparallel.hub.push import CALIBRATION_NAME
    from hf_dparallel.reports import write_json
    from hf_dparallel_rules.settings import settings_of

    from .loading import default_batch_size, load_model, load_prompts, read_sweep, resolve_settings

    setting, values = read_sweep(sweep)
    lengths = [{"block_length": length} for length in block_lengths] or [{}]
    candidates: list[dict[str, Any]] = [{**length, setting: value} for length, value in product(lengths, values)]
    dataset = load_prompts(source, data, reward, default_split="train")
    reward_function = get_reward(reward, dataset)
    splits = split_in_half(dataset, promise["seed"])
    tolerance = promise["max_accuracy_drop"], promise["confidence"]
    check_num_prompts(len(splits["calibration"]), *tolerance)
    make_folder(output_dir)
    model, tokenizer = load_model(**source)
    recipes = {
        describe(each): resolve_settings(model, DiffusionGenerationConfig(**settings | each), tokenizer)
        for each in candidates
    }
    original = next(iter(recipes.values())).one_token_per_pass()
    names = ("block_length", *settings_of("rule"))
    reference = {name: value for name, value in original.settings().items() if name in names}
    recipes = {describe(reference): original, **recipes}
    batch_size = batch_size or default_batch_size()

    def evaluate(split: str, settings: Mapping[str, Any]) -> "Evaluation":
        answerer = Answerer(model, tokenizer, recipes[describe(settings)], batch_size, promise["seed"])
        return evaluate_answers(answerer, splits[split], reward_function, f"{split}, {describe(settings)}")

    best, trials = calibrate(evaluate, candidates, reference, *tolerance)
    click.echo(trials_table(trials))
    if best is None:
        raise ValueError(_failure(trials, len(splits["confirmation"]), *tolerance))
    record = {
        **{name: value for name, value in vars(best).items() if name != "settings"},
        **promise,
        "reference": reference,
        "reward": reward,
        "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[reward]]),
        "num_prompts": {split: len(prompts) for split, prompts in splits.items()},
        "hf_dparallel": __version__,
    }
    recipe_of(model).updated(**settings | best.settings).save_pretrained(output_dir)
    # The promise beside the recipe.
    write_json(record, Path(output_dir, CALIBRATION_NAME))
    given = " ".join(f"--{name} {value}" for name, value in best.settings.items())
    click.echo(f"\n{describe(best.settings)} keeps the accuracy and is written to {output_dir}. As options: {given}.")
    return {"recipe": best.settings, **record, "trials": [vars(trial) for trial in trials]}


def split_in_half(dataset: "Dataset", seed: int) -> "dict[str, Dataset]":
    """Splits shuffled prompts into those to choose settings on and those to confirm them on."""
    if len(dataset) < 2:
        raise ValueError(f"`dataset` must have at least 2 prompts, to confirm settings on half, got {len(dataset)}.")
    # Flat, once: adding a column would otherwise copy the rows each time.
    shuffled, half = dataset.shuffle(seed).flatten_indices(), len(dataset) // 2
    parts = {"calibration": range(half), "confirmation": range(half, len(dataset))}
    return {split: shuffled.select(part) for split, part in parts.items()}


def describe(settings: Mapping[str, Any]) -> str:
    """Writes names and values of settings in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _failure(trials: "Sequence[Trial]", num_prompts: int, max_accuracy_drop: float, confidence: float) -> str:
    closest = min(trials, key=lambda trial: trial.p_value["calibration"])
    return (
        f"For no setting could it be confirmed on {num_prompts} prompts that it loses at most "
        f"{100 * max_accuracy_drop:g} points of accuracy with a `confidence` of {confidence}. The surest, "
        f"{describe(closest.settings)}, lost {100 * closest.accuracy_drop['calibration']:.1f} on the first half. Give "
        "more prompts, a larger `max_accuracy_drop`, or surer settings with `sweep`."
    )


def trials_table(trials: "Sequence[Trial]") -> str:
    """Writes as Markdown what each setting lost."""
    from hf_dparallel.reports import markdown_table

    rows = []
    for trial in trials:
        cells = [describe(trial.settings), f"{trial.nfe:.1f}"]
        for split in ("calibration", "confirmation"):
            drop, p_value = trial.accuracy_drop.get(split), trial.p_value.get(split)
            cells += [f"{100 * drop:+.1f}", f"{p_value:.3f}"] if drop is not None else ["", ""]
        rows.append(cells)
    return markdown_table(["Settings", "Passes", "Drop, points", "p", "Drop confirmed, points", "p confirmed"], rows)
