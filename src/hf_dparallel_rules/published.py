# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Published checkpoints: those that each family loads, and the students that are ready to decode with few passes."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


_FAMILIES = Path(__file__).parents[1] / "hf_dparallel" / "models"


def read_published() -> list[dict[str, Any]]:
    """Returns the architectures and their checkpoints, from `published.toml` in the folder of each family."""
    rows = []
    for file in sorted(_FAMILIES.glob("*/published.toml")):
        rows += _read(file)["architectures"]
    return rows


@cache
def read_ready() -> list[dict[str, Any]]:
    """Returns the ready students, from `ready.toml`."""
    return _read(_FAMILIES / "ready.toml")["students"]


def describe_recipe(student: dict[str, Any]) -> str:
    """Describes a recipe as arguments of `generate`."""
    return ", ".join(f"{name}={value}" for name, value in student["recipe"].items())


def _read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))
