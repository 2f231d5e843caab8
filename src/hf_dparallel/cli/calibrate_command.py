# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel calibrate`: the fastest decoding settings that keep the accuracy, as the recipe of a model."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel_cli.command import Flags
from hf_dparallel_rules.settings import settings_of

from .._version import __version__
from ..data.rewards import REFERENCE_COLUMNS, get_reward
from ..evaluation.calibration import Trial, calibrate, check_num_prompts
from ..evaluation.decoding import Evaluation, evaluate_answers
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig, recipe_of
from ..hashes import dataset_hash
from ..hub.files import CALIBRATION_NAME
from ..reports import markdown_table, write_json
from .console import make_folder, say
from .loading import batch_options, load_model, load_prompts, read_sweep, resolve_settings


def run(flags: Flags) -> dict[str, Any]:
    """Prints what was tried, and writes the recipe."""
    for name in ("max_accuracy_drop", "confidence"):
        if not 0 < getattr(flags, name) < 1:
            raise click.UsageError(f"`{name}` must be above 0 and below 1, got {getattr(flags, name)}.")
    setting, values = read_sweep(flags.sweep)
    lengths = [{"block_length": length} for length in flags.block_lengths] or [{}]
    candidates: list[dict[str, Any]] = [{**length, setting: value} for length, value in product(lengths, values)]
    dataset = load_prompts(flags, default_split="train")
    reward_function = get_reward(flags.reward, dataset)
    splits = split_in_half(dataset, flags.seed)
    check_num_prompts(len(splits["calibration"]), flags.max_accuracy_drop, flags.confidence)
    model, tokenizer = load_model(flags, has_workers=True)
    make_folder(flags.output_dir)
    reference, recipes = recipes_to_try(model, tokenizer, candidates, flags.settings)

    def evaluate(split: str, settings: Mapping[str, Any]) -> Evaluation:
        recipe = recipes[describe(settings)]
        answerer = Answerer(model, tokenizer, recipe, seed=flags.seed, **batch_options(flags))
        return evaluate_answers(answerer, splits[split], reward_function, f"{split}, {describe(settings)}")

    best, trials = calibrate(evaluate, candidates, reference, flags.max_accuracy_drop, flags.confidence)
    say(table(trials))
    tried = [vars(trial) for trial in trials]
    if best is None:
        if flags.json is not None:
            write_json({"recipe": None, "trials": tried}, flags.json)
        raise ValueError(_failure(trials, flags, len(splits["confirmation"])))
    record = {
        **{name: value for name, value in vars(best).items() if name != "settings"},
        **{name: getattr(flags, name) for name in ("max_accuracy_drop", "confidence", "seed")},
        "reference": reference,
        "reward": flags.reward,
        "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[flags.reward]]),
        "num_prompts": {split: len(prompts) for split, prompts in splits.items()},
        "hf_dparallel": __version__,
    }
    recipe_of(model).updated(**flags.settings | best.settings).save_pretrained(flags.output_dir)
    # The promise beside the recipe.
    write_json(record, Path(flags.output_dir, CALIBRATION_NAME))
    given = " ".join(f"--{name} {value}" for name, value in best.settings.items())
    say(f"\n{describe(best.settings)} keeps the accuracy and is written to {flags.output_dir}. As flags: {given}.")
    return {"recipe": best.settings, **record, "trials": tried}


def recipes_to_try(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    candidates: Sequence[dict[str, Any]],
    given: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, DiffusionGenerationConfig]]:
    """Returns the settings of the reference, and by description the whole recipes of all that is decoded with."""
    recipes = {
        describe(settings): resolve_settings(model, DiffusionGenerationConfig(**given | settings), tokenizer)
        for settings in candidates
    }
    original = next(iter(recipes.values())).one_token_per_pass()
    told = ("block_length", *settings_of("rule"))
    reference = {name: value for name, value in original.settings().items() if name in told}
    return reference, {describe(reference): original, **recipes}


def split_in_half(dataset: Dataset, seed: int) -> dict[str, Dataset]:
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


def _failure(trials: Sequence[Trial], flags: Flags, num_prompts: int) -> str:
    closest = min(trials, key=lambda trial: trial.p_value["calibration"])
    return (
        f"For no setting could it be confirmed on {num_prompts} prompts that it loses at most "
        f"{100 * flags.max_accuracy_drop:g} points of accuracy with a `confidence` of {flags.confidence}. The surest, "
        f"{describe(closest.settings)}, lost {100 * closest.accuracy_drop['calibration']:.1f} on the first half. Give "
        "more prompts, a larger `max_accuracy_drop`, or surer settings with `sweep`."
    )


def table(trials: Sequence[Trial]) -> str:
    """Writes as Markdown what each setting lost."""
    rows = []
    for trial in trials:
        cells = [describe(trial.settings), f"{trial.nfe:.1f}"]
        for split in ("calibration", "confirmation"):
            drop, p_value = trial.accuracy_drop.get(split), trial.p_value.get(split)
            cells += [f"{100 * drop:+.1f}", f"{p_value:.3f}"] if drop is not None else ["", ""]
        rows.append(cells)
    return markdown_table(["Settings", "Passes", "Drop, points", "p", "Drop confirmed, points", "p confirmed"], rows)
