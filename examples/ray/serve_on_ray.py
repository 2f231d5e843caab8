# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The server as an application of Ray Serve: `serve run serve_on_ray:app model=demo` in this folder.

Each replica has a model, and answers with the application that `hf-dparallel serve` answers with. Ray Serve has the
port, spreads the requests, adds and removes replicas, and replaces those that are lost.
"""

import sys
from typing import TYPE_CHECKING, Any

import click
import torch
from ray import serve
from ray.serve.context import _get_global_client

from hf_dparallel.cli.loading import batch_size
from hf_dparallel.cli.serve_command import api_key, check_settings
from hf_dparallel.cli.serve_models import make_server
from hf_dparallel_cli import fail
from hf_dparallel_cli.command import Command, Flag, Flags
from hf_dparallel_cli.commands import SERVER


if TYPE_CHECKING:
    from starlette.applications import Starlette


# What Ray Serve has of the server, and what each of these replicas takes.
REPLICAS = (
    Flag("min_replicas", "Replicas that are always there.", click.IntRange(1), default=1),
    Flag("max_replicas", "Replicas when there are many requests.", int, default=1),
    Flag("cpus_per_replica", "CPUs of each replica.", float, default=1),
    Flag("gpus_per_replica", "GPUs of each replica. By default one if there are any.", float),
)


@serve.ingress()
class Replica:
    """A model, and the application that answers requests for it. It takes the flags of `hf-dparallel serve`.

    Raises:
        ValueError: if Ray Serve listens for other machines, and the environment here has no API key.
    """

    def __init__(self, flags: Flags):
        check_settings(flags)
        host = _get_global_client().http_config.host
        is_loopback = host in ("127.0.0.1", "localhost", "::1")
        key = api_key(flags)
        if key is None and not is_loopback:
            raise ValueError(
                f"Anyone who reaches {host}, where Ray Serve listens, could use this server, as it has no key. Set "
                "`runtime_env: {env_vars: {HF_DPARALLEL_API_KEY: ...}}` of the application, or have Ray Serve listen "
                "at 127.0.0.1."
            )
        _, self._engine, self._app = make_server(flags, key, is_loopback)

    def __serve_build_asgi_app__(self) -> "Starlette":
        return self._app

    def check_health(self) -> None:
        """Has this replica replaced, if its decoding has ended."""
        if not self._engine.is_alive:
            raise RuntimeError(f"The decoding has ended: {self._engine.failure!r}")


def app(values: dict[str, Any]) -> serve.Application:
    """Returns the application, from flags of `hf-dparallel serve` and of `REPLICAS` by name.

    `host` and `port` are in Ray Serve's own options, and have no effect here.
    """
    try:
        command = Command("serve", "serve on a Ray cluster", [*SERVER, *REPLICAS])
        flags = command.make_context("serve", [], default_map=command.texts(values, "the arguments")).obj
        if flags.api_key is not None:
            raise click.UsageError("`api_key` would be kept by Ray. Set $HF_DPARALLEL_API_KEY of the replicas.")
        check_settings(flags)
        if flags.min_replicas > flags.max_replicas:
            raise click.UsageError(
                f"`min_replicas` must be at most `max_replicas`, got {flags.min_replicas} and {flags.max_replicas}."
            )
    except click.UsageError as error:
        sys.exit(fail("hf-dparallel serve", error))
    slots, gpus = batch_size(flags.batch_size), flags.gpus_per_replica
    return serve.deployment(
        Replica,
        # The replica has the queue of its engine; more requests wait at Ray Serve.
        max_ongoing_requests=slots + flags.max_waiting,
        max_queued_requests=max(1, flags.max_waiting),
        graceful_shutdown_timeout_s=flags.grace_seconds,
        autoscaling_config={
            "min_replicas": flags.min_replicas,
            "max_replicas": flags.max_replicas,
            "target_ongoing_requests": slots,
        },
        ray_actor_options={
            "num_cpus": flags.cpus_per_replica,
            "num_gpus": int(torch.cuda.is_available()) if gpus is None else gpus,
        },
    ).bind(flags)
