# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tables of the paper: methods beside one another on each benchmark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lm_eval import simple_evaluate, tasks
from lm_eval.loggers import EvaluationTracker

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.environment import describe_environment, describe_hardware
from hf_dparallel.evaluation.cost import DecodingCost, mean_cost
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.evaluation.lm_eval.model import DiffusionHarnessLM
from hf_dparallel.evaluation.lm_eval.patched_tasks import patch_tasks
from hf_dparallel.evaluation.rows import write_evaluation
from hf_dparallel.hashes import stable_hash
from hf_dparallel.reports import results_table, write_report
from hf_dparallel_rules.settings import SETTINGS

from .presets import METHODS, PRESETS, PaperTask, method_settings


TASKS_FOLDER = Path(__file__).parent / "tasks"


class Comparison:
    """Measures methods on benchmarks, and writes `report.json` and `report.md` after each method.

    Nothing is decoded with the recipe that a checkpoint brings, but with the method's settings. Each benchmark has a
    report in a folder of its own, too. `changes` are decoding settings that the paper has otherwise, and `options` are
    arguments of `lm_eval.simple_evaluate`.
    """

    def __init__(
        self,
        name: str,
        output_dir: Path,
        preset: str,
        benchmarks: Sequence[PaperTask],
        methods: Sequence[str],
        changes: Mapping[str, Any],
        **options: Any,
    ):
        self.name, self.output_dir = name, output_dir
        self.preset, self.benchmarks, self.methods = preset, benchmarks, methods
        # Solved examples stand in one turn with the question.
        self.options = {"system_instruction": None, "fewshot_as_multiturn": False, **options}
        self.settings = {
            (benchmark.task, method): method_settings(method, PRESETS[preset], benchmark, changes)
            for benchmark in benchmarks
            for method in methods
        }
        for settings in self.settings.values():
            DiffusionGenerationConfig(**settings)  # refuses what is unknown or out of range
        self.groups = {benchmark.task: f"{preset}-{benchmark.task}" for benchmark in benchmarks}
        patch_tasks()  # or the modules of programming tasks would download a metric
        # Loads the data, too, before the model.
        self.task_manager = tasks.TaskManager(include_path=str(TASKS_FOLDER))
        self.task_manager.load(list(self.groups.values()))
        self._measured: dict[tuple[str, str], dict[str, Any]] = {}

    def measure(self, model: DiffusionHarnessLM, method: str) -> None:
        """Measures a method on the model that it is for."""
        for benchmark in self.benchmarks:
            settings = self.settings[benchmark.task, method]
            results, costs = self._run(model, self.groups[benchmark.task], settings, method)
            if results is not None:
                self._measured[benchmark.task, method] = {
                    **_metrics(results, costs, benchmark),
                    "settings": settings,
                    **{name: self.options[name] for name in ("system_instruction", "fewshot_as_multiturn")},
                    "hardware": {
                        **describe_hardware(model.model),
                        "num_processes": model.world_size,
                        "batch_size": model.batch_size,
                    },
                }
        if self._measured:
            write_comparison(self.rows(), self.preset, self.name, self.output_dir)

    def _run(
        self, model: DiffusionHarnessLM, group: str, settings: Mapping[str, Any], method: str
    ) -> tuple[dict[str, Any] | None, list[DecodingCost]]:
        """Returns lm-eval's results, `None` on all processes but the first, and the costs of all answers."""
        tracker = EvaluationTracker(str(self.output_dir / method))
        results = simple_evaluate(
            model,
            model_args={"pretrained": self.name},
            tasks=[group],
            batch_size=model.batch_size,
            evaluation_tracker=tracker,
            gen_kwargs=without_recipe(settings),
            task_manager=self.task_manager,
            **self.options,
        )
        # Each process has documents of its own.
        costs = list(model.costs.values())
        if model.world_size > 1:
            costs = sum(model.gather_object(costs) or [], [])
        if results is not None:
            samples = results["samples"]
            tracker.save_results_aggregated({key: results[key] for key in results if key != "samples"}, samples)
            for task in results["configs"]:
                tracker.save_results_samples(task, samples[task])
        return results, costs

    def rows(self) -> list[dict[str, Any]]:
        """Returns rows with `benchmark`, `method`, the paper's columns and more; none on other processes."""
        rows = []
        for benchmark in self.benchmarks:
            found = {method: self._measured.get((benchmark.task, method)) for method in self.methods}
            measured = {method: row for method, row in found.items() if row is not None}
            baseline = next(iter(measured.values()), {})
            for method, row in measured.items():
                names = {"benchmark": benchmark.title, "method": method, "title": METHODS[method].title}
                rows.append({**names, **row, "speedup": baseline["row_latency_s"] / row["row_latency_s"]})
        return rows


def without_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Adds defaults to settings with a commit rule, so that a recipe counts only for its special tokens."""
    defaults = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}
    return DiffusionGenerationConfig(**defaults).updated(**settings).settings()


def comparison_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Makes a Markdown table per benchmark."""
    tables = []
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        of_benchmark = [_columns(row) for row in rows if row["benchmark"] == benchmark]
        tables.append(f"### {benchmark}\n\n{results_table(of_benchmark)}")
    return "\n\n".join(tables)


def write_comparison(rows: Sequence[dict[str, Any]], preset: str, model: str, output_dir: Path) -> None:
    """Writes `report.json` and `report.md` of all benchmarks, and of each in the folder of its task."""
    report = {"preset": preset, "model": model, "rows": rows, "environment": describe_environment()}
    write_report(report, output_dir, [f"# {model}: the benchmarks of {preset}", comparison_tables(rows)])
    for task in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == task]
        write_evaluation(_task_report(of_task, preset, model), output_dir / task)


def _task_report(rows: Sequence[dict[str, Any]], preset: str, model: str) -> dict[str, Any]:
    """Makes a benchmark's rows a report that can be compared with another."""
    first = rows[0]
    asked = ("task", "data", "num_samples", "num_fewshot", "system_instruction", "fewshot_as_multiturn", "metric")
    return {
        "name": model,
        "dataset": first["task"],
        "conditions": {
            "preset": preset,
            **{name: first[name] for name in asked},
            "max_new_tokens": first["settings"]["max_new_tokens"],
        },
        "hardware": first["hardware"],
        "rows": [{**_columns(row), "curve": row["title"], "recipe": row["settings"]} for row in rows],
    }


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a row for [`results_table`]."""
    return {**row, "method": row["title"], "latency_s": row["row_latency_s"]}


def _tasks_of(results: Mapping[str, Any], name: str) -> list[str]:
    """Returns the tasks of a group, or a task itself."""
    members = results["group_subtasks"].get(name)
    return [task for member in members for task in _tasks_of(results, member)] if members else [name]


def _metrics(results: Mapping[str, Any], costs: Sequence[DecodingCost], benchmark: PaperTask) -> dict[str, Any]:
    figures = results["results"][benchmark.task].items()
    # By lm-eval's names: figure, filter.
    scores = {key: value for key, value in figures if "," in key and isinstance(value, int | float)}
    tasks = _tasks_of(results, benchmark.task)
    # One for each filter, in the order of the documents.
    samples = [
        sample for task in tasks for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    ]
    by_sample = _scores_by_sample(samples, benchmark.metric)
    return {
        "task": benchmark.task,
        "accuracy": scores[benchmark.metric],
        "accuracy_interval": list(wilson_interval(fmean(by_sample), len(by_sample))) if by_sample else None,
        "metric": benchmark.metric,
        "num_fewshot": results["n-shot"][tasks[0]],
        "num_samples": sum(results["n-samples"][task]["effective"] for task in tasks),
        "data": stable_hash([(sample["doc_hash"], sample["target_hash"]) for sample in samples]),
        **mean_cost(costs),
        "scores": scores,
        **({"answers": {"is_correct": by_sample}} if by_sample else {}),
    }


def _scores_by_sample(samples: Sequence[dict[str, Any]], name: str) -> list[float] | None:
    """Returns each sample's score, `None` if samples have none."""
    metric, _, score_filter = name.partition(",")
    values = [sample.get(metric) for sample in samples if sample["filter"] == score_filter]
    scores = [float(value) for value in values if isinstance(value, int | float)]
    return scores if scores and len(scores) == len(values) else None
