# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel demo`: the whole method on the bundled teacher."""

from typing import Any

from hf_dparallel_cli.flags import DemoFlags

from ..demo.pipeline import DemoConfig, run_demo


def run(flags: DemoFlags) -> dict[str, Any]:
    """Runs the demo; its report is also in the output folder."""
    return run_demo(DemoConfig(**flags.config))
