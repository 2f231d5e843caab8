# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs programs that nobody has read, such as a model's answers to programming tasks, with their tests."""

import contextlib
import itertools
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .supervisor import ProgramResult, SandboxUnavailableError, Supervisor
from .system_calls import is_known_machine


def run_programs(
    programs: Sequence[str],
    tests: Sequence[str] | None = None,
    *,
    timeout_s: float = 10.0,
    max_memory_mb: int = 1024,
    num_workers: int = 1,
) -> list[ProgramResult]:
    r"""
    Runs Python programs, each in a sandbox of its own.

    Args:
        programs (`Sequence[str]`): sources. `__name__` is not `"__main__"`, as in HumanEval's own implementation.
        tests (`Sequence[str]`, *optional*): a source for each program that runs after it, with its names. A program
            cannot skip its tests by how it ends, as it could in one source with them.
        timeout_s (`float`, *optional*, defaults to 10.0): seconds that a program may take, with its tests.
        max_memory_mb (`int`, *optional*, defaults to 1024): memory (address space) of a program and its interpreter.
        num_workers (`int`, *optional*, defaults to 1): programs that run side by side.

    Returns:
        `list[ProgramResult]`: in the order of the programs.

    Raises:
        SandboxUnavailableError: if this machine cannot isolate programs.

    Example:

    ```python
    >>> from hf_dparallel.sandbox.programs import run_programs

    >>> programs = ["def add(a, b): return a + b", "raise SystemExit(0)"]
    >>> [result.status for result in run_programs(programs, ["assert add(2, 3) == 5"] * 2)]
    ['passed', 'failed']
    ```
    """
    if num_workers < 1:
        raise ValueError(f"`num_workers` must be at least 1, got {num_workers}.")
    if tests is None:
        tests = [""] * len(programs)
    if len(tests) != len(programs):
        raise ValueError(f"`tests` must have an entry for each program, got {len(tests)} for {len(programs)}.")
    with ThreadPoolExecutor(num_workers) as executor:
        limits = itertools.repeat(timeout_s), itertools.repeat(max_memory_mb)
        return list(executor.map(run_program, programs, tests, *limits))


def run_program(program: str, tests: str = "", timeout_s: float = 10.0, max_memory_mb: int = 1024) -> ProgramResult:
    """Runs one program. See [`run_programs`]."""
    if timeout_s <= 0:
        raise ValueError(f"`timeout_s` must be above 0, got {timeout_s}.")
    if max_memory_mb < 256:
        raise ValueError(f"`max_memory_mb` must be at least 256, which an interpreter takes, got {max_memory_mb}.")
    if not is_known_machine():
        raise SandboxUnavailableError(
            "Programs run on 64-bit Linux (x86_64, aarch64) only, where the kernel can isolate them. "
            "Run this part of the evaluation there, for instance in a container."
        )
    with (
        tempfile.TemporaryDirectory(prefix="hf-dparallel-sandbox-") as folder,
        contextlib.closing(Supervisor(folder, program, tests, timeout_s, max_memory_mb)) as supervisor,
    ):
        return supervisor.watch()
