# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the package and its libraries declare, read from their source: importing them takes seconds.

Settings of decoding are calls with literal arguments, `add_setting(...)` and `@commit_rule(...)`; flags of training
are fields of dataclasses with a help text.
"""

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "object": object}
# An entry of the section `Parameters` of a docstring: the name, and the text.
_ENTRY = re.compile(r"^ {8}(\w+) \(.+\):\n((?: {12}.+\n)+)", re.MULTILINE)
# What only the library can tell, because it is no literal.
_UNKNOWN = object()


class Field(NamedTuple):
    """A field of a dataclass: its name, its type as text, its default, and its metadata."""

    name: str
    type: str
    default: Any
    metadata: dict[str, Any]
    is_required: bool = False


def folder_of(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed.")
    return Path(spec.origin).parent


def read_settings() -> dict[str, Any]:
    """Returns the table of the decoding settings, by name, with the entries of all rules and ways to revise."""
    folder = folder_of("hf_dparallel") / "generation"
    # These two modules need no library, and are run as they are, in a package that stands for their folder.
    package = ModuleType("_hf_dparallel_generation")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    settings = import_module(f"{package.__name__}.settings")
    rules = import_module(f"{package.__name__}.commit_rules")
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        if path.name != "settings.py":
            for function, values, named in _declarations(path):
                if function == "commit_rule":
                    rules.commit_rule(*values, **named)(None)
                else:
                    settings.add_setting(*values, **named)
    return settings.SETTINGS


def read_setting_fields() -> list[Field]:
    """Returns the settings that a command line can say."""
    return [
        Field(name, setting.type.__name__, setting.default, {"help": setting.help, "setting": setting})
        for name, setting in read_settings().items()
        if setting.has_flag
    ]


def _declarations(path: Path) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in ("add_setting", "commit_rule") and isinstance(node.args[0], ast.Constant):
            named = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
            yield node.func.id, [_value(argument) for argument in node.args], named


def read_fields(path: Path, *classes: str) -> list[Field]:
    """Returns the fields that have a help text, of all dataclasses in a file or of those that are named.

    The text is in the metadata of the field, or in the docstring of the class as in [`documented`].
    """
    if not path.is_file():
        return []  # in this version of the library they are elsewhere, and it reads them itself
    fields = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and (not classes or node.name in classes):
            is_documented = "documented" in map(ast.unparse, node.decorator_list)
            texts = dict(_ENTRY.findall(ast.get_docstring(node, clean=False) or "")) if is_documented else {}
            fields += [_field(part, texts) for part in node.body if isinstance(part, ast.AnnAssign)]
    return [field for field in fields if "help" in field.metadata]


def _field(statement: ast.AnnAssign, texts: dict[str, str]) -> Field:
    name, value = ast.unparse(statement.target), statement.value
    arguments = {"default": value} if value is not None else {}
    if isinstance(value, ast.Call):
        arguments = {str(keyword.arg): keyword.value for keyword in value.keywords}
    metadata = {"help": " ".join(texts[name].split())} if name in texts else {}
    if isinstance(given := arguments.get("metadata"), ast.Dict):
        keys, values = map(_value, given.keys), map(_value, given.values)
        metadata |= {key: value for key, value in zip(keys, values, strict=True) if value is not _UNKNOWN}
    default = _value(arguments["default"]) if "default" in arguments else None
    return Field(
        name=name,
        type=ast.unparse(statement.annotation),
        default=None if default is _UNKNOWN else default,
        metadata=metadata,
        is_required=not {"default", "default_factory"} & arguments.keys(),
    )


def _value(node: ast.expr | None) -> Any:
    """What an expression is, if it is a literal or the name of a type."""
    if isinstance(node, ast.Name) and node.id in _TYPES:
        return _TYPES[node.id]
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return _UNKNOWN
