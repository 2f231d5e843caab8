# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rule of KLASS, an example, for tests of rules with a memory."""

import runpy
from unittest.mock import patch

import pytest

from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS

from ..pages import ROOT


@pytest.fixture(scope="module")
def klass():
    """Lets a module decode with `kl_threshold`."""
    with patch.dict(SETTINGS), patch.dict(commit_rules.RULES):
        runpy.run_path(str(ROOT / "examples" / "klass_rule.py"))
        yield
