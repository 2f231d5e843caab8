# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel models`: lists published checkpoints that load by name."""

from pathlib import Path
from typing import Any

import click


_FAMILIES = Path(__file__).parents[1] / "hf_dparallel" / "models"


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


def read_published() -> list[dict[str, Any]]:
    """Returns the architectures and their checkpoints, from `published.toml` in the folder of each family."""
    return [row for file in sorted(_FAMILIES.glob("*/published.toml")) for row in _read(file)["architectures"]]


def read_ready() -> list[dict[str, Any]]:
    """Returns the ready students, from `ready.toml`."""
    return _read(_FAMILIES / "ready.toml")["students"]


def describe_recipe(student: dict[str, Any]) -> str:
    """Describes a recipe as arguments of `generate`."""
    return ", ".join(f"{name}={value}" for name, value in student["recipe"].items())


def describe_attention(architecture: dict[str, Any]) -> str:
    """Describes the attention, the blocks, the shift and the loading: "block-causal, blocks of 32, shifted"."""
    block_length, load_with = architecture.get("block_length"), architecture.get("load_with")
    parts = [architecture["attention"], f"blocks of {block_length}" if block_length else ""]
    parts += ["shifted" if architecture["shift_logits"] else "", f"loaded with {load_with}" if load_with else ""]
    return ", ".join(filter(None, parts))


def _read(file: Path) -> dict[str, Any]:
    # Imported here, because most commands do not need it.
    import tomllib

    return tomllib.loads(file.read_text(encoding="utf-8"))
