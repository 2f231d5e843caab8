# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The costs of answers to `generate_until` requests, beside the scores of tasks and beside each sample."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..cost import DecodingCost, mean_cost


# The cost of each answer by task, document and name of the request.
Costs = Mapping[tuple[str, int, str], DecodingCost]

# The figures of [`mean_cost`] for answers with their own seconds.
COST_NAMES = tuple(mean_cost([DecodingCost(1, 1, 1, seconds=1.0)]))


def costs_by_task(costs: Costs) -> dict[str, dict[str, float]]:
    """Returns the means over all answers of each task."""
    return {task: mean_cost(_costs_of(costs, [task])) for task in dict.fromkeys(task for task, *_ in costs)}


def add_costs(results: dict[str, Any], costs: Costs) -> None:
    """Adds the costs of the answers to each sample of lm-eval's results, and their means to tasks and groups."""
    by_document = defaultdict(list)
    for (task, doc_id, *_), cost in costs.items():
        by_document[task, doc_id].append(cost)
    for task, samples in results["samples"].items():
        for sample in samples:
            if of_sample := by_document.get((task, sample["doc_id"])):
                sample |= mean_cost(of_sample)
    for name, scores in results["results"].items():
        if of_tasks := _costs_of(costs, tasks_of(results, name)):
            scores |= {f"{figure},none": value for figure, value in mean_cost(of_tasks).items()}
    for name, scores in results.get("groups", {}).items():
        scores |= {key: value for key, value in results["results"].get(name, {}).items() if key not in scores}


def tasks_of(results: Mapping[str, Any], name: str) -> list[str]:
    """Returns the tasks of a group, or a task itself."""
    members = results["group_subtasks"].get(name)
    return [task for member in members for task in tasks_of(results, member)] if members else [name]


def _costs_of(costs: Costs, tasks: Sequence[str]) -> list[DecodingCost]:
    return [cost for (task, *_), cost in costs.items() if task in tasks]
