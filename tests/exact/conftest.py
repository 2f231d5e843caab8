# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.

import math

import pytest

from hf_dparallel.exact import draft_length


@pytest.fixture(autouse=True)
def passes_of_one_price(monkeypatch):
    """Has tokens of a pass cost nothing: passes have all masks that they can have, on every machine."""
    monkeypatch.setattr(draft_length, "measure_free_tokens", lambda model: math.inf)
