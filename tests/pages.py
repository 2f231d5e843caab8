# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The README and the pages of docs/: their blocks, and the commands in them."""

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hf_dparallel_cli import main, program
from hf_dparallel_cli.options import import_files
from hf_dparallel_cli.training import read_arguments
from hf_dparallel_rules import commit_rules
from hf_dparallel_rules.settings import SETTINGS


ROOT = Path(__file__).parents[1]
# docs/index.md is the README.
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PAGES.remove("docs/index.md")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def read(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str | Path, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(read(page)) if found == language]


def python_blocks(page: str | Path) -> list[str]:
    return blocks(page, "python")


def run_blocks(page: str | Path, on_the_hub: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs the Python blocks of a page in one namespace, which it returns.

    Args:
        page (`str`): the page.
        on_the_hub (`dict[str, str]`, *optional*): by names of models on the Hub, folders that take their place.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for index, source in enumerate(python_blocks(page), start=1):
        for name, folder in (on_the_hub or {}).items():
            source = source.replace(f'"{name}"', repr(folder))
        exec(compile(source, f"{page}, block {index}", "exec"), namespace)
    return namespace


def shell_commands(page: str) -> list[list[str]]:
    """Returns the words of every command in the bash blocks of a page."""
    lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(part, comments=True) for line in lines for part in re.split(r"&&|(?<!\|)\|(?!\|)", line)]
    return [words for words in commands if words]


def arguments_of_ours(words: list[str]) -> list[str] | None:
    """Returns the words behind `hf-dparallel`, or behind `hf_dparallel_cli` under a launcher."""
    words = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    if words[:1] == ["hf-dparallel"]:
        rest = words[1:]
    elif "hf_dparallel_cli" in words:
        rest = words[words.index("hf_dparallel_cli") + 1 :]
    else:
        return None
    return list(itertools.takewhile(lambda word: word not in ("<", ">", "&"), rest))


@contextlib.contextmanager
def rules_of_files() -> Iterator[None]:
    """Has the file that docs/add_a_rule.md shows in this folder, and what `--import` changes as before afterwards."""
    Path("margin_rule.py").write_text(python_blocks("docs/add_a_rule.md")[0])
    with contextlib.ExitStack() as stack:
        for command in program.commands.values():
            stack.enter_context(patch.object(command, "params", list(command.params)))
        stack.enter_context(patch.dict(SETTINGS))
        stack.enter_context(patch.dict(commit_rules.RULES))
        yield


def parse_only(argv: list[str]) -> None:
    """Reads the arguments of a command, in the folder of the repository, and does not run it."""
    import_files(argv, program.commands.values())
    with contextlib.chdir(ROOT):
        if argv and argv[0] in program.commands:
            if argv[0] == "train":
                # Configurations ask for bfloat16, which the arguments of the Trainer refuse where there is no GPU.
                read_arguments([*argv[1:], "--use_cpu"])
            else:
                program.commands[argv[0]].make_context(argv[0], argv[1:])
        else:
            assert main(argv) == 0
