# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel convert`: writes an autoregressive model as a masked diffusion model that is to be trained."""

from pathlib import Path
from shlex import quote

import click

from .options import COUNT, OUTPUT_FOLDER, say_loading


@click.command()
@click.argument("model", type=click.Path())
@click.option("--output_dir", type=OUTPUT_FOLDER, required=True, help="New folder for the model and its tokenizer.")
@click.option("--block_length", type=COUNT, help="Tokens of a block, for block-causal attention. By default full.")
@click.option("--attention", type=click.Choice(("causal_past",)), help="For exact decoding (docs/exact.md).")
def convert_command(model: str, output_dir: str, block_length: int | None, attention: str | None) -> None:
    """Turn an autoregressive model into a masked diffusion model to train.

    MODEL is a Llama, Mistral, Qwen2 or Qwen3: its name on the Hub, or a folder.

    Example: hf-dparallel convert Qwen/Qwen3-0.6B --output_dir runs/qwen3-diffusion --block_length 32
    """
    say_loading(model)
    from hf_dparallel.models.convert import convert_to_diffusion
    from hf_dparallel.reports import check_is_new

    from .loading import checked_name

    check_is_new(Path(output_dir))
    with checked_name("model", model):
        converted, tokenizer = convert_to_diffusion(model, block_length=block_length, attention=attention)
    converted.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    if converted.is_autoregressive:
        click.echo(
            f"{type(converted).__name__}, which answers as before. An adapter makes it faster: docs/exact.md. Next: "
            f"hf-dparallel trajectories {quote(output_dir)} --dataset PROMPTS --output_dir runs/answers"
        )
        return
    click.echo(
        f"{type(converted).__name__}, its mask token is {tokenizer.mask_token}. It must be trained before it can "
        f"answer: docs/make_a_teacher.md. Next: hf-dparallel train {quote(output_dir)} "
        f"--config examples/make_a_teacher/{converted.attention}.yaml --dataset_name DATA"
    )
