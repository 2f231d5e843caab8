# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tasks that a run asks for, checked before anything is downloaded, loaded or decoded."""

import difflib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind

from ..sandbox.runner import run_programs
from .code_tasks import TASKS_FOLDER, SandboxedCodeTask


# That ours take the place of the harness's is meant.
logging.getLogger("lm_eval.tasks._index").addFilter(lambda record: str(TASKS_FOLDER) not in record.getMessage())


def make_task_manager(include_path: str | None = None) -> TaskManager:
    """Finds the harness's tasks, ours that take the place of some, and those in a folder.

    Raises:
        ValueError: if there is no such folder.
    """
    folders: list[str | Path] = [TASKS_FOLDER]
    if include_path is not None:
        if not Path(include_path).is_dir():
            raise ValueError(
                f"`include_path={include_path}` is no folder. Give the folder with the YAML files of tasks."
            )
        folders.append(include_path)
    return TaskManager(include_path=folders)


def select_tasks(task_manager: TaskManager, names: Sequence[str], allow_code_execution: bool) -> list[str]:
    """Returns the names of tasks and groups; patterns such as `minerva_math_*` stand for all that match.

    Raises:
        ValueError: for a task that does not exist, or that executes programs without permission or without a sandbox.
    """
    selected: dict[str, None] = {}
    for name in names:
        matches = task_manager.match_tasks([name])
        if not matches:
            close = difflib.get_close_matches(name, task_manager.all_tasks, n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"There is no task {name!r}.{hint} `lm_eval ls tasks` lists them.")
        selected |= dict.fromkeys(matches)
    _check_code_execution(task_manager, list(selected), allow_code_execution)
    return list(selected)


def load_tasks(task_manager: TaskManager, names: Sequence[str], allow_code_execution: bool) -> None:
    """Loads tasks and their data, which shows what cannot be loaded, and what groups define themselves.

    Raises:
        ValueError: for a task that executes programs without permission or without a sandbox.
    """
    tasks = task_manager.load(list(names))["tasks"]
    executing = {name: task for name, task in tasks.items() if getattr(task, "UNSAFE_CODE", False)}
    unprotected = [name for name, task in executing.items() if not isinstance(task, SandboxedCodeTask)]
    _refuse(list(executing), unprotected, allow_code_execution)


def _check_code_execution(task_manager: TaskManager, names: Sequence[str], allowed: bool) -> None:
    entries = {entry.name: entry for name in names for entry in _leaves(task_manager, name)}
    executing = {name: entry for name, entry in entries.items() if (entry.cfg or {}).get("unsafe_code")}
    unprotected = [name for name, entry in executing.items() if "SandboxedCodeTask" not in str(entry.cfg)]
    if executing and allowed:
        # Where there is no sandbox, it is said now.
        run_programs(["pass"])
    _refuse(list(executing), unprotected, allowed)


def _refuse(executing: Sequence[str], unprotected: Sequence[str], allowed: bool) -> None:
    if executing and not allowed:
        raise ValueError(
            f"{', '.join(executing)}: these tasks execute the programs that the model writes. Add "
            "--allow_code_execution to let each run in a sandbox, or leave them out."
        )
    if unprotected:
        protected = sorted(path.stem for path in TASKS_FOLDER.glob("*.yaml"))
        raise ValueError(
            f"{', '.join(unprotected)}: these tasks execute programs without a sandbox. Leave them out. Sandboxed are "
            f"{', '.join(protected)}."
        )


def _leaves(task_manager: TaskManager, name: str) -> Iterator[Entry]:
    """The single tasks that a name stands for."""
    entry = task_manager.task_index.get(name)
    if entry is None:
        return
    if entry.kind is Kind.TAG:
        members = sorted(entry.tags)
    elif entry.kind is Kind.GROUP:
        children = (entry.cfg or {}).get("task") or []
        members = [
            child if isinstance(child, str) else child.get("task", child.get("group"))
            for child in ([children] if isinstance(children, str) else children)
        ]
    else:
        yield entry
        return
    for member in members:
        if isinstance(member, str):
            yield from _leaves(task_manager, member)
