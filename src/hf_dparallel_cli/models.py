# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel models`: lists published checkpoints that load by name."""

from typing import Any

import click

from hf_dparallel_rules.published import describe_recipe, read_published, read_ready


@click.command()
def models_command() -> None:
    """List published checkpoints that load by name.

    Ready students decode many tokens in a pass, with the recipe beside them, which loading them by name applies.
    """
    click.echo("Ready students, and where their recipes are from:")
    for row in read_ready():
        click.echo(f"  {row['name']} ({row['size']})\n    {describe_recipe(row)}\n    {row['source']}")
    for row in read_published():
        attention, checked = describe_attention(row), row["checked_against"]
        click.echo(f"\n{row['family']}, attention: {attention}. Checked against {checked}:")
        for each in row["checkpoints"]:
            click.echo(f"  {each['name']:60}{each['size']}, {each['license']}")


def describe_attention(architecture: dict[str, Any]) -> str:
    """Describes the attention, the blocks, the shift and the loading: "block-causal, blocks of 32, shifted"."""
    block_length, load_with = architecture.get("block_length"), architecture.get("load_with")
    parts = [architecture["attention"], f"blocks of {block_length}" if block_length else ""]
    parts += ["shifted" if architecture["shift_logits"] else "", f"loaded with {load_with}" if load_with else ""]
    return ", ".join(filter(None, parts))
