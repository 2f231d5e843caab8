# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Programs in bubblewrap: right and wrong ones give what they should, hostile ones harm nothing and never pass.

Programs check from within that they are refused what they try, and the tests check from without that nothing happened.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_dparallel.evaluation.lm_eval import sandbox
from hf_dparallel.evaluation.lm_eval.sandbox import MAX_PROCESSES, SandboxUnavailableError, run_program

from .helpers import needs_bubblewrap


# The module by itself, which is there at once.
IMPORT = f"import sys\nsys.path.append({str(Path(sandbox.__file__).parent)!r})\nimport sandbox\n"

REFUSED = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
def refused(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return True
    return False
"""


def processes_with(text: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:  # ended
            continue
    return found


def wait_for(condition) -> None:
    deadline = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_bubblewrap
@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b):\n    return a + b\nassert add(2, 3) == 5",
        "import asyncio\nasync def three():\n    return 3\nassert asyncio.run(three()) == 3",
        "from concurrent.futures import ThreadPoolExecutor as E\nassert list(E(4).map(abs, [-1] * 9)) == [1] * 9",
        "import numpy\nassert numpy.eye(3).sum() == 3",
        "import tempfile\nwith tempfile.NamedTemporaryFile() as file: file.write(b'x')",
        "import os\nassert os.environ['HOME'] == os.getcwd() ",
        "import sys\nprint('x' * 10**7)\nsys.stdout.close(); sys.stderr.close()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "assert hash('text') == hash('te' + 'xt')",
        "",
    ],
)
def test_right_programs_pass(program):
    assert run_program(program)


@needs_bubblewrap
def test_programs_pass_with_their_tests():
    tests = "import math\nassert f(3) == 9"
    assert run_program("def f(x): return x * x", tests) and not run_program("def f(x): return 0", tests)
    assert run_program("def f(x): return math.prod([x, x])", tests)  # in one namespace


@needs_bubblewrap
@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 3",
        "def f(:",
        "input()",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()\nassert False",
        "import atexit, os\natexit.register(os._exit, 0)\nassert False",
        "import sys\nsys.excepthook = lambda *_: None\nassert False",
        "import builtins\nvars(builtins).clear()\nassert False",
        "import ctypes\nctypes.string_at(0)",
        # What would swallow tests in one source with it.
        "def f(): return 0\nif 0: \\",
        "x = '''",
    ],
)
def test_wrong_programs_and_exits_fail(program):
    assert not run_program(program, "raise SystemExit")
    assert not run_program(program)


# Ten escapes.


@needs_bubblewrap
def test_no_network():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    abstract = f"\0hf-dparallel-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as by_name:
        by_name.bind(abstract)
        by_name.setblocking(False)
        assert run_program(
            f"{REFUSED}assert refused(socket.create_connection, {listener.getsockname()}, 1)\n"
            "assert refused(socket.create_connection, ('8.8.8.8', 53), 1)\n"
            f"assert refused(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto, b'x', {abstract!r})"
        )
        for waiting in (listener.accept, lambda: by_name.recv(1)):
            with pytest.raises(BlockingIOError):
                waiting()
    listener.close()


@needs_bubblewrap
def test_no_files_outside(tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    canary.chmod(0o666)
    tmp_path.chmod(0o777)
    paths = [str(canary), str(tmp_path), "/etc/passwd", str(Path.home() / ".cache"), "/proc/1/environ", "/run"]
    assert run_program(
        f"{REFUSED}for path in {paths}:\n    assert not os.path.exists(path), path\n"
        f"for path in ['/new', '/dev/new', '/dev/shm/new', '/usr/new', os.__file__, {str(tmp_path / 'new')!r}]:\n"
        "    assert refused(open, path, 'a'), path\n"
        f"assert refused(os.remove, {str(canary)!r}) and refused(os.remove, os.__file__)\n"
        "assert refused(os.symlink, '/', '/link')"
    )
    assert canary.read_text() == "alive" and list(tmp_path.iterdir()) == [canary]
    assert not Path("/tmp/own").exists() and run_program("open('/tmp/own', 'w').write('x')")
    assert not Path("/tmp/own").exists()


@needs_bubblewrap
def test_no_fork_bomb():
    assert run_program(
        f"{REFUSED}children = 0\n"
        "for _ in range(100):\n"
        "    try: pid = os.fork()\n"
        "    except OSError: break\n"
        "    if pid == 0: time.sleep(60)\n"
        "    children += 1\n"
        f"assert 0 < children <= {MAX_PROCESSES}, children"
    )
    start = time.monotonic()
    assert not run_program("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout_s=1)
    assert time.monotonic() - start < 20


@needs_bubblewrap
@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(2**31)",
        "import mmap\nx = mmap.mmap(-1, 2**31)",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "for name in range(100): open(str(name), 'wb').write(bytes(10**6))",  # the memory under /tmp
        "open('big', 'wb').write(bytes(2**21))",
    ],
)
def test_no_more_memory(program):
    assert not run_program(program, max_memory_mb=512)


@needs_bubblewrap
def test_no_tracing_of_others_and_no_signals_to_them():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert run_program(
            f"{REFUSED}other = {other.pid}\n"
            "assert ctypes.CDLL(None).ptrace(16, other, 0, 0) == -1\n"
            "assert refused(os.kill, other, 0) and refused(os.kill, other, signal.SIGKILL)\n"
            "assert refused(os.pidfd_open, other) and refused(open, f'/proc/{other}/mem')\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "refused(os.kill, -1, signal.SIGTERM)"
        )
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


@needs_bubblewrap
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import threading\nthreading.Thread(target=lambda: pow(3, 10**9)).start()\nwhile True: pass",
    ],
)
def test_no_endless_loop(program):
    start = time.monotonic()
    assert not run_program(program, timeout_s=1)
    assert time.monotonic() - start < 20


@needs_bubblewrap
def test_no_orphans():
    """Neither of a program that ends nor of an evaluation that is killed."""
    assert run_program("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)")
    mark = f"orphan_{os.getpid()}"
    script = (
        f"{IMPORT}sandbox._START = '# {mark}\\n' + sandbox._START\n"
        "sandbox.run_program('while True: pass', timeout_s=60)"
    )
    evaluation = subprocess.Popen([sys.executable, "-c", script])
    wait_for(lambda: len(processes_with(f"# {mark}\n")) > 2)  # bubblewrap twice, and Python
    evaluation.kill()
    evaluation.wait()
    wait_for(lambda: not processes_with(f"# {mark}\n"))


@needs_bubblewrap
def test_no_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "secret")
    (tmp_path / "open").write_text("x")
    descriptor = os.open(tmp_path / "open", os.O_RDWR)
    os.set_inheritable(descriptor, True)
    assert run_program(
        f"{REFUSED}assert 'HF_TOKEN' not in os.environ and os.getuid() != 0\n"
        f"assert refused(os.fstat, {descriptor})\nassert not os.path.exists('/proc/self/environ')"
    )
    os.close(descriptor)


@needs_bubblewrap
@pytest.mark.parametrize("stream", ["sys.stdout.fileno()", "3"])
def test_no_flood_of_output(stream):
    program = f"import os, sys\nfor _ in range(10**4): os.write({stream}, b'x' * 10**6)"
    run_program(program, timeout_s=1)
    assert not run_program(f"{program}\nraise SystemExit", timeout_s=1)


@needs_bubblewrap
@pytest.mark.parametrize(
    "change",
    ["os.ftruncate(descriptor, 0)", "os.pwrite(descriptor, bytes(4096), 0)", "os.write(descriptor, b'x' * 100)"],
)
def test_a_program_that_changes_its_report_has_failed(change):
    """And is no sign that programs cannot be isolated, which would end the evaluation."""
    program = f"import os\nfor descriptor in range(3, 64):\n    try: {change}\n    except OSError: pass\nos._exit(0)"
    assert not run_program(program)


@needs_bubblewrap
def test_no_memory_in_many_files():
    program = "import os\nfor number in range(1500): os.ftruncate(os.memfd_create(str(number)), 2**20)"
    assert not run_program(program)


@needs_bubblewrap
@pytest.mark.parametrize("start", ["home", "folder/project"])
@pytest.mark.parametrize("home", ["home", "link"])
def test_neither_the_home_nor_the_current_folder_can_be_read(tmp_path, start, home):
    """Also where `$HOME` is a link, as on clusters, and the folder in which the evaluation starts is in `sys.path`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    (tmp_path / "folder" / "project").mkdir(parents=True)
    secrets = [tmp_path / "home" / ".netrc", tmp_path / "folder" / "project" / ".env"]
    for secret in secrets:
        secret.write_text("secret")
    paths = [str(path) for secret in secrets for path in (secret, tmp_path / "link" / secret.name)]
    program = f"import os\nfor path in {paths}:\n    assert not os.path.exists(path), path"
    script = f"{IMPORT}sys.path.append({str(tmp_path / 'home')!r})\nprint(sandbox.run_program({program!r}))"
    (tmp_path / start / "evaluation.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "evaluation"],
        cwd=tmp_path / start,
        env={**os.environ, "HOME": str(tmp_path / home)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True\n", done.stderr


@needs_bubblewrap
def test_libraries_of_a_pth_file_can_be_imported(tmp_path):
    """As in the evaluation, which may be in an environment over another one."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "extra_library.py").write_text("VALUE = 1\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "overlay.pth").write_text("\n".join([str(tmp_path / "libraries"), *filter(None, sys.path)]))
    script = f"{IMPORT}print(sandbox.run_program('import extra_library'))"
    done = subprocess.run([tmp_path / "venv" / "bin" / "python", "-c", script], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_where_bubblewrap_is_missing_nothing_is_run(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxUnavailableError, match="is missing. Install it"):
        run_program("pass")


def test_where_it_cannot_isolate_nothing_is_run(monkeypatch):
    """As in a container that may not make namespaces."""
    refusing = "import sys; sys.exit('bwrap: No permissions to create new namespace')"
    monkeypatch.setattr(sandbox, "_command", lambda: [sys.executable, "-c", refusing])
    with pytest.raises(SandboxUnavailableError, match="so none was run: bwrap: No permissions"):
        run_program("pass")
