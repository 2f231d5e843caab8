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
        if "published" in row:
            click.echo(f"    Published: {row['published']} ({row['published_in']})")
    for row in read_published():
        attention = describe_attention(row)
        click.echo(f"\n{row['family']}, attention: {attention}. Checked against {row['checked_against']}:")
        for each in row["checkpoints"]:
            click.echo(f"  {each['name']:60}{each['size']}, {each['license']}")


def describe_attention(architecture: dict[str, Any]) -> str:
    """Describes the attention, the blocks, the shift and the loading: "block-causal, blocks of 32, shifted"."""
    parts = [architecture["attention"]]
    if "block_length" in architecture:
        parts.append(f"blocks of {architecture['block_length']}")
    if architecture["shift_logits"]:
        parts.append("shifted")
    if "load_with" in architecture:
        parts.append(f"loaded with {architecture['load_with']}")
    return ", ".join(parts)
