# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What tests of decoding share: the commit rule of KLASS, an example with a memory, and the price of drafts."""

import math
import runpy
from unittest.mock import patch

import pytest

from hf_dparallel.exact import draft_length
from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS

from ..pages import ROOT


@pytest.fixture(scope="module")
def klass():
    """Lets a module decode with `kl_threshold`."""
    with patch.dict(SETTINGS), patch.dict(commit_rules.RULES):
        runpy.run_path(str(ROOT / "examples" / "klass_rule.py"))
        yield


@pytest.fixture(autouse=True)
def _passes_of_one_price(monkeypatch):
    """Has exact decoding draft as many tokens on every machine."""
    monkeypatch.setattr(draft_length, "measure_free_tokens", lambda model: math.inf)
