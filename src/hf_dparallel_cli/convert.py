# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel convert`: writes an autoregressive model as a masked diffusion model that is to be trained."""

from pathlib import Path
from shlex import quote
from typing import Any

import click

from .console import echo_table
from .options import COUNT, common_options


@click.command()
@click.argument("model", type=click.Path())
@click.option("--output_dir", type=click.Path(), required=True, help="New folder for the model and its tokenizer.")
@click.option("--block_length", type=COUNT, help="Tokens of a block, for block-causal attention. By default full.")
@common_options
def convert_command(model: str, output_dir: str, block_length: int | None) -> dict[str, Any]:
    """Turn an autoregressive model into a masked diffusion model to train.

    MODEL is a Llama, Mistral, Qwen2 or Qwen3: its name on the Hub, or a folder.

    Example: hf-dparallel convert Qwen/Qwen3-0.6B --output_dir runs/qwen3-diffusion --block_length 32
    """
    from hf_dparallel.models.convert import convert_to_diffusion
    from hf_dparallel.reports import check_is_new

    from .loading import checked_name

    folder = Path(output_dir)
    check_is_new(folder)
    with checked_name("model", model):
        converted, tokenizer = convert_to_diffusion(model, block_length=block_length)
    converted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    figures = {"architecture": type(converted).__name__, "attention": converted.attention, "output_dir": output_dir}
    figures |= {name: getattr(tokenizer, name) for name in ("mask_token", "mask_token_id")}
    echo_table(figures)
    click.echo(
        "\nIt must be trained before it can answer: docs/make_a_teacher.md. Next: hf-dparallel train "
        f"{quote(output_dir)} --config examples/make_a_teacher/{converted.attention}.yaml --dataset_name DATA"
    )
    return figures
