# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the answers to requests cost: beside the scores of tasks, and beside each sample."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..evaluation.cost import DecodingCost, mean_cost


# An answer as [`decode_answers`] gives it: its text, the fields of its cost, and the conditions of its seconds.
Record = dict[str, Any]
# The records of each document of each task, by key. A request that is repeated has several if its answers are drawn.
TaskCosts = Mapping[str, Mapping[int, Mapping[str, Record]]]

COST_NAMES = (
    "nfe",
    "num_tokens",
    "num_answer_tokens",
    "tokens_per_forward",
    "answer_tokens_per_forward",
    "tokens_per_forward_with_padding",
    "row_latency_s",
    "row_tokens_per_second",
)


def mean_of_records(records: Iterable[Record]) -> dict[str, Any]:
    """Returns what [`mean_cost`] returns, with `batch_size` and `device`.

    Where answers were decoded in batches of different sizes, or on different devices, their seconds do not mean the
    same, and are left out with those two.
    """
    records = list(records)
    costs = [DecodingCost(**record["cost"]) for record in records]
    conditions = {(record["batch_size"], record["device"]) for record in records}
    if len(conditions) > 1:
        return mean_cost([dataclasses.replace(cost, seconds=None) for cost in costs])
    return mean_cost(costs) | dict(zip(("batch_size", "device"), conditions.pop(), strict=True))


def costs_by_task(costs: TaskCosts) -> dict[str, dict[str, Any]]:
    """The means over all answers of each task."""
    return {task: mean_of_records(_records(costs, [task])) for task in costs}


def merge_costs(parts: Iterable[TaskCosts]) -> TaskCosts:
    """The costs of all processes, each of which has documents of its own."""
    merged: dict[str, dict[int, Mapping[str, Record]]] = {}
    for part in parts:
        for task, documents in part.items():
            merged.setdefault(task, {}).update(documents)
    return merged


def add_costs(results: dict[str, Any], costs: TaskCosts) -> None:
    """Adds the costs of the answers to each sample of the harness's results, and their means to tasks and groups."""
    for task, samples in results["samples"].items():
        for sample in samples:
            if answers := costs.get(task, {}).get(sample["doc_id"]):
                sample |= mean_of_records(answers.values())
    for name, scores in results["results"].items():
        if records := _records(costs, tasks_of(results, name)):
            means = mean_of_records(records)
            scores |= {f"{figure},none": means[figure] for figure in COST_NAMES if figure in means}
    for name, scores in results.get("groups", {}).items():
        scores |= {key: value for key, value in results["results"].get(name, {}).items() if key not in scores}


def tasks_of(results: Mapping[str, Any], name: str) -> list[str]:
    """The single tasks of a group, or a task itself."""
    members = results["group_subtasks"].get(name)
    return [task for member in members for task in tasks_of(results, member)] if members else [name]


def _records(costs: TaskCosts, tasks: Sequence[str]) -> list[Record]:
    documents = [document for task in tasks for document in costs.get(task, {}).values()]
    return [record for document in documents for record in document.values()]
