# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs programs that a model wrote in bubblewrap (https://github.com/containers/bubblewrap).

A program sees Python, the libraries that the evaluation can import, and an empty /tmp. It has no network, no
environment, no other processes, little memory and little time. Not covered: the tests share an interpreter with the
program, which can deceive them; shared memory of System V, which no limit of a process counts; a flaw of the kernel.
"""

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


MAX_PROCESSES = 64
MAX_FILE_BYTES = 2**20
# Files in memory have at most this number times `MAX_FILE_BYTES` a process.
MAX_OPEN_FILES = 256
_FOLDER_BYTES = 2**25
_PIPE_BYTES = 2**16
_LIBRARIES = ("/usr", "/bin", "/lib", "/lib64", "/nix", "/etc/ld.so.cache")
_NAMESPACES = ("ipc", "pid", "net", "uts", "cgroup-try")

# The inside: writes the token when it begins to run the program and after the tests. Root becomes nobody, since the
# kernel does not count the processes of root.
_START = """
import json, os, resource, sys
program, tests, token, limits = json.load(sys.stdin)
for name, value in limits.items():
    resource.setrlimit(getattr(resource, name), (value, value))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
report, null = os.dup(1), os.open("/dev/null", os.O_RDWR)
os.write(report, token.encode())
for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)
names = {}
exec(program, names)
exec(tests, names)
os.write(report, token.encode())
os._exit(0)
"""


class SandboxUnavailableError(RuntimeError):
    """Raised if programs cannot be isolated. None has been run then."""


def run_program(program: str, tests: str = "", timeout_s: float = 10.0, max_memory_mb: int = 1024) -> bool:
    """Runs a Python program and then its tests, with its names, in a sandbox.

    Returns whether both ran to their ends within `timeout_s`, with at most `max_memory_mb` of address space in each
    process. An exit before, however called, does not count. Raises a `SandboxUnavailableError` if bubblewrap is
    missing or cannot isolate programs on this machine.
    """
    token = secrets.token_hex().encode()
    limits = {
        "RLIMIT_AS": max_memory_mb * 2**20,
        "RLIMIT_FSIZE": MAX_FILE_BYTES,
        "RLIMIT_NOFILE": MAX_OPEN_FILES,
        "RLIMIT_NPROC": MAX_PROCESSES,
        "RLIMIT_CPU": int(timeout_s) + 1,  # where the evaluation is killed before bubblewrap notices its death
        "RLIMIT_CORE": 0,
    }
    # Threads of linear algebra would each take address space. Hashes, which order sets, are the same in every run.
    environment = {"HOME": "/tmp", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    environment["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, sys.path))
    given = json.dumps([program, tests, token.decode(), limits]).encode()

    with tempfile.TemporaryFile() as errors:
        # What is in a pipe cannot be taken back by the program, and a full one stops it.
        report, written = os.pipe()
        try:
            subprocess.run(_command(), input=given, stdout=written, stderr=errors, timeout=timeout_s, env=environment)
            is_written, _, _ = select.select([report], [], [], 0)
            told = os.read(report, _PIPE_BYTES) if is_written else b""
        except subprocess.TimeoutExpired:
            return False
        finally:
            os.close(report)
            os.close(written)

        if not told.startswith(token):
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip()
            raise SandboxUnavailableError(f"Bubblewrap cannot isolate programs, so none was run: {reason}.")

    return told.endswith(token) and len(told) > len(token)


def _command() -> list[str]:
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise SandboxUnavailableError(
            "Programs run in bubblewrap, which is missing. Install it (Debian: `apt install bubblewrap`)."
        )

    # Root needs no namespace of users, and in one could not become nobody.
    is_root = os.getuid() == 0
    namespaces = [f"--unshare-{name}" for name in _NAMESPACES] if is_root else ["--unshare-all"]
    capabilities = ["--cap-drop", "ALL", *(["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if is_root else [])]

    readable = _readable_paths()
    # Libraries may be in /tmp, too. Made on the way to a mount, a folder would be root's alone.
    mounts = ["--dev", "/dev", "--perms", "1777", "--size", str(_FOLDER_BYTES), "--tmpfs", "/tmp"]
    parents = sorted({str(parent) for path in readable for parent in Path(path).parents} - {"/tmp"})
    for path in parents:
        mounts += ["--dir", path]
    for path in readable:
        mounts += ["--ro-bind-try", path, path]
    mounts += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]

    isolation = [*namespaces, "--die-with-parent", "--new-session", *capabilities, *mounts]
    return [bubblewrap, *isolation, sys.executable, "-c", _START]


def _readable_paths() -> list[str]:
    """Returns the folders of Python and its libraries: none from which the home or the current folder can be read."""
    home = Path.home().resolve()
    paths = {*_LIBRARIES}
    for prefix in (sys.prefix, sys.base_prefix):
        if not home.is_relative_to(os.path.realpath(prefix)):
            paths.add(prefix)

    for path in filter(os.path.isabs, sys.path):
        folder = os.path.realpath(path)
        if not home.is_relative_to(folder) and not Path.cwd().is_relative_to(folder):
            paths.add(path)

    return sorted(paths)
