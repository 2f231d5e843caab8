# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Measures the rows of the paper's tables 1 and 2 on a model and its adapters. In the root of a clone:

    python -m examples.paper --preset paper-llada --model GSAI-ML/LLaDA-8B-Instruct \\
        --adapter user/llada-dparallel --methods original,few-step,dparallel --output_dir runs/table1

Under a launcher, processes share the samples. Needs the extra `[eval]`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from lm_eval.utils import simple_parse_args_string
from transformers import AutoConfig
from transformers.utils import find_adapter_config_file

from hf_dparallel.environment import join_processes
from hf_dparallel.evaluation.lm_eval import DiffusionHarnessLM
from hf_dparallel.evaluation.lm_eval.programs import has_sandbox

from .presets import METHODS, PRESETS, choose_benchmarks, choose_methods
from .tables import Comparison, comparison_tables


def names(ctx: click.Context, param: click.Parameter, text: str | None) -> list[str] | None:
    """Reads names with commas between."""
    return None if text is None else [name for name in text.split(",") if name]


@click.command(help=str(__doc__).splitlines()[0])
@click.option("--preset", type=click.Choice(list(PRESETS)), required=True, help="Benchmarks of one of the tables.")
@click.option("--model", required=True, help="Base model: its name on the Hub, or a folder.")
@click.option("--adapter", help="Adapter of dparallel, or a model whose weights were trained as a whole.")
@click.option("--consistency_adapter", help="The same of consistency-distillation.")
@click.option("--methods", callback=names, help=f"Rows, with commas between: {', '.join(METHODS)}. By default "
              "dparallel, on the model as it is given.")  # fmt: skip
@click.option("--tasks", callback=names, help="Only these of the tasks of the preset, with commas between.")
@click.option("--gen_kwargs", default="", help="Lengths that the paper has otherwise: max_new_tokens=64,...")
@click.option("--batch_size", type=click.IntRange(1), default=1, help="Prompts decoded together.", show_default=True)
@click.option("--dtype", default="auto", help="Dtype of the weights.", show_default=True)
@click.option("--device", help="Device. By default the best one.")
@click.option("--seed", default=0, help="Seed of all draws.", show_default=True)
@click.option("--limit", type=float, help="Only the first so many samples of each task; below 1, that share of them.")
@click.option("--system_instruction", help="Text that begins each prompt.")
@click.option("--confirm_run_unsafe_code", is_flag=True, help="Let tasks run programs without bubblewrap, too.")
@click.option("--output_dir", type=click.Path(path_type=Path), required=True, help="Folder for reports and samples.")
def main(
    preset: str,
    model: str,
    adapter: str | None,
    consistency_adapter: str | None,
    methods: list[str] | None,
    tasks: list[str] | None,
    gen_kwargs: str,
    limit: float | None,
    system_instruction: str | None,
    confirm_run_unsafe_code: bool,
    output_dir: Path,
    **loading: Any,
) -> None:
    if limit is not None and not 0 < limit < math.inf:
        raise click.UsageError(f"`limit` must be above 0 and finite, got {limit}.")
    changes = simple_parse_args_string(gen_kwargs)
    if decided := sorted(changes.keys() - {"max_new_tokens", "block_length"}):
        raise click.UsageError(f"A preset decodes with its own settings. Remove {', '.join(decided)}.")
    adapters = {"base": None, "adapter": adapter, "consistency_adapter": consistency_adapter}
    chosen = choose_methods(methods)
    check_adapters(chosen, adapters, is_chosen=bool(methods))
    benchmarks = choose_benchmarks(preset, tasks)
    state = join_processes()
    comparison = Comparison(
        model,
        output_dir,
        preset,
        benchmarks,
        chosen,
        changes,
        limit=limit,
        apply_chat_template=True,
        system_instruction=system_instruction,
        confirm_run_unsafe_code=confirm_run_unsafe_code or has_sandbox(),
    )
    for checkpoint in dict.fromkeys(METHODS[method].checkpoint for method in chosen):
        trained = adapters[checkpoint]
        is_whole = trained is not None and find_adapter_config_file(trained) is None
        lm = DiffusionHarnessLM(
            trained if is_whole else model,
            None if is_whole else trained,
            **loading,
        )
        for method in chosen:
            if METHODS[method].checkpoint == checkpoint:
                comparison.measure(lm, method)
        # The next one must not be in memory beside it.
        del lm
    if rows := comparison.rows():  # on the first process
        click.echo(comparison_tables(rows))
    # Processes that end without it may abort.
    state.destroy_process_group()


def check_adapters(methods: Sequence[str], adapters: dict[str, str | None], is_chosen: bool) -> None:
    """Checks that each method has its adapter before the first is measured, which can take hours."""
    for name, method in METHODS.items():
        checkpoint, adapter = method.checkpoint, adapters[method.checkpoint]
        if adapter is not None and name not in methods:
            raise click.UsageError(
                f"`{checkpoint}={adapter}` belongs to a method that is not measured. Add {name} to --methods, or "
                "leave it out."
            )
        # Without `methods`, the model is measured as it is given.
        if adapter is None and name in methods and checkpoint != "base" and is_chosen:
            raise click.UsageError(f"`methods` has {name}, which needs an adapter. Add --{checkpoint} NAME.")
        if adapter is not None and find_adapter_config_file(adapter) is None:
            AutoConfig.from_pretrained(adapter)


if __name__ == "__main__":
    main()
