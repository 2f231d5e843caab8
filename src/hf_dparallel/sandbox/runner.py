# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs programs that nobody has read, such as a model's answers to programming tasks with their tests.

Each program has a process of its own that can start no other, see no network, read nothing but Python's libraries and
write nothing but a few small files into an empty folder. The kernel enforces it, by Landlock, seccomp, resource limits
and capabilities, for ordinary users and for root, and without namespaces, so in most containers too. Where they are
missing no program runs. What is guaranteed, and what is not, is listed in docs/metrics.md.

A program passes if it runs off its end: no exit, however called, and nothing that it writes counts. After the program
comes a system call that the supervisor answers, made by the C code that called the program; the supervisor compares
thread and stack pointer with those of the same call before the program. There is no secret to find.
"""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from . import child


if sys.platform != "win32":  # where `run_program` says what is missing
    import fcntl

MAX_FILES = 64
MAX_FILE_BYTES = 2**20
MAX_THREADS = 64
_STACK_BYTES = 64 * 2**20
_SETUP_TIMEOUT_S = 60.0
_POLL_MS = 10
_KEPT_OUTPUT = 4096

# Of linux/seccomp.h: struct seccomp_notif (id, pid, flags, number, architecture, instruction pointer, six arguments)
# and seccomp_notif_resp (id, value, error, flags).
_NOTIFICATION, _RESPONSE = "QIIiIQ6Q", "QqiI"
_RECEIVE, _SEND, _IS_VALID, _CONTINUE = 0xC0502100, 0xC0182101, 0x40082102, 1


class SandboxUnavailableError(RuntimeError):
    """Raised where programs cannot be kept from doing harm. None has been run then."""


@dataclass(frozen=True)
class ProgramResult:
    """
    How a program ended.

    Args:
        passed (`bool`):
            Whether it ran off its end, without an exception and in time.
        status (`str`):
            `"passed"`, `"failed"` or `"timed_out"`.
        message (`str`):
            Why it did not pass, in one line; often the last line that the program wrote to its standard error.
    """

    passed: bool
    status: str
    message: str = ""


def run_programs(
    programs: Sequence[str], *, timeout_s: float = 10.0, max_memory_mb: int = 1024, num_workers: int = 1
) -> list[ProgramResult]:
    r"""
    Runs Python programs, each in a sandbox of its own.

    Args:
        programs (`Sequence[str]`):
            Sources. `__name__` is not `"__main__"`, as when the reference implementations of HumanEval run them.
        timeout_s (`float`, *optional*, defaults to 10.0):
            Seconds that a program may take.
        max_memory_mb (`int`, *optional*, defaults to 1024):
            Memory (address space) of a program, with its interpreter.
        num_workers (`int`, *optional*, defaults to 1):
            Programs that run side by side.

    Returns:
        `list[ProgramResult]`: in the order of the programs.

    Raises:
        SandboxUnavailableError: where this machine cannot keep programs from doing harm.

    Example:

    ```python
    >>> from hf_dparallel.sandbox.runner import run_programs

    >>> [result.status for result in run_programs(["assert 1 + 1 == 2", "raise SystemExit(0)"])]
    ['passed', 'failed']
    ```
    """
    if num_workers < 1:
        raise ValueError(f"`num_workers` must be at least 1, got {num_workers}.")
    with ThreadPoolExecutor(num_workers) as executor:
        return list(executor.map(lambda p: run_program(p, timeout_s=timeout_s, max_memory_mb=max_memory_mb), programs))


def run_program(program: str, *, timeout_s: float = 10.0, max_memory_mb: int = 1024) -> ProgramResult:
    """Runs one program. See [`run_programs`]."""
    if timeout_s <= 0:
        raise ValueError(f"`timeout_s` must be above 0, got {timeout_s}.")
    if max_memory_mb < 256:
        raise ValueError(f"`max_memory_mb` must be at least 256, which an interpreter takes, got {max_memory_mb}.")
    if not child.is_known_machine():
        raise SandboxUnavailableError(
            "Programs are run on 64-bit Linux (x86_64, aarch64) only, where the kernel can keep them from doing harm. "
            "Run this part of the evaluation there, for instance in a container."
        )
    with tempfile.TemporaryDirectory(prefix="hf-dparallel-sandbox-") as folder:
        supervisor = _Supervisor(folder, program, timeout_s, max_memory_mb)
        try:
            return supervisor.watch()
        finally:
            supervisor.close()


class _Supervisor:
    """Starts a program, answers its kernel's questions, and ends it."""

    def __init__(self, folder: str, program: str, timeout_s: float, max_memory_mb: int):
        self._timeout_s = timeout_s
        self._output = b""
        self._numbers = child.syscall_numbers()
        self._num_files = self._num_threads = 0
        # Thread, stack pointer and instruction pointer at the first `sync` and, once the program runs, at the second.
        self._first: tuple[int, str, str] | None = None
        self._start: tuple[int, str, str] | None = None
        self._listener = -1
        self._control, theirs = socket.socketpair()
        self._errors, errors = os.pipe()
        with theirs, os.fdopen(errors, "wb") as stderr:
            try:
                self._process = _start_child(folder, theirs, stderr)
            except OSError:
                self._control.close()
                os.close(self._errors)
                raise
        settings = {
            "folder": folder,
            "program": program,
            "cpu_s": int(timeout_s) + 2,
            "memory_bytes": max_memory_mb * 2**20,
            "file_bytes": MAX_FILE_BYTES,
            "stack_bytes": _STACK_BYTES,
        }
        self._setup = json.dumps(settings).encode()

    def watch(self) -> ProgramResult:
        self._connect()
        poller = select.poll()
        poller.register(self._errors, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        deadline = time.monotonic() + _SETUP_TIMEOUT_S
        while True:
            for descriptor, event in poller.poll(_POLL_MS):
                if descriptor != self._listener:
                    if not self._read_output():
                        poller.unregister(descriptor)
                elif not event & select.POLLIN:
                    poller.unregister(descriptor)
                elif self._answer():
                    return ProgramResult(True, "passed")
            if self._has_ended():
                return self._failure()
            if time.monotonic() > deadline:
                self._check_started()
                return ProgramResult(False, "timed_out", f"The program had not ended after {self._timeout_s:g} s.")
            if self._start is not None:
                deadline = min(deadline, self._started_at + self._timeout_s)

    def close(self) -> None:
        """Kills the process. It cannot have any descendants."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        os.close(self._errors)
        if self._listener >= 0:
            os.close(self._listener)

    def _connect(self) -> None:
        self._control.settimeout(_SETUP_TIMEOUT_S)
        try:
            self._control.sendall(self._setup)
            self._control.shutdown(socket.SHUT_WR)
            _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError:
            descriptors = []
        if not descriptors:
            self._process.kill()
            while self._read_output():
                pass
            self._check_started()
        self._listener = descriptors[0]

    def _read_output(self) -> bool:
        data = os.read(self._errors, 1 << 16)
        self._output = (self._output + data)[-_KEPT_OUTPUT:]
        return bool(data)

    def _answer(self) -> bool:
        """Answers one question of the kernel, and returns whether it shows that the program has run off its end."""
        buffer = bytearray(struct.calcsize(_NOTIFICATION))
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except FileNotFoundError:  # the caller was killed meanwhile
            return False
        identity, thread, _, number, *_ = struct.unpack(_NOTIFICATION, buffer)
        error = flags = 0
        if number == self._numbers["sync"]:
            if self._arrive(self._place_of(thread, identity)):
                return True
        elif number == self._numbers["clone"]:
            self._num_threads += 1
            # The first one is the program's own.
            flags, error = (_CONTINUE, 0) if self._num_threads <= MAX_THREADS + 1 else (0, -errno.EAGAIN)
        else:
            self._num_files += 1
            flags, error = (_CONTINUE, 0) if self._num_files <= MAX_FILES else (0, -errno.EDQUOT)
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(self._listener, _SEND, struct.pack(_RESPONSE, identity, 0, error, flags))
        return False

    def _arrive(self, place: tuple[int, str, str] | None) -> bool:
        """Whether `sync` is called at the end of the program; the first two calls are before it, at the same place."""
        if self._start is not None:
            return place == self._start
        if self._first is None:
            self._first = place
        elif place is None or place != self._first or int(place[1], 16) == 0:
            raise SandboxUnavailableError(
                "The end of a program could not be told from a call within it, so none was run: the call is made at "
                f"{self._first} and {place} (thread, stack pointer, instruction pointer)."
            )
        else:
            self._start, self._started_at = place, time.monotonic()
        return False

    def _place_of(self, thread: int, identity: int) -> tuple[int, str, str] | None:
        """Returns thread, stack pointer and instruction pointer of a thread, if it still waits for our answer."""
        path = Path(f"/proc/{self._process.pid}/task/{thread}/syscall")
        while True:
            try:
                words = path.read_text().split()
                # A signal can have made it give up the call meanwhile.
                fcntl.ioctl(self._listener, _IS_VALID, struct.pack("Q", identity))
            except (FileNotFoundError, ProcessLookupError):
                return None
            except PermissionError as error:
                raise SandboxUnavailableError(
                    f"Cannot read {path}, by which a program is seen to have reached its end: {error}. Allow a "
                    "process to trace its children (kernel.yama.ptrace_scope at most 1)."
                ) from error
            if words != ["running"]:
                return thread, words[-2], words[-1]

    def _has_ended(self) -> bool:
        if self._process.poll() is not None:
            return True
        return self._start is not None and not os.path.exists(f"/proc/{self._process.pid}/task/{self._start[0]}")

    def _failure(self) -> ProgramResult:
        self._check_started()
        self._process.kill()
        while self._read_output():
            pass
        if self._process.wait() == -signal.SIGXCPU:
            return ProgramResult(False, "timed_out", "The program took more processor time than it may.")
        lines = self._output.decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        message = written[-1] if written else "The program ended before its last statement."
        # Escape sequences would change the terminal that shows it.
        return ProgramResult(False, "failed", "".join(c if c.isprintable() else "?" for c in message))

    def _check_started(self) -> None:
        if self._start is None:
            reason = self._output.decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxUnavailableError(
                f"Programs cannot be kept from doing harm here, so none was run: {reason or 'no answer'}. Needed are "
                "Linux 5.13 or newer with Landlock and seccomp, and a container that does not forbid their use."
            )


def _start_child(folder: str, control: socket.socket, stderr: IO[bytes]) -> subprocess.Popen:
    # No variable of ours, so `-I` is not needed, under which Python would not read its own.
    environment = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    # One thread each, or libraries of linear algebra take the whole machine and all of the address space.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Some interpreters do not start without it.
    environment |= {name: os.environ[name] for name in ["LD_LIBRARY_PATH"] if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-B", child.__file__, str(control.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd=folder,
        env=environment,
        pass_fds=[control.fileno()],
        start_new_session=True,
    )
