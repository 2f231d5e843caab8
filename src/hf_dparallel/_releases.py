# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which releases of transformers the package was run with, and what to install where another lacks something."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version


# docs/releases.md says what was run with them.
OLDEST = "5.16.1"
NEWEST = "5.24.0"


@contextmanager
def named_releases() -> Iterator[None]:
    """Names the releases to take where transformers lacks what the package imports from it."""
    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("transformers"):
            raise

        installed = version("transformers")
        raise ImportError(
            f"hf-dparallel was run with transformers {OLDEST} to {NEWEST}, and {installed} is installed. "
            f"Install transformers>={OLDEST},<={NEWEST}. ({error})",
            name=error.name,
        ) from error
