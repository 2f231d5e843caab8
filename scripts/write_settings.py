# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Writes the table of settings into docs/decoding.md: `python scripts/write_settings.py`."""

from pathlib import Path

import hf_dparallel.generation.commit_rules  # noqa: F401  (which adds the rules to the table)
from hf_dparallel.generation.settings import describe_settings


PAGE = Path(__file__).parents[1] / "docs" / "decoding.md"
HEADER = "| Setting | Default |"


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADER)
    after = rest[rest.index("\n\n") + 1 :]
    PAGE.write_text(before + describe_settings() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
