# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel calibrate`: finds the fastest decoding settings that keep the accuracy, the recipe of a model."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import make_folder
from .options import (
    COUNT,
    batch_options,
    common_options,
    data_options,
    model_options,
    output_dir_option,
    reward_option,
    settings_options,
)


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hf_dparallel.evaluation.calibration import Trial
    from hf_dparallel.evaluation.decoding import Evaluation
    from hf_dparallel.generation.configuration import DiffusionGenerationConfig

_FRACTION = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.command()
@model_options
@data_options
@reward_option
@output_dir_option(
    "Folder for the recipe, generation_config.json, for instance the folder of the adapter.", required=True
)
@click.option(
    "--max_accuracy_drop",
    type=_FRACTION,
    default=0.01,
    help="Largest acceptable loss of accuracy against one token per pass; 0.01 is one point.",
)
@click.option(
    "--confidence",
    type=_FRACTION,
    default=0.9,
    help="Probability of staying within that loss, on prompts of this kind.",
)
@click.option(
    "--sweep",
    default="entropy_threshold=0.1:1.0:0.1",
    metavar="SETTING=VALUES",
    help="Setting to choose, and its values.",
)
@click.option(
    "--block_lengths",
    type=COUNT,
    multiple=True,
    help="Block length to try the values with; may be given several times. The first is that of the reference, one "
    "token per pass. By default the recipe's.",
)
@click.option("--seed", type=int, default=0, help="Seed for splitting the prompts into two halves.")
@batch_options
@settings_options
@common_options
def calibrate_command(
    source: dict[str, Any],
    data: dict[str, Any],
    reward: str,
    output_dir: str,
    max_accuracy_drop: float,
    confidence: float,
    sweep: str,
    block_lengths: tuple[int, ...],
    seed: int,
    batches: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Find the fastest decoding settings that keep the accuracy.

    All values of --sweep are tried on one half of the prompts, and the promising ones confirmed on the other half.

    Example: hf-dparallel calibrate demo-student --dataset demo --max_accuracy_drop 0.02 --output_dir runs/recipe
    """
    from hf_dparallel import __version__
    from hf_dparallel.data.rewards import REFERENCE_COLUMNS, get_reward
    from hf_dparallel.evaluation.calibration import calibrate, check_num_prompts
    from hf_dparallel.evaluation.decoding import evaluate_answers
    from hf_dparallel.generation.answerer import Answerer
    from hf_dparallel.generation.configuration import recipe_of
    from hf_dparallel.hashes import dataset_hash
    from hf_dparallel.hub.files import CALIBRATION_NAME
    from hf_dparallel.reports import write_json

    from .loading import batch_arguments, load_model, load_prompts, read_sweep

    setting, values = read_sweep(sweep)
    lengths = [{"block_length": length} for length in block_lengths] or [{}]
    candidates: list[dict[str, Any]] = [{**length, setting: value} for length, value in product(lengths, values)]
    dataset = load_prompts(source, data, reward, default_split="train")
    reward_function = get_reward(reward, dataset)
    splits = split_in_half(dataset, seed)
    check_num_prompts(len(splits["calibration"]), max_accuracy_drop, confidence)
    make_folder(output_dir)
    model, tokenizer = load_model(**source, has_workers=True)
    reference, recipes = recipes_to_try(model, tokenizer, candidates, settings)
    batches = batch_arguments(**batches)

    def evaluate(split: str, settings: Mapping[str, Any]) -> "Evaluation":
        answerer = Answerer(model, tokenizer, recipes[describe(settings)], seed=seed, **batches)
        return evaluate_answers(answerer, splits[split], reward_function, f"{split}, {describe(settings)}")

    best, trials = calibrate(evaluate, candidates, reference, max_accuracy_drop, confidence)
    click.echo(trials_table(trials))
    if best is None:
        raise ValueError(_failure(trials, len(splits["confirmation"]), max_accuracy_drop, confidence))
    record = {
        **{name: value for name, value in vars(best).items() if name != "settings"},
        **{"max_accuracy_drop": max_accuracy_drop, "confidence": confidence, "seed": seed},
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


def recipes_to_try(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    candidates: Sequence[dict[str, Any]],
    given: dict[str, Any],
) -> "tuple[dict[str, Any], dict[str, DiffusionGenerationConfig]]":
    """Returns the settings of the reference, and by description the whole recipes of all that is decoded with."""
    from hf_dparallel.generation.configuration import DiffusionGenerationConfig
    from hf_dparallel_rules.settings import settings_of

    from .loading import resolve_settings

    recipes = {
        describe(settings): resolve_settings(model, DiffusionGenerationConfig(**given | settings), tokenizer)
        for settings in candidates
    }
    original = next(iter(recipes.values())).one_token_per_pass()
    told = ("block_length", *settings_of("rule"))
    reference = {name: value for name, value in original.settings().items() if name in told}
    return reference, {describe(reference): original, **recipes}


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
