# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs tasks of lm-eval on a model, and puts the costs of the answers beside the scores."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from .costs import add_costs
from .model import DiffusionHarnessLM
from .programs import is_sandboxed, mend_filters, use_sandbox
from .sandbox import run_program


class TaskRunner:
    """
    Runs tasks of lm-eval, and tasks in the folder `include_path`, on the model of this name.

    lm-eval writes results and samples, each with its costs, to `output_dir`. Where bubblewrap is missing, and in tasks
    with a way of their own to run programs, programs of the model run only with `confirm_run_unsafe_code`. `options`
    are further arguments of `lm_eval.simple_evaluate`.
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
            raise ValueError(
                f"`include_path={include_path}` is no folder. Give the folder with the YAML files of tasks."
            )
        self.name = name
        self.task_manager = TaskManager(include_path=include_path)
        self.confirm_run_unsafe_code = confirm_run_unsafe_code
        self.output_dir = output_dir
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
        tracker = None
        if self.output_dir is not None:
            tracker = EvaluationTracker(output_path=str(Path(self.output_dir) / folder))
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
            tracker.save_results_aggregated(
                results={key: value for key, value in results.items() if key != "samples"}, samples=samples
            )
            for task in results["configs"]:
                tracker.save_results_samples(task_name=task, samples=samples[task])
        return results


def scores_of(results: Mapping[str, Any], name: str) -> dict[str, float]:
    """Returns the figures of a task or group, by lm-eval's names: figure, filter."""
    return {
        key: value
        for key, value in results["results"][name].items()
        if "," in key and isinstance(value, int | float) and not isinstance(value, bool)
    }
