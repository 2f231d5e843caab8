# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The tasks that a run asks for, checked before anything is downloaded, loaded or decoded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval import tasks
from lm_eval.tasks import TaskManager

from hf_dparallel_rules.settings import suggest

from ..sandbox.programs import run_programs
from .code_tasks import TASKS_FOLDER, is_sandboxed


_HARNESS_FOLDER = str(Path(tasks.__file__).parent)


def make_task_manager(include_path: str | None = None) -> TaskManager:
    """Finds the harness's tasks, ours that take the place of some, and the tasks in a folder."""
    if include_path is not None and not Path(include_path).is_dir():
        raise ValueError(f"`include_path={include_path}` is no folder. Give the folder with the YAML files of tasks.")
    manager = TaskManager(include_path=include_path)
    ours = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False).task_index
    # Tasks of the user keep their names. As `include_path`, ours would replace the harness's with a warning for each.
    index = manager.task_index
    of_user = {name for name, entry in index.items() if not str(entry.yaml_path).startswith(_HARNESS_FOLDER)}
    index |= {name: entry for name, entry in ours.items() if name not in of_user}
    return manager


def select_tasks(task_manager: TaskManager, names: Sequence[str], allow_code_execution: bool) -> list[str]:
    """Returns the names of tasks and groups; patterns such as `minerva_math_*` stand for all that match."""
    selected: dict[str, None] = {}
    for name in names:
        matches = task_manager.match_tasks([name])
        if not matches:
            meant = suggest(name, task_manager.all_tasks) or "`lm_eval ls tasks` lists them."
            raise ValueError(f"There is no task {name!r}. {meant}")
        selected |= dict.fromkeys(matches)
    # Tasks of groups are checked when they are loaded.
    entries = {name: task_manager.task_index[name].cfg or {} for name in selected}
    executing = {name: config for name, config in entries.items() if config.get("unsafe_code")}
    _check_code_execution(executing, allow_code_execution)
    return list(selected)


def load_tasks(task_manager: TaskManager, names: Sequence[str], allow_code_execution: bool) -> None:
    """Loads tasks and their data, which shows what cannot be loaded, and what groups define themselves."""
    loaded = task_manager.load(list(names))["tasks"]
    executing = {
        name: {key: task.get_config(key) for key in ("metric_list", "process_results")}
        for name, task in loaded.items()
        if getattr(task, "UNSAFE_CODE", False)
    }
    _check_code_execution(executing, allow_code_execution)


def _check_code_execution(executing: Mapping[str, Mapping[str, Any]], allowed: bool) -> None:
    """Checks the configurations, by name, of tasks that execute programs."""
    if executing and not allowed:
        raise ValueError(
            f"{', '.join(executing)}: these tasks execute the programs that the model writes. Add "
            "--allow_code_execution to let each run in a sandbox, or leave them out."
        )
    unprotected = [name for name, config in executing.items() if not is_sandboxed(config)]
    if unprotected:
        protected = sorted(path.stem for path in TASKS_FOLDER.glob("*.yaml"))
        raise ValueError(
            f"{', '.join(unprotected)}: these tasks execute programs without a sandbox. Leave them out. Sandboxed are "
            f"{', '.join(protected)}."
        )
    if executing:
        # Fails now if there is no sandbox.
        run_programs(["pass"])
