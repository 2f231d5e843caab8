# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs tasks of lm-eval on a model, and puts the costs of the answers beside the scores."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from ..cost import DecodingCost, mean_cost
from .model import Costs, DiffusionHarnessLM
from .programs import is_sandboxed, mend_filters, use_sandbox
from .sandbox import run_program


# The figures of [`mean_cost`] for answers with their own seconds.
COST_NAMES = tuple(mean_cost([DecodingCost(1, 1, 1, seconds=1.0)]))


class TaskRunner:
    """
    Runs tasks of lm-eval, and tasks in the folder `include_path`, on the model of this name.

    Results and samples, with their costs, go to `output_dir`. Where bubblewrap is missing, and in tasks with a way of
    their own to run programs, programs of the model run only with `confirm_run_unsafe_code`. `options` are further
    arguments of `lm_eval.simple_evaluate`.
    """

    def __init__(
        self,
        name: str,
        include_path: str | None = None,
        confirm_run_unsafe_code: bool = False,
        output_dir: str | None = None,
        **options,
    ):
        if include_path is not None and not Path(include_path).is_dir():
            raise ValueError(f"`include_path={include_path}` is no folder. Give the one with the YAML files of tasks.")
        self.name, self.output_dir = name, output_dir
        self.task_manager = TaskManager(include_path=include_path)
        self.confirm_run_unsafe_code = confirm_run_unsafe_code
        # Solved examples stand in one turn with the question unless it is asked otherwise.
        self.options = {"system_instruction": None, "fewshot_as_multiturn": False, **options}

    def load(self, names: Sequence[str]) -> list[str]:
        """Loads tasks and their data, which shows what is wrong with them before the model is loaded.

        Returns the names of tasks and groups; patterns such as `minerva_math_*` stand for all that match.
        """
        for name in names:
            if not self.task_manager.match_tasks([name]):
                raise ValueError(f"There is no task {name!r}. `lm_eval ls tasks` lists them.")
        if shutil.which("bwrap") or not self.confirm_run_unsafe_code:
            use_sandbox()
        selected = self.task_manager.match_tasks(list(names))
        loaded = self.task_manager.load(selected)["tasks"]
        mend_filters()
        unsafe = {name: task for name, task in loaded.items() if getattr(task, "UNSAFE_CODE", False)}
        outside = [name for name, task in unsafe.items() if not is_sandboxed(task)]
        if outside and not self.confirm_run_unsafe_code:
            raise ValueError(
                f"{', '.join(outside)}: these tasks run programs that the model writes, and not in the sandbox. Leave "
                "them out, or add --confirm_run_unsafe_code."
            )
        if len(unsafe) > len(outside):
            run_program("")  # fails now if there is no sandbox
        return selected

    def run(
        self, model: DiffusionHarnessLM, tasks: Sequence[str], settings: Mapping[str, Any], folder: str = ""
    ) -> dict[str, Any] | None:
        """Returns lm-eval's results, with the mean costs among the scores; `None` on all processes but the first.

        The decoding `settings` win over the settings that the tasks name; results go to `folder` in `output_dir`.
        """
        tracker = EvaluationTracker(str(Path(self.output_dir) / folder)) if self.output_dir is not None else None
        results = simple_evaluate(
            model=model,
            model_args={"pretrained": self.name},
            tasks=self.load(tasks),
            batch_size=model.batch_size,
            log_samples=True,
            evaluation_tracker=tracker,
            gen_kwargs=dict(settings) or None,
            task_manager=self.task_manager,
            confirm_run_unsafe_code=True,  # `load` has seen to it
            **self.options,
        )
        costs = model.gather_object(model.costs)
        if results is None or costs is None:
            return None
        # Each process has documents of its own.
        add_costs(results, {key: record for part in costs for key, record in part.items()})
        if tracker is not None:
            samples = results["samples"]
            tracker.save_results_aggregated({key: results[key] for key in results if key != "samples"}, samples)
            for task in results["configs"]:
                tracker.save_results_samples(task, samples[task])
        return results


def scores_of(results: Mapping[str, Any], name: str) -> dict[str, float]:
    """Returns the figures of a task or group, by lm-eval's names: figure, filter."""
    return {
        key: value
        for key, value in results["results"][name].items()
        if "," in key and isinstance(value, int | float) and not isinstance(value, bool)
    }


def tasks_of(results: Mapping[str, Any], name: str) -> list[str]:
    """Returns the tasks of a group, or a task itself."""
    members = results["group_subtasks"].get(name)
    return [task for member in members for task in tasks_of(results, member)] if members else [name]


def add_costs(results: dict[str, Any], costs: Costs) -> None:
    """Adds the costs of the answers to each sample of lm-eval's results, and their means to tasks and groups."""
    by_document: dict[tuple[str, int], list[DecodingCost]] = {}
    for (task, doc_id, _), cost in costs.items():
        by_document.setdefault((task, doc_id), []).append(cost)
    for task, samples in results["samples"].items():
        for sample in samples:
            if of_sample := by_document.get((task, sample["doc_id"])):
                sample |= mean_cost(of_sample)
    for name, scores in results["results"].items():
        tasks = tasks_of(results, name)
        if of_tasks := [cost for (task, *_), cost in costs.items() if task in tasks]:
            scores |= {f"{figure},none": value for figure, value in mean_cost(of_tasks).items()}
    for name, scores in results.get("groups", {}).items():
        scores |= {key: value for key, value in results["results"].get(name, {}).items() if key not in scores}
