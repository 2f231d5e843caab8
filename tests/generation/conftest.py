# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rule of KLASS, which docs/add_a_rule.md prints, for tests of rules with a memory."""

from unittest.mock import patch

import pytest

from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS

from ..pages import python_blocks


@pytest.fixture(scope="module")
def klass():
    """Lets a module decode with `kl_threshold`."""
    with patch.dict(SETTINGS), patch.dict(commit_rules._RULES):
        exec(python_blocks("docs/add_a_rule.md")[1], {"__name__": "of_the_page"})
        yield
