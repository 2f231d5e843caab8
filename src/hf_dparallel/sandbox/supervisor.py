# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The outside of the sandbox: starts a program, answers what the kernel asks about it, and ends it.

The program has reached its end when `sync` is called by the same thread, at the same place on the stack, as before the
program. There is no secret to find: a call from within the program is deeper on the stack.
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
import time
from dataclasses import dataclass
from pathlib import Path

from .system_calls import syscall_numbers


if sys.platform != "win32":  # where nothing of this is called
    import fcntl

MAX_FILES = 64
MAX_THREADS = 64
_SETUP_TIMEOUT_S = 60.0
_POLL_MS = 10
_KEPT_OUTPUT = 4096

# From linux/seccomp.h: struct seccomp_notif (id, pid, flags, number, architecture, instruction pointer, six arguments)
# and seccomp_notif_resp (id, value, error, flags).
_NOTIFICATION, _RESPONSE = "QIIiIQ6Q", "QqiI"
_RECEIVE, _SEND, _IS_VALID, _CONTINUE = 0xC0502100, 0xC0182101, 0x40082102, 1

# For `python -c`, with the folder that holds this one.
_START_CHILD = "import sys\nsys.path.insert(0, sys.argv[1])\nfrom sandbox.child import main\ndel sys.path[0]\nmain()"

# Thread, stack pointer and instruction pointer of a system call.
_Place = tuple[int, str, str]


class SandboxUnavailableError(RuntimeError):
    """Raised if programs cannot be isolated. None has been run then."""


@dataclass(frozen=True)
class ProgramResult:
    """
    How a program ended.

    Args:
        passed (`bool`): whether it and its tests ran off their ends, without an exception and in time.
        status (`str`): `"passed"`, `"failed"` or `"timed_out"`.
        message (`str`): why it did not pass, in one line; often the last line of its standard error.
    """

    passed: bool
    status: str
    message: str = ""


class Supervisor:
    """Starts a program, answers its kernel's questions, and ends it."""

    def __init__(self, folder: str, program: str, tests: str, timeout_s: float, max_memory_mb: int):
        self._timeout_s = timeout_s
        self._numbers = syscall_numbers()
        self._num_files = self._num_threads = 0
        # Where `sync` was called before the program: twice, at the same place.
        self._places: list[_Place | None] = []
        self._started_at: float | None = None
        self._output = b""
        self._listener = -1
        settings: dict[str, str | int] = {"program": program, "tests": tests}
        settings |= {"cpu_s": int(timeout_s) + 2, "memory_bytes": max_memory_mb * 2**20}
        self._settings = json.dumps(settings).encode()
        # The program's standard error, through which it gets its settings first.
        self._control, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start_child(folder, theirs)
            except OSError:
                self._control.close()
                raise

    def watch(self) -> ProgramResult:
        """Waits until the program ends or its time is over, and returns its result."""
        self._connect()
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        deadline = time.monotonic() + _SETUP_TIMEOUT_S
        while True:
            for descriptor, event in poller.poll(_POLL_MS):
                if descriptor == self._listener:
                    if event & select.POLLIN and self._answer():
                        return ProgramResult(True, "passed")
                elif not self._read_output():
                    poller.unregister(descriptor)
            if self._has_ended():
                return self._failure()
            if time.monotonic() > deadline:
                self._check_started()
                return ProgramResult(False, "timed_out", f"The program had not ended after {self._timeout_s:g} s.")
            if self._started_at is not None:
                deadline = self._started_at + self._timeout_s

    def close(self) -> None:
        """Kills the process, which cannot have descendants."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        if self._listener >= 0:
            os.close(self._listener)

    def _connect(self) -> None:
        self._control.settimeout(_SETUP_TIMEOUT_S)
        with contextlib.suppress(OSError):  # it has ended already, and says why
            self._control.sendall(self._settings)
            self._control.shutdown(socket.SHUT_WR)
        while self._listener < 0 and self._read_output():
            pass
        if self._listener < 0:
            self._check_started()

    def _read_output(self) -> bool:
        """Reads output of the program (before it starts, a descriptor), and returns whether more can follow."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        except OSError:  # it hangs, or was killed with settings unread
            return False
        self._output = (self._output + data)[-_KEPT_OUTPUT:]
        self._listener = descriptors[0] if descriptors else self._listener
        return bool(data)

    def _answer(self) -> bool:
        """Answers one question of the kernel, and returns whether it shows the end of the program."""
        buffer = bytearray(struct.calcsize(_NOTIFICATION))
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except FileNotFoundError:  # the caller was killed meanwhile
            return False
        identity, thread, _, number, *_ = struct.unpack(_NOTIFICATION, buffer)
        error, flags = 0, _CONTINUE
        if number == self._numbers["sync"]:
            if self._is_end(self._place_of(thread, identity)):
                return True
            flags = 0
        elif number == self._numbers["clone"]:
            self._num_threads += 1
            if self._num_threads > MAX_THREADS + 1:  # the first one is the program's own
                error, flags = -errno.EAGAIN, 0
        else:
            self._num_files += 1
            if self._num_files > MAX_FILES:
                error, flags = -errno.EDQUOT, 0
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(self._listener, _SEND, struct.pack(_RESPONSE, identity, 0, error, flags))
        return False

    def _is_end(self, place: _Place | None) -> bool:
        """Returns whether a `sync` call is the one after the program. The first two, at its place, come before."""
        if self._started_at is not None:
            return place == self._places[0]
        self._places.append(place)
        if len(self._places) == 2:
            if place is None or place != self._places[0] or int(place[1], 16) == 0:
                raise SandboxUnavailableError(
                    "The end of a program cannot be distinguished from a call in it, so none was run: the call is "
                    f"at {self._places[0]} and {place} (thread, stack pointer, instruction pointer)."
                )
            self._started_at = time.monotonic()
        return False

    def _place_of(self, thread: int, identity: int) -> _Place | None:
        """Returns thread, stack pointer and instruction pointer of a thread, if it still waits for our answer."""
        path = Path(f"/proc/{self._process.pid}/task/{thread}/syscall")
        while True:
            try:
                words = path.read_text().split()
                # A signal can have interrupted the call meanwhile.
                fcntl.ioctl(self._listener, _IS_VALID, struct.pack("Q", identity))
            except (FileNotFoundError, ProcessLookupError):
                return None
            except PermissionError as error:
                raise SandboxUnavailableError(
                    f"Cannot read {path}, which shows whether a program has ended: {error}. Allow a "
                    "process to trace its children (kernel.yama.ptrace_scope at most 1)."
                ) from error
            if words != ["running"]:
                return thread, words[-2], words[-1]

    def _has_ended(self) -> bool:
        """Returns whether the process, or the program's thread, has ended."""
        if self._process.poll() is not None:
            return True
        thread = self._places[0][0] if self._started_at is not None and self._places[0] else None
        return thread is not None and not os.path.exists(f"/proc/{self._process.pid}/task/{thread}")

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
        if self._started_at is None:
            reason = self._output.decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxUnavailableError(
                f"Programs cannot be isolated here, so none was run: {reason or 'no answer'}. Use Linux 5.13 or newer "
                "with Landlock and seccomp, and a container that does not forbid them."
            )


def _start_child(folder: str, stderr: socket.socket) -> subprocess.Popen:
    # Passes no variable of ours. `-I` would ignore these, too, but also `PYTHONHASHSEED`.
    environment = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    # One thread each, or libraries of linear algebra take all cores and all of the address space.
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # One arena: each takes 64 MiB of address space.
    environment["MALLOC_ARENA_MAX"] = "1"
    # Some interpreters do not start without it.
    environment |= {name: os.environ[name] for name in ["LD_LIBRARY_PATH"] if name in os.environ}
    package = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-B", "-c", _START_CHILD, package],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr.fileno(),
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
