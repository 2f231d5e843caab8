# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A way to decode or to train is one file: without it the package decodes and trains, and its settings are unknown."""

import ast
import json
import os
import shutil
from pathlib import Path

from .processes import run_program


ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
FOLDERS = ("hf_dparallel_rules/rules", "hf_dparallel_rules/revision", "hf_dparallel/training/variants")
FILES = [path for folder in FOLDERS for path in sorted((SOURCES / folder).glob("[!_]*.py"))]
# Their settings are fields of classes.
VARIANTS = {
    "on_policy": ["on_policy_ratio"],
    "soft_targets": ["near_steps", "teacher_temperature"],
}
# Each copy of the package is tried in a process of its own, which has the libraries already.
_PROGRAM = """
import dataclasses, json, os, sys, tempfile, traceback
import datasets, peft, torch, transformers.trainer

ours = ("hf_dparallel", "hf_dparallel_rules", "tests")
for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
    del sys.modules[name]

def work(names):
    from hf_dparallel import CertaintyForcingConfig
    from hf_dparallel_rules.settings import SETTINGS
    from tests.helpers import make_llada, make_trainer
    out = make_llada().generate(torch.tensor([[2, 3]]), max_new_tokens=8, block_length=4, return_dict_in_generate=True)
    assert out.sequences.shape == (1, 10) and out.nfe.item() <= 8
    with tempfile.TemporaryDirectory() as folder:
        assert make_trainer(folder, rows=2).train().global_step == 1
    known = {*SETTINGS, *(field.name for field in dataclasses.fields(CertaintyForcingConfig))}
    assert "block_length" in known and not known & set(names), names

for copy, names in json.loads(sys.argv[1]).items():
    process = os.fork()
    if process == 0:
        sys.path[:0] = [copy, sys.argv[2]]
        try:
            work(names)
            import hf_dparallel, hf_dparallel_rules
            assert all(module.__file__.startswith(copy) for module in (hf_dparallel, hf_dparallel_rules))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        raise RuntimeError(f"The package does not work in {copy}")
"""


def settings_of(path: Path) -> list[str]:
    """The settings that a file declares."""
    if path.parent.name == "variants":
        return VARIANTS[path.stem]
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [call.args[0].value for call in calls if ast.unparse(call.func) in ("add_setting", "commit_rule")]


def test_every_method_can_be_deleted(tmp_path):
    copies = {}
    for path in FILES:
        copy = tmp_path / path.parent.name / path.stem
        for package in ("hf_dparallel", "hf_dparallel_rules"):
            shutil.copytree(SOURCES / package, copy / package, copy_function=os.symlink)
        (copy / path.relative_to(SOURCES)).unlink()
        if path.parent.name == "variants":
            names = copy / "hf_dparallel/training/variants/__init__.py"
            lines = names.read_text(encoding="utf-8").splitlines()
            cls = next(line.split()[-1] for line in lines if line.startswith(f"from .{path.stem} "))
            names.unlink()
            names.write_text("\n".join(line for line in lines if cls not in line), encoding="utf-8")
        if path.parent.name == "revision":  # its code has the name of its settings
            (copy / "hf_dparallel" / "generation" / "revision" / path.name).unlink()
        copies[str(copy)] = settings_of(path)
    assert len(copies) >= 11 and all(copies.values())
    status, output = run_program(_PROGRAM, json.dumps(copies), ROOT)
    assert status == 0, output[-3000:]
