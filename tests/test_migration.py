# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""docs/migration.md names settings that exist. (test_readme.py parses its commands.)"""

import dataclasses
import re
from collections import defaultdict
from pathlib import Path

from hf_dparallel import CertaintyForcingConfig, DiffusionGenerationConfig, DiffusionGenerationOutput
from hf_dparallel_cli import program
from hf_dparallel_cli.training import ARGUMENTS
from hf_dparallel_rules.settings import suggest


PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[tuple[str, str]]:
    """The rows of the table under a heading: our name, some with a value, and the other cells."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `([^`]+)` \|(.*)", section, flags=re.MULTILINE)


def settings(heading: str) -> list[str]:
    """The names, some with a value, in the first column of the table under a heading."""
    return [setting for setting, _ in rows(heading)]


def test_settings_of_decoding_exist():
    known = DiffusionGenerationConfig()
    outputs = {field.name for field in dataclasses.fields(DiffusionGenerationOutput)}
    found = settings("Decoding")
    assert len(found) >= 15
    for setting in found:
        if "=" in setting:
            DiffusionGenerationConfig(**eval(f"dict({setting})"))
        else:
            assert hasattr(known, setting) or setting in outputs, setting


def test_names_of_others_are_answered_with_ours():
    flags, ours = {param.name for param in program.commands["generate"].params}, defaultdict(set)
    for setting, cells in rows("Decoding"):
        for name in re.findall(r"`(\w+)[`,]", cells):
            if setting.partition("=")[0] in flags and name not in flags and not name.startswith("generate_with"):
                ours[name].add(setting.partition("=")[0])
    assert len(ours) >= 10
    for name, settings_of_ours in ours.items():
        assert settings_of_ours & set(re.findall(r"`(\w+)`", suggest(name, flags))), name


def test_settings_of_training_exist():
    names = {field.name for kind in ARGUMENTS for field in dataclasses.fields(kind)}
    found = settings("Training")
    assert len(found) >= 10
    for setting in found:
        name = setting.partition("=")[0]
        assert name in names, setting
        if "=" in setting:
            CertaintyForcingConfig("student", use_cpu=True, **eval(f"dict({setting})"))
