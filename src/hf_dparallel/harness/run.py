# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs tasks of the harness on a model, and puts the costs of the answers beside the scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker

from .answers import add_costs
from .model import DiffusionHarnessLM
from .selection import make_task_manager


class TaskRunner:
    """Runs tasks of the harness, and tasks in the folder `include_path`, on the model of this name.

    The harness writes its results and samples to `output_dir`, each sample with its costs. `options` are further
    arguments of `lm_eval.simple_evaluate`: how prompts are made, and how many of them.
    """

    def __init__(
        self,
        name: str,
        include_path: str | None = None,
        allow_code_execution: bool = False,
        output_dir: str | None = None,
        **options,
    ):
        self.name = name
        self.task_manager = make_task_manager(include_path)
        self.allow_code_execution = allow_code_execution
        self.output_dir = output_dir
        # Solved examples stand in one turn with the question unless it is asked otherwise.
        self.options = {"system_instruction": None, "fewshot_as_multiturn": False, **options}

    def run(
        self, model: DiffusionHarnessLM, tasks: Sequence[str], settings: Mapping[str, Any], folder: str = ""
    ) -> dict[str, Any] | None:
        """Returns the harness's results, with the mean costs among the scores; `None` on all processes but the first.

        The decoding `settings` win over the settings that the tasks name; results go to `folder` in `output_dir`.
        """
        tracker = None
        if self.output_dir is not None:
            tracker = EvaluationTracker(output_path=str(Path(self.output_dir) / folder))
        results = simple_evaluate(
            model=model,
            model_args={"pretrained": self.name},
            tasks=list(tasks),
            batch_size=model.batch_size,
            log_samples=True,
            evaluation_tracker=tracker,
            gen_kwargs=dict(settings) or None,
            task_manager=self.task_manager,
            confirm_run_unsafe_code=self.allow_code_execution,
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
    """Returns the figures of a task or group, by the harness's names: figure, filter."""
    return {
        key: value
        for key, value in results["results"][name].items()
        if "," in key and isinstance(value, int | float) and not isinstance(value, bool)
    }
