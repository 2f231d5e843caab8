# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the package and its libraries declare, read from their source: importing them takes seconds."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hf_dparallel_rules.settings import SETTINGS


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


def setting_rows() -> list[Row]:
    """Returns the settings that a command line can say."""
    rows = []
    for setting in SETTINGS.values():
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
