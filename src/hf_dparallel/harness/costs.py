# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the answer to a request cost, and the means over requests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


COST_NAMES = (
    "nfe",
    "num_tokens",
    "answer_tokens_per_forward",
    "tokens_per_forward_with_padding",
    "row_latency_s",
    "row_tokens_per_second",
)


def request_cost(
    nfe: int, num_tokens: int, canvas_length: int, seconds: float, batch_size: int, device: str
) -> dict[str, Any]:
    """Returns the figures of one answer.

    - `nfe`: forward passes.
    - `num_tokens`: tokens before the first end token, or up to and including the last one of a stop string.
    - `answer_tokens_per_forward`: `num_tokens` over `nfe`: neither the end token nor padding counts.
    - `tokens_per_forward_with_padding`: the whole canvas over `nfe`.
    - `row_latency_s`: seconds from entering the batch to the end; in a batch, other answers are decoded in that time
      too.
    - `batch_size` and `device`, which the seconds depend on.
    """
    return {
        "nfe": nfe,
        "num_tokens": num_tokens,
        "answer_tokens_per_forward": num_tokens / nfe if nfe else 0.0,
        "tokens_per_forward_with_padding": canvas_length / nfe if nfe else 0.0,
        "row_latency_s": seconds,
        "batch_size": batch_size,
        "device": device,
    }


def mean_cost(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each figure, and `row_tokens_per_second`; `batch_size` and `device` are those of all.

    Quotients are those of the sums over all answers, as in [`decoding_efficiency`], so that long answers weigh more.
    Where answers were decoded in batches of different sizes, or on different devices, there are no figures of time.
    """
    canvas = sum(cost["tokens_per_forward_with_padding"] * cost["nfe"] for cost in costs) / len(costs)
    nfe, num_tokens, latency = (
        sum(cost[name] for cost in costs) / len(costs) for name in ("nfe", "num_tokens", "row_latency_s")
    )
    means = {
        "nfe": nfe,
        "num_tokens": num_tokens,
        "answer_tokens_per_forward": num_tokens / nfe if nfe else 0.0,
        "tokens_per_forward_with_padding": canvas / nfe if nfe else 0.0,
    }
    conditions = {(cost["batch_size"], cost["device"]) for cost in costs}
    if len(conditions) > 1:
        return means
    ((batch_size, device),) = conditions
    return means | {
        "row_latency_s": latency,
        "row_tokens_per_second": num_tokens / latency if latency else 0.0,
        "batch_size": batch_size,
        "device": device,
    }


def attach_costs(requests: Sequence["Instance"], costs: Sequence[dict[str, Any]]) -> None:
    """Makes the cost of each answer a further argument of its request, which the harness saves with the sample.

    A request whose answer is drawn several times is several times in the list, and gets several costs.
    """
    attached: dict[int, list[dict[str, Any]]] = {}
    for request, cost in zip(requests, costs, strict=True):
        of_request = attached.setdefault(id(request), [])
        if not any(cost is other for other in of_request):
            of_request.append(cost)
    for request in requests:
        request.arguments = (*request.args[:2], *attached[id(request)])


def cost_of_requests(requests: Sequence["Instance"]) -> dict[str, dict[str, Any]]:
    """The means over the requests of each task, of costs that were attached."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for request in {id(request): request for request in requests}.values():
        by_task.setdefault(str(request.task_name), []).extend(request.args[2:])
    return {task: mean_cost(costs) for task, costs in by_task.items()}
