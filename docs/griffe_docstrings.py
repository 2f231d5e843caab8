# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Griffe extension: reads the docstrings of the package, which are written as in transformers.

Cross-references such as [`~DiffusionGenerationConfig`] become links to the API page if they name something public, and
code otherwise. The types of arguments, which griffe shows as they are, lose their Markdown. Settings that the package
lists in a docstring at import are taken from there. A dataclass whose fields have a help shows them as parameters, and
every entry its file.
"""

import dataclasses
import inspect
import pydoc
import re

import griffe


_REFERENCE = re.compile(r"\[`(~?)([\w.]+)`\](?![(\[])")
_ARGUMENT = re.compile(r"^( +\*{0,2}[\w, ]+ \()(.+)(\):)", flags=re.MULTILINE)
_RETURNED = re.compile(r"^( *Returns:\n +)\[?`~?([^`]+)`\]?(?=:\s)", flags=re.MULTILINE)
_GROUP_OF_ARGUMENTS = re.compile(r"^ +> .+\n\n?", flags=re.MULTILINE)
_NOTE = re.compile(r"^> \[!NOTE\]\n((?:> ?.*(?:\n|$))+)", flags=re.MULTILINE)


def plain_types(text: str) -> str:
    """Writes "a ([`~x.B`], *optional*):" as "a (B, optional):", and a returned "`B`:" as "B:"."""

    def plain(match: re.Match) -> str:
        types = _REFERENCE.sub(
            lambda reference: reference[2].rsplit(".", 1)[-1], match[2]
        )
        return match[1] + re.sub("[`*]", "", types) + match[3]

    return _RETURNED.sub(
        r"\1\2", _ARGUMENT.sub(plain, _GROUP_OF_ARGUMENTS.sub("", text))
    )


def note_as_admonition(text: str) -> str:
    """Writes GitHub's "> [!NOTE]" as MkDocs' "!!! note"."""

    def admonition(match: re.Match) -> str:
        lines = [line[2:] for line in match[1].splitlines()]
        first_item = next(
            (i for i, line in enumerate(lines) if line.startswith("- ")), len(lines)
        )
        lines.insert(first_item, "")  # MkDocs needs an empty line before a list
        return (
            "!!! note\n\n" + "\n".join(f"    {line}".rstrip() for line in lines) + "\n"
        )

    return _NOTE.sub(admonition, text)


def link_references(text: str, public_names: set[str]) -> str:
    """Turns references to public names and their members into links, others into plain code."""

    def link(match: re.Match) -> str:
        shortened, target = match.groups()
        target = target.removeprefix("hf_dparallel.")
        shown = target.rsplit(".", 1)[-1] if shortened else target
        public = target.split(".")[0]
        return (
            f"[`{shown}`][hf_dparallel.{public}]"
            if public in public_names
            else f"`{shown}`"
        )

    return _REFERENCE.sub(link, text)


def parameters_of_fields(configuration: type) -> str:
    """Returns the section of parameters of a dataclass, from the help of the fields that it declares."""
    if not dataclasses.is_dataclass(configuration):
        return ""
    own = vars(configuration).get("__annotations__", {})
    fields = [field for field in dataclasses.fields(configuration) if field.name in own]
    entries = [
        f"    {field.name} (`{getattr(field.type, '__name__', field.type)}`, *optional*, defaults to "
        f"`{field.default!r}`):\n        {field.metadata['help']}"
        for field in fields
        if "help" in field.metadata
    ]
    return "\n\nParameters:\n" + "\n".join(entries) if entries else ""


class HuggingFaceDocstrings(griffe.Extension):
    """Rewrites the docstring of every object of the package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        public_names = {name for name, member in pkg.members.items() if member.is_alias}
        self._rewrite(pkg, public_names)

    def _rewrite(self, node: griffe.Object, public_names: set[str]) -> None:
        if node.docstring is not None:
            text = node.docstring.value
            text = (
                inspect.getdoc(pydoc.locate(node.path))
                if "{settings}" in text
                else text
            )
            if node.is_class and "dataclass" in node.labels:
                text += parameters_of_fields(pydoc.locate(node.path))
            text = note_as_admonition(plain_types(text))
            if node.is_class or (node.is_function and node.parent.is_module):
                text += f"\n\n*Source:* `src/{node.relative_package_filepath}`, line {node.lineno}"
            node.docstring.value = link_references(text, public_names)
        for member in node.members.values():
            if not member.is_alias:
                self._rewrite(member, public_names)
