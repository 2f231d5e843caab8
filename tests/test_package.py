# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The package as a whole: its public names, what importing it costs, and the direction of its imports."""

import ast
import importlib.util
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hf_dparallel

from .processes import run_python


ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
MAX_FUNCTION_STATEMENTS = 40


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCES.rglob("*.py"))}


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(body: list[ast.stmt], inside_functions: bool, for_types: bool):
    """Yields the statements that run on import, with `inside_functions` also the ones inside functions."""
    for node in body:
        if is_type_checking(node) and not for_types:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            yield from statements(getattr(node, field, []), inside_functions, for_types)


@cache
def imported_modules(name: str, inside_functions: bool = False, for_types: bool = False) -> set[str]:
    """Returns the modules of this package that module `name` imports by name, and `for_types` only."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body, inside_functions, for_types):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
        else:
            continue
        found |= {target for target in targets if target in MODULES}
    return found - {name}


def subpackage(module: str) -> str:
    """`hf_dparallel.models.llada.x` is in `models`; the rules are `rules`, and the commands `cli`."""
    for package in ("rules", "cli"):
        if module.startswith(f"hf_dparallel_{package}"):
            return package
    return module.split(".")[1] if module.startswith("hf_dparallel.") else ""


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Certainty'"):
        _ = hf_dparallel.Certainty


_IMPORTS = """
import gc, sys
gc.disable()
for name in ("trl", "datasets", "evaluate"):
    sys.modules[name] = None
import torch
from transformers import AutoConfig, AutoModelForMaskedLM
import hf_dparallel
config = AutoConfig.for_model("llada", d_model=8, n_layers=1, n_heads=2, mlp_hidden_size=8, vocab_size=8,
    mask_token_id=7, eos_token_id=1, pad_token_id=1)
model = AutoModelForMaskedLM.from_config(config)
print(type(model).__name__, *model.generate(torch.tensor([[2, 3]]), max_new_tokens=4, block_length=4).shape)
print("transformers.trainer" in sys.modules)
for name in ("trl", "datasets", "evaluate"):
    del sys.modules[name]
import hf_dparallel.training.trainer
print("trl" in sys.modules)
print(*dir(hf_dparallel))
"""


@pytest.fixture(scope="module")
def imports() -> list[str]:
    return run_python(_IMPORTS).splitlines()


def test_decoding_needs_no_library_of_training(imports):
    assert imports[:2] == ["LLaDAForMaskedDiffusion 1 6", "False"]


def test_importing_the_trainer_does_not_import_trl(imports):
    assert imports[2] == "False"


def test_public_names_are_listed_before_they_are_imported(imports):
    assert {"CertaintyForcingTrainer", "LLaDAConfig", "generate_trajectories"} <= set(imports[3].split())


def test_imports_have_no_cycle():
    """Neither inside functions nor for types."""
    graph = {name: imported_modules(name, inside_functions=True, for_types=name != "hf_dparallel") for name in MODULES}
    assert graph["hf_dparallel.models.llada.modeling_llada"]  # relative imports are seen
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


# What stands higher may import what stands lower, never the other way round, and nobody imports another of its layer.
LAYERS = [
    ("rules", "_version", "_releases", "attention_masks", "hashes", "reports"),
    ("environment", "generation"),
    ("exact",),
    ("models", "data"),
    ("inspection",),
    ("evaluation", "serving"),
    ("hub",),
    ("training",),
    ("demo", "_on_demand", "experimental"),
    # The face of the package: the public names.
    ("",),
    ("cli",),
]
FLOOR = {package: floor for floor, packages in enumerate(LAYERS) for package in packages}


def test_every_package_has_its_layer():
    assert {subpackage(name) for name in MODULES} == FLOOR.keys()


@pytest.mark.parametrize("package", FLOOR)
def test_imports_go_one_way(package):
    for name in (name for name in MODULES if subpackage(name) == package):
        imported = imported_modules(name, inside_functions=True, for_types=True)
        if name == "hf_dparallel.hub.custom_generate.generate":
            continue  # runs in a repository on the Hub, as anybody's code that uses this package
        wrong = [
            target
            for target in imported
            if subpackage(target) != package and FLOOR[subpackage(target)] >= FLOOR[package]
        ]
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_rules_import_torch_at_most():
    for name in (name for name in MODULES if subpackage(name) == "rules"):
        nodes = list(statements(ast.parse(MODULES[name].read_text()).body, inside_functions=True, for_types=True))
        targets = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        targets |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        assert {target.partition(".")[0] for target in targets} <= {*sys.stdlib_module_names, "torch"}, name


def test_the_page_for_readers_has_the_layers_and_the_files():
    """Each line of its picture is one layer or a part of one, and what is left out is below or beside the method."""
    page = (ROOT / "docs" / "read_the_code.md").read_text()
    picture = page.split("```text")[1].split("```")[0].splitlines()[1:]
    lines = [re.split(r" {3,}", line.rstrip())[:-1] for line in picture]
    floors = [{FLOOR[room] for room in rooms} for rooms in lines]
    assert all(len(floor) == 1 for floor in floors)
    order = [floor for (floor,) in floors]
    assert order == sorted(order, reverse=True)
    left_out = FLOOR.keys() - {room for rooms in lines for room in rooms}
    assert left_out == {"_version", "_releases", "_on_demand", ""}

    files = re.findall(r"^\| `(hf_dparallel\S+)` \|", page, flags=re.MULTILINE)
    assert files
    assert [name for name in files if not (SOURCES / name).exists()] == []


def test_tests_share_what_is_in_helpers():
    """None imports from another test file or from a conftest."""
    shared = []
    for path in ROOT.glob("tests/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            shared += [f"{path.name}: {name}" for name in names if re.search(r"(^|\.)(test_\w+|conftest)$", name)]
    assert not shared


def test_functions_are_short():
    """By statements: empty lines between the steps of a function cost nothing."""
    too_long = []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = sum(isinstance(each, ast.stmt) for each in ast.walk(node))
                if size > MAX_FUNCTION_STATEMENTS:
                    too_long.append(f"{name}.{node.name}: {size} statements")
    assert not too_long


def test_docstrings_of_functions_begin_with_verbs():
    """At most one in twenty begins with another word than a verb in the third person, such as "Returns"."""
    nouns = {"as", "characters", "inputs", "its", "lengths", "logits", "prompts", "rows", "settings", "this", "tokens"}
    verbs, others = [], []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
            if text:
                word = re.match(r"\w*", text)[0].lower()
                found = verbs if word.endswith("s") and word not in nouns else others
                found.append(f"{name}.{node.name}: {text.splitlines()[0]}")
    assert len(others) <= 0.05 * len(verbs), "\n".join(others)


def test_sources_carry_the_licence():
    header = "# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0."
    missing = [name for name, path in MODULES.items() if (text := path.read_text()) and not text.startswith(header)]
    assert not missing


def test_version_is_in_the_changelog_and_the_citation():
    version = re.escape(hf_dparallel.__version__)
    assert re.search(rf"^## \[{version}\] - ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)


def test_torch_is_pinned_where_the_makefile_reads_it():
    pins = re.findall(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert len(pins) == 1
