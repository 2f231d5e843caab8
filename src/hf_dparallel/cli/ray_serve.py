# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server as an application of Ray Serve: `serve run hf_dparallel.cli.ray_serve:app model=demo`.

Each replica has a model, and answers with the application that `hf-dparallel serve` answers with. Ray Serve has the
port, spreads the requests, adds and removes replicas, and replaces those that are lost.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from ray import serve

from .arguments import CommandParser, ModelArguments, RecipeArguments
from .serve import AdaptersArguments, ServerArguments, check_recipe, make_server


if TYPE_CHECKING:
    from starlette.applications import Starlette


@dataclass
class ReplicaArguments:
    """How many replicas there are, and what each of them takes."""

    min_replicas: int = 1
    max_replicas: int = 1
    cpus_per_replica: float = 1
    gpus_per_replica: float = field(default_factory=lambda: 1 if torch.cuda.is_available() else 0)

    def __post_init__(self):
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                f"`min_replicas` must be at least 1 and at most `max_replicas`, got {self.min_replicas} and "
                f"{self.max_replicas}."
            )


@serve.ingress()
class Replica:
    """A model, and the application that answers requests for it. The arguments are those of `hf-dparallel serve`."""

    def __init__(
        self, model: ModelArguments, adapters: AdaptersArguments, server: ServerArguments, recipe: RecipeArguments
    ):
        is_loopback = server.host in ("127.0.0.1", "localhost", "::1")
        _, self._engine, self._app = make_server(model, adapters.adapter or [], server, recipe, is_loopback)

    def __serve_build_asgi_app__(self) -> "Starlette":
        return self._app

    def check_health(self) -> None:
        """Has this replica replaced, if its decoding has ended."""
        if not self._engine.is_alive:
            raise RuntimeError(f"The decoding has ended: {self._engine.failure!r}")


def app(values: dict[str, Any]) -> serve.Application:
    """Returns the application.

    Args:
        values (`dict[str, Any]`): flags of `hf-dparallel serve` and fields of [`ReplicaArguments`], by name. `host` is
            the address of Ray Serve's own options, and `port` has no effect.
    """
    parser = CommandParser(
        "serve", [ModelArguments, AdaptersArguments, ServerArguments, ReplicaArguments, RecipeArguments]
    )
    model, adapters, server, replicas, recipe = parser.parse(parser.flags_of(values))
    check_recipe(parser, recipe)
    return serve.deployment(
        Replica,
        # The queue of the engine is that of the replica; more than that wait at Ray Serve.
        max_ongoing_requests=server.batch_size + server.max_waiting,
        max_queued_requests=max(1, server.max_waiting),
        graceful_shutdown_timeout_s=server.grace_seconds,
        autoscaling_config={
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": server.batch_size,
        },
        ray_actor_options={"num_cpus": replicas.cpus_per_replica, "num_gpus": replicas.gpus_per_replica},
    ).bind(model, adapters, server, recipe)
