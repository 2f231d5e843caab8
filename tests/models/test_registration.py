# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Registration with the Auto classes."""

from ..processes import run_python


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
print(type(AutoConfig.for_model("llada")).__name__, type(AutoConfig.for_model("Dream")).__name__, flush=True)
"""
# Imports transformers once for all orders.
_EACH_IN_A_FORK = f"""
import os, transformers
for program in {[_OURS + _OTHER + _FOUND, _OTHER + _OURS + _FOUND]}:
    if os.fork() == 0:
        exec(program)
        os._exit(0)
    os.wait()
"""


def test_of_two_libraries_the_last_wins():
    assert run_python(_EACH_IN_A_FORK).splitlines() == ["OtherConfig DreamConfig", "LLaDAConfig DreamConfig"]
