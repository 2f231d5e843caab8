# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel demo`: the whole method on the bundled teacher."""

from hf_dparallel_cli.flags import DemoFlags

from ..demo.pipeline import DemoConfig, run_demo
from .console import write_json


def run(flags: DemoFlags) -> None:
    """Runs the demo; its report is also in the output folder."""
    write_json(run_demo(DemoConfig(**flags.config)), flags.json)
