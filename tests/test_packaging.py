# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What is in the wheel. `make wheel-test` also installs it, and decodes an answer with it."""

import email
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
WHEEL_TEST = runpy.run_path(str(ROOT / "scripts" / "wheel_test.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    program = "import setuptools.build_meta as backend; backend.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True)
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_the_wheel_has_the_package_and_the_licence_only(wheel):
    WHEEL_TEST["check_wheel"](wheel)


def test_a_wheel_without_the_teacher_is_refused(wheel, tmp_path):
    incomplete = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(incomplete, "w") as copy:
        for name in whole.namelist():
            if not name.endswith("model.safetensors"):
                copy.writestr(name, whole.read(name))
    with pytest.raises(SystemExit, match=r"lacks \[.*'hf_dparallel/demo/student/teacher/model.safetensors'\]"):
        WHEEL_TEST["check_wheel"](incomplete)


def test_the_lower_bounds_are_at_most_the_versions_that_are_tested(wheel):
    lowest = dict(requirement.split("==") for requirement in WHEEL_TEST["lower_bounds"](wheel))
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert {"transformers", "peft", "trl"} <= set(lowest) <= set(pins) and "torch" not in lowest
    for name, version in lowest.items():
        assert [int(part) for part in version.split(".")] <= [int(part) for part in pins[name].split(".")]


def test_the_description_for_the_index_has_no_link_into_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        description = email.message_from_bytes(archive.read(name)).get_payload()
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert len(links) > 2 and all(link.startswith("https://") for link in links)
    assert "training (`docs/training.md`)" in description
    assert not re.search(r"^!", description, flags=re.MULTILINE)


def test_the_command_is_installed(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        entry_points = archive.read(name).decode()
    assert "hf-dparallel = hf_dparallel_cli:main" in entry_points
