# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel demo`: the whole method on the bundled teacher."""

from dataclasses import fields
from typing import Any

from hf_dparallel_cli.command import Flags

from ..demo.pipeline import DemoConfig, run_demo


def run(flags: Flags) -> dict[str, Any]:
    """Runs the demo; its report is also in the output folder."""
    settings = {each.name: getattr(flags, each.name) for each in fields(DemoConfig)}
    if flags.num_workers is None:
        del settings["num_workers"]
    return run_demo(DemoConfig(**settings))
