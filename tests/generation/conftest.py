# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rule of KLASS, an example, for tests of rules with a memory."""

import importlib
import sys
from unittest.mock import patch

import pytest

from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS

from ..pages import ROOT


@pytest.fixture(scope="module")
def klass():
    """Lets a module decode with `kl_threshold`."""
    path = [str(ROOT / "examples"), *sys.path]
    with patch.dict(SETTINGS), patch.dict(commit_rules.RULES), patch.object(sys, "path", path):
        # A module, because compiled code imports the names that it uses.
        importlib.import_module("klass_rule")
        yield
    del sys.modules["klass_rule"]
