# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Ready students: what a published checkpoint needs, by its name on the Hub."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def ready_students() -> dict[str, dict[str, Any]]:
    """Returns the rows of `ready.toml` by name."""
    text = Path(__file__).with_name("ready.toml").read_text(encoding="utf-8")
    return {row["name"]: row for row in tomllib.loads(text)["students"]}
