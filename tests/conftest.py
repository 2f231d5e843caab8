# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fixtures that several test files share."""

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from torch.nn.attention import flex_attention
from transformers import masking_utils
from transformers.integrations import flex_attention as integration

from hf_dparallel import DreamForMaskedDiffusion, LLaDAForMaskedDiffusion

from .browser import open_browser
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


@pytest.fixture(scope="module")
def driver():
    """A headless browser."""
    driver = open_browser()
    yield driver
    driver.quit()


@pytest.fixture
def eager_flex_attention(monkeypatch) -> None:
    """Flex attention as it is, without compiling it, which takes ten seconds; tests/models has a slow test of that."""
    monkeypatch.setattr(integration, "WrappedFlexAttention", lambda training: lambda: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)

    def make_mask(*args, _compile, **kwargs):
        return flex_attention.create_block_mask(*args, **kwargs)

    monkeypatch.setattr(masking_utils, "create_block_mask", make_mask)


@pytest.fixture
def ray_cluster(monkeypatch) -> Iterator[None]:
    """A cluster of Ray on this machine, with two CPUs, whose processes find the modules of the tests."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    import ray

    ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def pytest_terminal_summary(terminalreporter, config) -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (Path(__file__).parents[1] / "constraints.txt").read_text(), re.MULTILINE)
    installed = {each.name.replace("_", "-"): each.version.partition("+")[0] for each in metadata.distributions()}
    pairs = [(name, installed.get(name.replace("_", "-"), pin), pin) for name, pin in pins]
    if others := [f"{name} {version} ({pin})" for name, version, pin in pairs if version != pin]:
        terminalreporter.write_line(f"Releases other than in constraints.txt: {', '.join(others)}.")
    left_out = "slow tests (`make test-slow`) and tests for a GPU (`make test-gpu`)"
    if config.option.markexpr == "not slow and not gpu":
        terminalreporter.write_line(f"Left out: {left_out}. What was skipped, and why, is below.")
