# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Help and wrong usage, answered without the libraries, whose import takes seconds.

flags.json has the flags of each command as its own parser knows them; `python scripts/write_settings.py` writes it.
What only the libraries can tell, such as which settings contradict one another, the command itself refuses.
"""

import argparse
import difflib
import itertools
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn


_TYPES = {"int": int, "float": float}


class UsageError(ValueError):
    """Wrong usage that only the libraries, or a model, can tell."""


class Usage:
    """What a command is told by its flags.

    Args:
        command (`str`): its name.
        description (`str`): what it does.
    """

    def __init__(self, command: str, description: str):
        table = read_table()
        self.prog = f"hf-dparallel {command}"
        self.description = description
        self.positionals: list[str] = table["commands"][command]["positionals"]
        self.groups: dict[str, list[dict[str, Any]]] = table["commands"][command]["groups"]
        self.others: list[str] = table["commands"][command]["others"]
        # Flags of other libraries are those of other versions, too.
        self.knows_all = not self.others or table["versions"] == {name: version(name) for name in table["versions"]}

    def check(self, argv: Sequence[str]) -> None:
        """Shows the help if that is asked for, and refuses wrong usage. Both raise `SystemExit`, with code 0 and 2."""
        if "--help" in argv or "-h" in argv:
            print(self.help())
            sys.exit(0)
        parser = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        parser.error = lambda message: fail(self.prog, message)  # type: ignore[method-assign, assignment]
        for flag in itertools.chain(*self.groups.values()):
            names = dict.fromkeys(itertools.chain(*((name, _dashed(name)) for name in flag["names"])))
            kind = {"action": "store_true"} if flag.get("is_switch") else self._kind(flag)
            parser.add_argument(*names, **kind)
        for name in self.others:
            parser.add_argument(*dict.fromkeys((f"--{name}", _dashed(f"--{name}"))), nargs="*")
        given, unknown = parser.parse_known_args(with_flags(argv, self.positionals))
        if unknown and self.knows_all:
            fail(self.prog, f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(unknown[0], self.names())}")
        for flag in itertools.chain(*self.groups.values()):
            self._check_range(flag, getattr(given, flag["names"][0].lstrip("-")))
        required = [flag["names"] for flag in itertools.chain(*self.groups.values()) if flag.get("required")]
        missing = ["/".join(names) for names in required if getattr(given, names[0].lstrip("-")) is None]
        # A file may have them.
        if missing and given.config is None:
            fail(self.prog, f"the following arguments are required: {', '.join(missing)}")

    def _check_range(self, flag: dict[str, Any], value: Any) -> None:
        if value is None or "range" not in flag:
            return
        low, high = flag["range"]
        if not low <= value <= high or (flag["excludes_minimum"] and value == low):
            fail(self.prog, f"`{flag['names'][0].lstrip('-')}` must be {flag['rule']}, got {value}")

    def names(self) -> list[str]:
        """All flags, each in its first spelling."""
        own = [flag["names"][0] for flag in itertools.chain(*self.groups.values())]
        return [*own, *(f"--{name}" for name in self.others)]

    def help(self) -> str:
        """The help of the command."""
        positionals = "".join(f" {name.upper()}" for name in self.positionals)
        lines = [f"usage: {self.prog}{positionals} [options]", "", *_wrapped(self.description, "")]
        for title, flags in self.groups.items():
            lines += ["", f"{title}:"]
            for flag in flags:
                lines += [f"  {self._spelling(flag)}", *_wrapped(flag["help"], " " * 8)]
        if self.others:
            text = f"{', '.join(self.others)}. {self.prog} --help_all describes them."
            lines += ["", "of transformers and TRL:", *_wrapped(text, "  ")]
        return "\n".join(lines)

    def _spelling(self, flag: dict[str, Any]) -> str:
        name = flag["names"][0]
        value = "" if flag.get("is_switch") else f" {flag.get('metavar', name.lstrip('-').upper())}"
        if "choices" in flag:
            value = f" {{{','.join(flag['choices'])}}}"
        value = {"?": "", "+": f"{value} ...", "*": f"{value} ..."}.get(flag.get("nargs", ""), value)
        is_positional = name.lstrip("-") in self.positionals
        return f"{name.lstrip('-').upper()}, or {name}{value}" if is_positional else f"{name}{value}"

    def _kind(self, flag: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": _TYPES.get(flag.get("type", "")),
            "choices": flag.get("choices"),
            "nargs": flag.get("nargs"),
        }


def read_table() -> dict[str, Any]:
    """The table of the flags of all commands."""
    return json.loads(Path(__file__).with_name("flags.json").read_text(encoding="utf-8"))


def with_flags(argv: Sequence[str], positionals: Sequence[str]) -> list[str]:
    """Writes leading values as `--name value`. The last name takes all that is left."""
    leading = list(itertools.takewhile(lambda text: not text.startswith("-"), argv))
    flags: list[str] = []
    for index, name in enumerate(positionals[: len(leading)]):
        is_last = index == len(positionals) - 1
        flags += [f"--{name}", *(leading[index:] if is_last else leading[index : index + 1])]
    return flags + list(argv[len(leading) if positionals else 0 :])


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """What was probably meant, as the end of a sentence."""
    # `--name=value` is one word.
    close = difflib.get_close_matches(
        given.partition("=")[0].replace("-", "_"), {n.replace("-", "_"): n for n in known}
    )
    if not close:
        return ""
    name = close[0] if not given.startswith("--") else f"--{close[0].lstrip('_')}"
    return f" (did you mean {name}?)"


def fail(prog: str, message: str) -> NoReturn:
    """Says in one line what is wrong with the usage, and ends with code 2."""
    print(f"{prog}: error: {message} (`{prog} --help` lists the arguments)", file=sys.stderr, flush=True)
    sys.exit(2)


def _dashed(name: str) -> str:
    return f"--{name.lstrip('-').replace('_', '-')}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)
