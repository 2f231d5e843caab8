# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fixtures that several test files share."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import huggingface_hub
import pytest
import torch
from torch.nn.attention import flex_attention
from transformers import masking_utils
from transformers.integrations import flex_attention as integration

from hf_dparallel import LLaDAForMaskedDiffusion
from hf_dparallel.exact import draft_length

from .browser import open_browser
from .graphs import Graphs
from .helpers import make_llada
from .hub.helpers import BASE, TEACHER, save_adapter
from .hub.server import Repository, running_hub


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Outputs of the official code on tiny random models, see fixtures/golden/README.md."""
    return Path(__file__).parent / "fixtures" / "golden"


@pytest.fixture(autouse=True)
def _every_draft_pays(monkeypatch):
    """The clock of a busy machine decides nothing: exact decoding drafts as many tokens as there are masks."""
    monkeypatch.setattr(draft_length.DraftLength, "choose", lambda self, num_rows, most: min(most, self.longest))
    monkeypatch.setattr(draft_length, "measure_passes", lambda *given: (1.0, 0.0))


@pytest.fixture
def tiny_llada() -> LLaDAForMaskedDiffusion:
    return make_llada()


@pytest.fixture(scope="session")
def driver():
    """A headless browser."""
    driver = open_browser()
    yield driver
    driver.quit()


@pytest.fixture
def graphs(monkeypatch) -> Iterator[Graphs]:
    """Stands in for CUDA graphs; `graphs.config` is the `compile_config` that uses it."""
    graphs = Graphs()
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", graphs.begin_pass)
    torch._dynamo.reset()
    yield graphs
    torch._dynamo.reset()


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


@pytest.fixture
def hub(monkeypatch):
    """A Hub on which the bundled teacher lies, for a user who is logged in."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    # Retries wait for as long as the server says, and otherwise for moments.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with running_hub() as hub:
        files = {path.name: path.read_bytes() for path in TEACHER.iterdir()}
        hub.repositories[f"models/{BASE}"] = Repository(commits={"1" * 40: files}, refs={"main": "1" * 40})
        yield hub
        # Its connections belong to this server.
        huggingface_hub.close_session()
    shutil.rmtree(huggingface_hub.constants.HF_HUB_CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def saved_adapter(tmp_path_factory) -> Path:
    return save_adapter(tmp_path_factory.mktemp("saved") / "adapter")


@pytest.fixture
def adapter(saved_adapter, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved_adapter, tmp_path / "adapter"))


@pytest.fixture
def _in_datasets(monkeypatch, tmp_path_factory):
    """In this folder `load_dataset("openai/gsm8k", "main")` finds a folder of that name, and does all else as ever."""
    monkeypatch.chdir(Path(__file__).parent / "fixtures" / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")


@pytest.fixture
def _few_tasks(monkeypatch, tmp_path):
    """The task manager looks through the harness's files of four benchmarks instead of all 15 thousand."""
    from lm_eval import tasks
    from lm_eval.tasks import TaskManager

    ours = Path(tasks.__file__).parent
    group = tmp_path / "groups" / "minerva_math.yaml"
    group.parent.mkdir()
    group.symlink_to(ours / "benchmarks" / "minerva_math.yaml")
    folders = [ours / name for name in ("gsm8k", "minerva_math", "humaneval", "mbpp")]

    def few(include_path=None, include_defaults=True):
        of_user = [include_path] if include_path else []
        defaults = [*folders, group.parent] if include_defaults else []
        return TaskManager(include_path=[*defaults, *of_user], include_defaults=False)

    monkeypatch.setattr("lm_eval.tasks.TaskManager", few)
    # It runs programs to describe the machine.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter, config) -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (Path(__file__).parents[1] / "constraints.txt").read_text(), re.MULTILINE)
    installed = {each.name.replace("_", "-"): each.version.partition("+")[0] for each in metadata.distributions()}
    pairs = [(name, installed.get(name.replace("_", "-"), pin), pin) for name, pin in pins]
    if others := [f"{name} {version} ({pin})" for name, version, pin in pairs if version != pin]:
        terminalreporter.write_line(f"Releases other than in constraints.txt: {', '.join(others)}.")
    left_out = "slow tests (`make test-slow`) and tests for a GPU (`make test-gpu`)"
    if config.option.markexpr == "not slow and not gpu":
        terminalreporter.write_line(f"Left out: {left_out}. What was skipped, and why, is below.")
