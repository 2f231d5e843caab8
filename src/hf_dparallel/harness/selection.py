# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tasks that a run asks for, checked before anything is downloaded, loaded or decoded."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from lm_eval import tasks
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind

from ..sandbox.runner import run_programs
from .code_tasks import TASKS_FOLDER, is_sandboxed


_HARNESS_FOLDER = str(Path(tasks.__file__).parent)


def make_task_manager(include_path: str | None = None) -> TaskManager:
    """Finds the harness's tasks, ours that take the place of some, and those in a folder.

    Raises:
        ValueError: if there is no such folder.
    """
    if include_path is not None and not Path(include_path).is_dir():
        raise ValueError(f"`include_path={include_path}` is no folder. Give the folder with the YAML files of tasks.")
    manager = TaskManager(include_path=include_path)
    ours = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False).task_index
    # Tasks of the user keep their names. As `include_path`, ours would replace the harness's with a warning for each.
    index = manager.task_index
    index |= {name: entry for name, entry in ours.items() if str(index[name].yaml_path).startswith(_HARNESS_FOLDER)}
    return manager


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
    loaded = task_manager.load(list(names))["tasks"]
    executing = {name: task for name, task in loaded.items() if getattr(task, "UNSAFE_CODE", False)}
    unprotected = [
        name
        for name, task in executing.items()
        if not is_sandboxed(task.get_config("metric_list"), task.get_config("process_results"))
    ]
    _refuse(list(executing), unprotected, allow_code_execution)


def _check_code_execution(task_manager: TaskManager, names: Sequence[str], allowed: bool) -> None:
    entries = {entry.name: entry for name in names for entry in _leaves(task_manager, name)}
    executing = {name: entry.cfg for name, entry in entries.items() if entry.cfg and entry.cfg.get("unsafe_code")}
    unprotected = [
        name
        for name, config in executing.items()
        if not is_sandboxed(config.get("metric_list"), config.get("process_results"))
    ]
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
