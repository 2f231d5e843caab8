# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Answers to `generate_until` requests, and what they cost: beside the scores of tasks, and beside each sample."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lm_eval.models.utils import postprocess_generated_text
from transformers import StoppingCriteriaList

from ..environment import device_name
from ..evaluation.cost import DecodingCost, mean_cost
from ..generation.answerer import Answerer
from ..generation.standard_parts import StopTextCriteria


# An answer as [`decode_answers`] gives it.
Record = dict[str, Any]
# Records by task, document and key. A request that is repeated has several keys if its answers are drawn.
Costs = Mapping[tuple[str, int, str], Record]

# The figures of [`mean_cost`] for answers with their own seconds.
COST_NAMES = tuple(mean_cost([DecodingCost(1, 1, 1, seconds=1.0)]))


def decode_answers(
    answerer: Answerer, prompts: Mapping[str, list[int]], stop_texts: Sequence[str]
) -> Iterator[tuple[str, Record]]:
    """Decodes prompts, given by key, and yields the answers as they are finished, each cut at the first stop text.

    With `stop_at_eos=False` the whole canvas is decoded, as the published samplers do, even past strings that end the
    answer; what stands after the answer does not count. Draws depend on the seed and the key only.

    A record has `text`, `cost` (the fields of [`DecodingCost`]; tokens count up to and including the last one of a
    stop string), and `batch_size` and `device`, which its seconds depend on.
    """
    # The longest first: a prompt too long for the memory shows at once.
    keys = sorted(prompts, key=lambda key: len(prompts[key]), reverse=True)
    conditions = {"batch_size": answerer.batch_size, "device": device_name(answerer.model.device)}
    tokenizer, config = answerer.tokenizer, answerer.config
    until = StopTextCriteria(tokenizer, stop_texts)
    criteria = StoppingCriteriaList([until] if stop_texts and config.stop_at_eos else [])
    for key, row in answerer.rows(((key, prompts[key]) for key in keys), criteria):
        tokens = row.tokens[: row.num_tokens].tolist()
        if stop_texts:
            tokens = until.cut(tokens)
        cost = DecodingCost.of_tokens(tokens, row.nfe, config.eos_token_ids, row.seconds)
        text = tokenizer.decode(tokens[: cost.num_answer_tokens], skip_special_tokens=True)
        text = postprocess_generated_text(text, list(stop_texts), None)
        yield key, {"text": text, "cost": dataclasses.asdict(cost), **conditions}


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


def costs_by_task(costs: Costs) -> dict[str, dict[str, Any]]:
    """Returns the means over all answers of each task."""
    return {task: mean_of_records(_records(costs, [task])) for task in dict.fromkeys(task for task, *_ in costs)}


def add_costs(results: dict[str, Any], costs: Costs) -> None:
    """Adds the costs of the answers to each sample of the harness's results, and their means to tasks and groups."""
    by_document = defaultdict(list)
    for (task, doc_id, _), record in costs.items():
        by_document[task, doc_id].append(record)
    for task, samples in results["samples"].items():
        for sample in samples:
            if records := by_document.get((task, sample["doc_id"])):
                sample |= mean_of_records(records)
    for name, scores in results["results"].items():
        if records := _records(costs, tasks_of(results, name)):
            means = mean_of_records(records)
            scores |= {f"{figure},none": means[figure] for figure in COST_NAMES if figure in means}
    for name, scores in results.get("groups", {}).items():
        scores |= {key: value for key, value in results["results"].get(name, {}).items() if key not in scores}


def tasks_of(results: Mapping[str, Any], name: str) -> list[str]:
    """Returns the tasks of a group, or a task itself."""
    members = results["group_subtasks"].get(name)
    return [task for member in members for task in tasks_of(results, member)] if members else [name]


def _records(costs: Costs, tasks: Sequence[str]) -> list[Record]:
    return [record for (task, *_), record in costs.items() if task in tasks]
