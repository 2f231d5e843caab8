# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: accuracy and cost of decoding on a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..environment import describe_hardware
from ..evaluation.decoding import evaluate_answers
from ..evaluation.sweep import parse_sweep
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..hashes import dataset_hash
from ..reports import make_rows, metrics_with_intervals, results_table, write_evaluation
from . import evaluate_tasks
from .arguments import (
    BatchArguments,
    CommandParser,
    DatasetArguments,
    DecodingArguments,
    LoadingArguments,
    OutputArguments,
    RewardArguments,
)
from .console import make_folder, note, say, say_table, write_json
from .loading import REFERENCE_COLUMNS, get_reward, load_model, load_prompts, resolve_settings


@dataclass
class EvaluationDataArguments(DatasetArguments):
    # Not required: tasks of the harness have data of their own.
    dataset: str = field(default="", metadata=DatasetArguments.__dataclass_fields__["dataset"].metadata)


@dataclass
class ReportArguments:
    sweep: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Settings to try, each a curve of accuracy against speed: entropy_threshold=0.1:1.0:0.1 (with "
            "both ends) or denoising_steps=16,32,64.",
            "metavar": "SETTING=VALUES",
        },
    )
    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder for report.json, which `hf-dparallel report` compares with others, report.md and, of a "
            "sweep, curves.png."
        },
    )
    name: str | None = field(
        default=None, metadata={"help": "Name of the model in reports. Default: the adapter, or else the model."}
    )

    def __post_init__(self):
        for text in self.sweep:
            parse_sweep(text)

    def recipes(self, given: DiffusionGenerationConfig) -> dict[str, DiffusionGenerationConfig]:
        """Returns the recipes to try, by name: one for each value that is swept, or else what the flags say."""
        if not self.sweep:
            return {method_name(given): given}
        return {
            f"{name} {value}": given.updated(**{name: value})
            for name, values in map(parse_sweep, self.sweep)
            for value in values
        }


def make_parser() -> CommandParser:
    """The arguments of the command."""
    types = [
        LoadingArguments,
        EvaluationDataArguments,
        RewardArguments,
        BatchArguments,
        DecodingArguments,
        ReportArguments,
        evaluate_tasks.TaskArguments,
        OutputArguments,
    ]
    return CommandParser("evaluate", types, positionals=["model"])


def run(argv: Sequence[str]) -> None:
    """Measures on a dataset, or on tasks of the lm-evaluation-harness."""
    parser = make_parser()
    loading, data, reward, batch, decoding, reporting, tasks, output = parser.parse(argv)
    is_on_tasks = tasks.tasks is not None or tasks.preset is not None
    if not data.dataset and not is_on_tasks:
        parser.error("the following arguments are required: --dataset, or --tasks, or --preset")
    # Not these two, which both ways have.
    unused = [data, reward, batch, reporting] if is_on_tasks else [tasks]
    given = [name for arguments in unused for name in _changed(arguments) if name not in ("batch_size", "output_dir")]
    if given:
        kind = "tasks of the harness" if is_on_tasks else "a dataset"
        parser.error(f"--{', --'.join(given)}: not for an evaluation on {kind}. Remove it")
    if is_on_tasks:
        metrics = evaluate_tasks.run(loading, tasks, batch, decoding, reporting.output_dir)
    else:
        metrics = run_on_dataset(loading, data, reward, batch, decoding, reporting)
    if metrics is not None:
        write_json(metrics, output.json)
        if reporting.output_dir is not None:
            note(f"Written to {reporting.output_dir}")


def run_on_dataset(
    loading: LoadingArguments,
    data: DatasetArguments,
    reward: RewardArguments,
    batch: BatchArguments,
    decoding: DecodingArguments,
    reporting: ReportArguments,
) -> dict[str, Any]:
    """Prints and returns accuracy, passes, tokens per pass and latency, for each setting that is tried."""
    dataset = load_prompts(data, default_split="test")
    reward_function = get_reward(reward.reward, dataset)
    model, tokenizer = load_model(loading)
    make_folder(reporting.output_dir)
    recipes = reporting.recipes(decoding.to_generation_config())
    for recipe in recipes.values():
        resolve_settings(model, recipe, tokenizer)
    options = {"batch_size": batch.batch_size, "num_workers": batch.num_workers}
    answerers = {
        method: Answerer(model, tokenizer, recipe, seed=decoding.seed, **options) for method, recipe in recipes.items()
    }
    evaluated = {
        method: evaluate_answers(answerer, dataset, reward_function, method) for method, answerer in answerers.items()
    }
    measured = {
        method: {
            **metrics_with_intervals(answers),
            # A setting that is swept makes a curve of its values.
            "curve": method.split()[0] if reporting.sweep else method,
            "recipe": recipes[method].settings(),
        }
        for method, answers in evaluated.items()
    }
    report: dict[str, Any] = {
        "name": reporting.name or loading.adapter or loading.model,
        "dataset": data.dataset,
        "conditions": {
            "data": dataset_hash(dataset, ["prompt", "messages", REFERENCE_COLUMNS[reward.reward]]),
            "num_prompts": len(dataset),
            "reward": reward.reward,
            "max_new_tokens": next(iter(evaluated.values())).costs[0].num_canvas_tokens,
        },
        "hardware": describe_hardware(model) | options,
        "rows": make_rows(measured),
    }
    if reporting.output_dir is not None:
        write_evaluation(report, reporting.output_dir)
    if reporting.sweep:
        say(results_table(report["rows"]))
        return report
    (metrics,) = measured.values()
    say_table({name: value for name, value in metrics.items() if name not in ("answers", "curve", "recipe")})
    return metrics | {"dataset": data.dataset}


def _changed(arguments: Any) -> list[str]:
    """The names of the arguments that are not as they are by default."""
    default = type(arguments)()
    return [name for name, value in vars(arguments).items() if value != getattr(default, name)]


def method_name(recipe: DiffusionGenerationConfig) -> str:
    """The commit rule of a recipe with its value."""
    rule = recipe.commit_rule()
    return "the model's recipe" if rule is None else f"{rule} {getattr(recipe, rule)}"
