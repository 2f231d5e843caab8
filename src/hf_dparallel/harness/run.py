# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs tasks of the harness on a model, and puts the costs of the answers beside the scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from .costs import add_costs, merge_costs, tasks_of
from .model import DiffusionHarnessLM


@dataclass
class TaskOptions:
    """How prompts are made, which of them, and what is allowed: arguments of the harness.

    Args:
        num_fewshot (`int`, *optional*): solved examples in each prompt, instead of the task's own number.
        limit (`float`, *optional*): the first so many samples of each task; below 1 a share of them.
        apply_chat_template (`bool`): whether to ask in a chat.
        system_instruction (`str`, *optional*): begins each prompt.
        fewshot_as_multiturn (`bool`): whether the examples are turns of the chat, or all in the user's message.
        allow_code_execution (`bool`): whether programs of the model may be executed.
    """

    num_fewshot: int | None = None
    limit: float | None = None
    apply_chat_template: bool = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = False
    allow_code_execution: bool = False


def run_tasks(
    model: DiffusionHarnessLM,
    name: str,
    tasks: Sequence[str],
    task_manager: TaskManager,
    settings: Mapping[str, Any],
    options: TaskOptions,
    output_dir: str | None = None,
) -> dict[str, Any] | None:
    """Runs tasks and returns the harness's results, with the mean costs among the scores of each task and group.

    Args:
        name (`str`): of the model, in the results.
        settings (`Mapping`): decoding settings, which win over those of the tasks.
        output_dir (`str`, *optional*): the harness writes its results and samples there, each sample with its costs.

    Returns:
        `dict`: `None` on all processes but the first.
    """
    tracker = EvaluationTracker(output_path=output_dir) if output_dir is not None else None
    results = simple_evaluate(
        model=model,
        model_args={"pretrained": name},
        tasks=list(tasks),
        num_fewshot=options.num_fewshot,
        batch_size=model.batch_size,
        limit=options.limit,
        log_samples=True,
        evaluation_tracker=tracker,
        system_instruction=options.system_instruction,
        apply_chat_template=options.apply_chat_template,
        fewshot_as_multiturn=options.fewshot_as_multiturn,
        gen_kwargs=dict(settings) or None,
        task_manager=task_manager,
        confirm_run_unsafe_code=options.allow_code_execution,
    )
    costs = model.gather_object(model.costs)
    if results is None or costs is None:
        return None
    add_costs(results, merge_costs(costs))
    if tracker is not None:
        samples = results["samples"]
        tracker.save_results_aggregated(
            results={key: value for key, value in results.items() if key != "samples"}, samples=samples
        )
        for task in results["configs"]:
            tracker.save_results_samples(task_name=task, samples=samples[task])
    return results


def samples_of(results: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The samples of a task or group, one for each filter, in the order of the documents."""
    return [
        sample
        for task in tasks_of(results, name)
        for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    ]


def num_samples_of(results: Mapping[str, Any], name: str) -> int:
    """How many samples a task or group was measured on."""
    return sum(results["n-samples"][task]["effective"] for task in tasks_of(results, name))


def scores_of(results: Mapping[str, Any], name: str) -> dict[str, float]:
    """The figures of a task or group, by the harness's names: figure, filter."""
    return {
        key: value
        for key, value in results["results"][name].items()
        if "," in key and isinstance(value, int | float) and not isinstance(value, bool)
    }
