# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the package and its libraries declare, read from their source: importing them takes seconds."""

import ast
import re
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


# An entry of the section `Parameters` of a docstring: the name, and the text.
_ENTRY = re.compile(r"^ {8}(\w+) \(.+\):\n((?: {12}.+\n)+)", re.MULTILINE)


class Row(NamedTuple):
    """A flag: its type as text, `more` with its help text, and under which heading it is in the help."""

    name: str
    type: str
    default: Any
    more: dict[str, Any]
    is_required: bool = False
    title: str = ""


def folder_of(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed.")
    return Path(spec.origin).parent


@cache
def import_generation(name: str) -> Any:
    """Returns a module of decoding that needs no library: the settings, or the commit rules."""
    # They are run as they are, in a package that stands for their folder.
    package = sys.modules.setdefault("_hf_dparallel_generation", ModuleType("_hf_dparallel_generation"))
    package.__path__ = [str(folder_of("hf_dparallel") / "generation")]
    return import_module(f"{package.__name__}.{name}")


@cache
def read_settings() -> dict[str, Any]:
    """Returns the table of the decoding settings, by name, with the entries of all rules and ways to revise."""
    settings, rules = import_generation("settings"), import_generation("commit_rules")
    folder = Path(settings.__file__).parent
    # The others need torch. They declare settings by calls with literal arguments, which are run without the rest.
    known = {"add_setting": settings.add_setting, "commit_rule": rules.commit_rule}
    for path in sorted([*folder.glob("rules/*.py"), *folder.glob("revision/*.py")]):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            for call in [getattr(statement, "value", None), *getattr(statement, "decorator_list", ())]:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in known:
                    decorate = eval(compile(ast.Expression(call), path, "eval"), dict(known))
                    if decorate is not None:
                        decorate(None)
    return settings.SETTINGS


def setting_rows() -> list[Row]:
    """Returns the settings that a command line can say."""
    rows = []
    for setting in read_settings().values():
        if setting.has_flag:
            kind = setting.type.__name__
            more = {"help": setting.help, "setting": setting}
            more |= {"choices": setting.choices} if setting.choices else {"metavar": kind.upper()}
            rows.append(Row(setting.name, kind, setting.default, more))
    return rows


def field_rows(path: Path, *classes: str) -> list[Row]:
    """Returns the fields that have a help text, of all dataclasses in a file or of those that are named.

    The text is in the metadata of the field, or in the docstring of a class with the decorator `documented`.
    """
    if not path.is_file():
        return []  # in this version of the library they are elsewhere, and it reads them itself
    rows = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and (not classes or node.name in classes):
            is_documented = "documented" in map(ast.unparse, node.decorator_list)
            texts = dict(_ENTRY.findall(ast.get_docstring(node, clean=False) or "")) if is_documented else {}
            rows += [_row(part, texts) for part in node.body if isinstance(part, ast.AnnAssign)]
    return [row for row in rows if "help" in row.more]


def _row(statement: ast.AnnAssign, texts: dict[str, str]) -> Row:
    name, value = ast.unparse(statement.target), statement.value
    arguments = {"default": value} if value is not None else {}
    if isinstance(value, ast.Call):
        arguments = {str(keyword.arg): keyword.value for keyword in value.keywords}
    more = {"help": " ".join(texts[name].split())} if name in texts else {}
    metadata = arguments.get("metadata")
    if isinstance(metadata, ast.Dict):
        values = {_literal(key): _literal(value) for key, value in zip(metadata.keys, metadata.values, strict=True)}
        more |= {key: value for key, value in values.items() if value is not None}
    is_required = not {"default", "default_factory"} & arguments.keys()
    return Row(name, ast.unparse(statement.annotation), _literal(arguments.get("default")), more, is_required)


def _literal(node: ast.expr | None) -> Any:
    """What an expression is; `None` for what only the library can tell, because it is no literal."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
