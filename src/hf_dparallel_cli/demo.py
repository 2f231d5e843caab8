# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel demo`: runs the whole method on the bundled teacher."""

from typing import Any

import click

from .options import COUNT, OUTPUT_FOLDER, json_option


@click.command()
@click.option("--output_dir", type=OUTPUT_FOLDER, default="demo_output", help="Folder for report, figure and adapter.")
@click.option("--seed", type=int, default=0, help="Seed of problems, masks and initialization.")
@click.option("--num_trajectories", type=COUNT, default=320, help="Problems that the teacher answers for training.")
@click.option("--num_train_steps", type=COUNT, default=25, help="Optimizer steps of the distillation.")
@click.option("--num_tuning_problems", type=COUNT, default=64, help="Problems that thresholds are chosen on.")
@click.option("--num_problems", type=COUNT, default=96, help="Held-out problems of the comparison.")
@click.option("--batch_size", type=COUNT, default=16, help="Problems decoded together.")
@json_option
def demo_command(**settings: Any) -> dict[str, Any]:
    """Distil the bundled teacher and compare it with its student.

    First the bundled student answers a question beside its teacher; then a student is distilled anew, which takes some
    minutes on two CPU cores.

    Example: hf-dparallel demo --output_dir demo_output
    """
    click.echo("One question to the bundled teacher and its student (some seconds)")
    from hf_dparallel.demo.duel import show_duel

    show_duel()
    from hf_dparallel.demo.pipeline import DemoConfig, run_demo

    return run_demo(DemoConfig(**settings))
