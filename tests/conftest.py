# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fixtures that several test files share."""

from pathlib import Path

import pytest

from hf_dparallel import DreamForMaskedDiffusion, LLaDAForMaskedDiffusion

from .helpers import make_dream, make_llada


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Outputs of the official code on tiny random models, see fixtures/golden/README.md."""
    return Path(__file__).parent / "fixtures" / "golden"


@pytest.fixture
def tiny_llada() -> LLaDAForMaskedDiffusion:
    return make_llada()


@pytest.fixture
def tiny_dream() -> DreamForMaskedDiffusion:
    return make_dream()
