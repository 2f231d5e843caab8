# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Registration beside other libraries that register the same types, each program in a process of its own."""

import pytest

from ..test_package import run_python


_OTHER = """
from transformers import AutoConfig, PreTrainedConfig

class OtherConfig(PreTrainedConfig):
    model_type = "llada"

AutoConfig.register("llada", OtherConfig)
"""
_OURS = """
import hf_dparallel
"""
_FOUND = """
print(type(AutoConfig.for_model("llada")).__name__, type(AutoConfig.for_model("Dream")).__name__)
"""


@pytest.mark.parametrize(
    ("program", "found"),
    [(_OURS + _OTHER, "OtherConfig DreamConfig"), (_OTHER + _OURS, "LLaDAConfig DreamConfig")],
)
def test_of_two_libraries_the_last_wins(program, found):
    assert run_python(program + _FOUND) == found


def test_other_types_are_registered_as_ever():
    program = """
class BertConfig(PreTrainedConfig):
    model_type = "bert"

try:
    AutoConfig.register("bert", BertConfig)
except ValueError as error:
    print(error)
"""
    assert "'bert' is already used by a Transformers config" in run_python(_OURS + _OTHER + program)


def test_reloading_the_package_changes_nothing():
    program = """
import importlib, sys
before = list(sys.meta_path)
importlib.reload(hf_dparallel)
print(sys.meta_path == before)
"""
    assert run_python(_OURS + program) == "True"
