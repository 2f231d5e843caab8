# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The inside of the sandbox: locks its own process up for good and then runs a program in it.

Started by the supervisor without the rest of the package, whose imports take seconds.
"""

import array
import builtins
import collections
import ctypes
import itertools
import json
import operator
import os
import socket
import struct
import sys
import sysconfig
from _thread import allocate_lock, stack_size, start_new_thread
from typing import Any

from .system_calls import counted_calls, permitted_calls, syscall_numbers


if sys.platform != "win32":  # where nothing of this is called
    import resource

MAX_FILE_BYTES = 2**20
_PROGRAM_STACK_BYTES, _STACK_BYTES = 64 * 2**20, 2 * 2**20

# From linux/landlock.h: bits of the rights to files, and how many there are from which version on.
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = (
    1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 14)
)
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def main() -> None:
    """Reads settings and program from standard error, which is a socket, and never returns."""
    control = socket.socket(fileno=sys.stderr.fileno())
    settings = json.loads(b"".join(iter(lambda: control.recv(1 << 16), b"")))
    _limit_resources(settings["cpu_s"], settings["memory_bytes"])
    give_up_privileges()
    _restrict_files(os.getcwd())
    listener = install_filter(counted_calls(), flags=1 << 3)  # SECCOMP_FILTER_FLAG_NEW_LISTENER
    control.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
    os.close(listener)
    control.detach()
    install_filter(permitted_calls())
    _start(settings.pop("program"), settings.pop("tests"))
    forever = allocate_lock()
    forever.acquire()
    forever.acquire()


def _start(program: str, tests: str) -> None:
    """Runs the program and then its tests on a thread of their own.

    The loop over the steps is C code: below the program's frame there is no Python frame in which the program could
    skip lines. `sync` calls the supervisor, which compares stack pointers. The first two calls show it the place of
    calls outside the program.
    """
    namespace: dict[str, Any] = {}
    # The tests start with the builtins as they were, and untraced.
    own_builtins = vars(builtins).copy()
    steps: tuple[tuple[Any, ...], ...] = (
        (stack_size, _STACK_BYTES),
        (os.sync,),
        (os.sync,),
        (exec, program, namespace),
        (sys.settrace, None),
        (sys.setprofile, None),
        (namespace.__setitem__, "__builtins__", own_builtins),
        (exec, tests, namespace),
        (os.sync,),
    )
    each_step = iter(steps)
    arguments = (itertools.starmap(operator.call, each_step), 0)
    # Hides the loop from the garbage collector, by which the program could find it and move it past the tests. Python
    # frees iterators as tracked objects, so these must never be freed.
    for hidden in (own_builtins, steps, *steps, each_step, arguments, arguments[0]):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(hidden))
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(hidden))
    stack_size(_PROGRAM_STACK_BYTES)
    start_new_thread(collections.deque, arguments)


def _call(name: str, *arguments) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(syscall_numbers()[name], *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def _limit_resources(cpu_s: int, memory_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def give_up_privileges() -> None:
    """Gives up the capabilities of root, such as the one to raise limits, and all ways to get new ones."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(1, 9, 0, 0, 0) or prctl(38, 1, 0, 0, 0):  # PR_SET_PDEATHSIG to SIGKILL, PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl failed")
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def _restrict_files(folder: str) -> None:
    try:
        version = _call("landlock_create_ruleset", None, 0, 1)
    except OSError as error:
        raise OSError(
            error.errno, f"the kernel has no Landlock, which Linux 5.13 and newer have unless it is off ({error})"
        ) from error
    handled = (1 << _NUM_RIGHTS[min(version, max(_NUM_RIGHTS))]) - 1
    # Files; from version 4 on TCP; from version 6 on signals and abstract sockets.
    attributes = struct.pack("QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call("landlock_create_ruleset", attributes, len(attributes), 0)
    own = _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
    rights = dict.fromkeys(_library_folders(), _READ_FILE | _READ_DIR)
    rights |= {"/dev/null": _READ_FILE | _WRITE_FILE, "/dev/urandom": _READ_FILE, "/etc/ld.so.cache": _READ_FILE}
    rights |= {"/usr/share/zoneinfo": _READ_FILE | _READ_DIR, folder: own}
    for path, allowed in rights.items():
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        _call("landlock_add_rule", ruleset, 1, struct.pack("=Qi", allowed & handled, target), 0)
        os.close(target)
    _call("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _library_folders() -> set[str]:
    paths = sysconfig.get_paths()
    installed = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return installed | {f"{sys.base_prefix}/lib", "/lib", "/lib64", "/usr/lib", "/usr/lib64"}


def install_filter(code: bytes, flags: int = 0) -> int:
    """Installs a filter of system calls, and returns the result of `seccomp`."""
    buffer = ctypes.create_string_buffer(code, len(code))
    return _call("seccomp", 1, flags, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer)))
