# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Programs in the sandbox: good and wrong ones give what they should, hostile ones harm nothing and never pass.

Programs check from within that they are refused what they try, and the tests check from without that nothing happened.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hf_dparallel.sandbox import supervisor, system_calls
from hf_dparallel.sandbox.child import MAX_FILE_BYTES
from hf_dparallel.sandbox.programs import run_program, run_programs
from hf_dparallel.sandbox.supervisor import MAX_FILES, MAX_THREADS, ProgramResult, SandboxUnavailableError


REFUSED = """
def refused(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return True
    return False
"""


@pytest.fixture(autouse=True)
def sandboxes(tmp_path, monkeypatch):
    """Where the folders of the sandboxes are; after the test there is none left, and no process that had one."""
    folder = tmp_path / "sandboxes"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
    assert not processes_of(folder)


def processes_of(folder: Path) -> list[str]:
    """The processes whose HOME is in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={folder}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:  # ended, or another user's
            continue
    return found


@pytest.fixture
def canary(tmp_path) -> Path:
    path = tmp_path / "canary.txt"
    path.write_text("alive")
    path.chmod(0o644)
    return path


def lines(*texts: str) -> str:
    return "\n".join(texts)


def assert_passes(*texts: str, **limits) -> None:
    assert run_program(lines(*texts), **limits) == ProgramResult(True, "passed")


def ends_within(seconds: float, program: str, **limits) -> ProgramResult:
    start = time.monotonic()
    result = run_program(program, **limits)
    assert time.monotonic() - start < seconds
    assert not result.passed
    return result


@pytest.mark.parametrize(
    "program",
    [
        "def add(a, b):\n    return a + b\nassert add(2, 3) == 5",
        "import asyncio\nasync def three():\n    return 3\nassert asyncio.run(three()) == 3",
        "from concurrent.futures import ThreadPoolExecutor as E\nassert list(E(4).map(abs, [-1] * 9)) == [1] * 9",
        "import math, decimal, heapq, re, json, random, datetime, zoneinfo\nassert math.isqrt(17) == 4",
        "import numpy\nassert numpy.eye(3).sum() == 3",
        lines("import os", "open('a', 'w').write('x')", "assert open('a').read() == 'x'", "os.remove('a')"),
        "import tempfile\nwith tempfile.NamedTemporaryFile() as f:\n    f.write(b'x')",
        "import os\nassert os.environ['HOME'] == os.getcwd()",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nassert f(50_000) == 50_000",
        "print('x' * 10**7)",
        "import os\nos.closerange(0, 64)",
        "import sys\nsys.stdin.close(); sys.stdout.close(); sys.stderr.close()",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "",
    ],
)
def test_good_programs_pass(program):
    assert_passes(program, max_memory_mb=512)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("assert 1 + 1 == 3, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError: invalid syntax (<string>, line 1)"),
        ("raise ValueError('x')", "ValueError: x"),
        ("input()", "EOFError: EOF when reading a line"),
        ("import ctypes\nctypes.string_at(0)", "The program ended before its last statement."),
    ],
)
def test_wrong_programs_fail(program, message):
    assert run_program(program) == ProgramResult(False, "failed", message)


def test_programs_give_their_results_in_order():
    programs = ["pass", "assert False", "import time\ntime.sleep(60)", "x = 1", "raise SystemExit"]
    results = run_programs(programs, timeout_s=1, num_workers=2)
    assert [result.status for result in results] == ["passed", "failed", "timed_out", "passed", "failed"]
    assert run_programs([]) == []


SAME_CALLS = """
import collections, itertools, operator, os, sys, threading, time, _thread
def imitate(*_):
    _thread.start_new_thread(collections.deque, (itertools.starmap(operator.call, ((os.sync,),) * 3), 0))
"""


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "exit()",
        "import os\nos._exit(0)",
        "import os\nos.kill(os.getpid(), 9)",
        "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()\nassert False",
        "import threading, os\nt = threading.Thread(target=os._exit, args=(0,))\nt.start()\nt.join()\nassert False",
        "import atexit, os\natexit.register(os._exit, 0)\nassert False",
        "import sys\nsys.excepthook = sys.unraisablehook = lambda *_: None\nassert False",
        "import builtins\nbuiltins.AssertionError = builtins.exec = builtins.SystemExit = None\nassert False",
        "import builtins\nvars(builtins).clear()\nassert False",
        "print('passed', True, 0, 'ok')\nimport sys\nprint('passed', file=sys.stderr)\nsys.exit(0)",
        # Everything that can be written to, written to.
        lines(
            "import os",
            "for descriptor in range(64):",
            "    try: os.write(descriptor, b'passed')",
            "    except OSError: pass",
            "raise SystemExit",
        ),
        # The call that ends a program, from within it: deeper on the stack.
        "import os\nos.sync()\nos.sync()\nraise SystemExit",
        # The loop over the steps, taken a step further from within.
        lines(
            "import gc, itertools",
            "for found in gc.get_objects():",
            "    if isinstance(found, itertools.starmap): next(found)",
            "raise SystemExit",
        ),
        # The same calls on another thread, and on threads that get the stack of the program's own.
        lines(SAME_CALLS, "imitate()", "time.sleep(0.1)", "raise SystemExit"),
        lines(
            SAME_CALLS,
            "def later():",
            "    for _ in range(40):",
            "        time.sleep(0.001)",
            "        imitate()",
            "threading.stack_size(64 * 2**20)",
            "threading.Thread(target=later).start()",
            "raise SystemExit",
        ),
        # The main thread, let go.
        lines(
            "import sys, threading, time",
            "frame = sys._current_frames()[threading.main_thread().ident]",
            "frame.f_locals['forever'].release()",
            "time.sleep(60)",
        ),
        # No frame of anyone else to jump about in.
        "import sys\ntry: frame = sys._getframe(1)\nexcept ValueError: raise SystemExit",
        "import sys\nsys.settrace(lambda *_: None)\nsys._getframe().f_back.f_trace = print",
    ],
)
def test_success_cannot_be_faked(program):
    result = run_program(program, timeout_s=5)
    assert not result.passed
    assert result.status == "failed"


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(600)",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "import ctypes\nfor number in range(1, 65): ctypes.CDLL(None).signal(number, 1)\nwhile True: pass",
        "import threading\nthreading.Thread(target=lambda: print(pow(3, 10**9))).start()\nwhile True: pass",
        "import os\nwhile True: os.sync()",
        # A signal takes a thread out of the call that the supervisor looks at, and never lets it go.
        lines(
            "import ctypes, os, signal",
            "spin = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: exec('while True: pass'))",
            "ctypes.CDLL(None).signal(signal.SIGALRM, spin)",
            "signal.setitimer(signal.ITIMER_REAL, 0.1)",
            "while True: os.sync()",
        ),
        "import sys\nwhile True: sys.stdout.write('x' * 10**6)",
        "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    ],
)
def test_endless_programs_are_ended(program):
    result = ends_within(20, program, timeout_s=0.5)
    assert result == ProgramResult(False, "timed_out", "The program had not ended after 0.5 s.")


SQUARES = "assert f(3) == 9 and abs(f(4) - 16) < 1e-6\n"
WRONG = "def f(x): return 0\n"
# All that the garbage collector leads to.
SEARCH = lines(
    "import gc",
    "seen, todo = {}, gc.get_objects()",
    "while todo:",
    "    found = todo.pop()",
    "    if id(found) not in seen and found is not seen and found is not todo:",
    "        seen[id(found)] = found",
    "        todo.extend(gc.get_referents(found))",
    "",
)


def test_programs_pass_with_their_tests():
    right = "import math\ndef f(x): return math.prod([x, x])"
    assert run_program(right, SQUARES) == ProgramResult(True, "passed")
    assert run_program(WRONG, SQUARES) == ProgramResult(False, "failed", "AssertionError:")
    # In one namespace: the program also finds what its tests import.
    assert (
        run_programs(["def f(x): return math.floor(x)", right], ["import math\nassert f(2.5) == 2", SQUARES])
        == [ProgramResult(True, "passed")] * 2
    )
    with pytest.raises(ValueError, match="`tests` .* 1 for 2"):
        run_programs([right, right], [SQUARES])


@pytest.mark.parametrize(
    "program",
    [
        # What would swallow a text that follows it.
        WRONG + "if 0: \\",
        WRONG + "x = '''",
        WRONG + "@lambda c: lambda f: None",
        WRONG + "g = lambda: \\",
        WRONG + "def hidden():\n    return 0\n    ",
        # Builtins replaced before the tests, while they run, and in every dictionary that can be found.
        WRONG + "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.f = lambda x: x * x",
        WRONG + "__builtins__['abs'] = lambda x: 0",
        "import builtins\ndef f(x):\n    builtins.abs = lambda x: 0\n    return 9",
        WRONG
        + SEARCH
        + "for found in seen.values():\n    if type(found) is dict and 'abs' in found: found['abs'] = id",
        # Lines of the tests skipped.
        WRONG + "import sys\nsys.settrace(lambda frame, *_: setattr(frame, 'f_lineno', 2))",
        WRONG + "import sys\nsys.setprofile(lambda *_: sys.exit())",
        # The loop over program and tests, moved to its end, at once or a little later.
        WRONG
        + SEARCH
        + "for found in seen.values():\n    if 'tuple_iterator' in str(type(found)): found.__setstate__(8)",
        lines(
            WRONG + SEARCH,
            "for found in seen.values():",
            "    if 'starmap' in str(type(found)):",
            "        try: list(found)",
            "        except BaseException: pass",
        ),
        # Expected values read in the text of the tests.
        lines(
            SEARCH + "texts = [text for text in seen.values() if isinstance(text, str)]",
            "def f(x): return x * x if any(''.join(['ass', 'ert f(3) == 9']) in text for text in texts) else 0",
        ),
        # Ends within the tests.
        "import os\ndef f(x): os._exit(0)",
        "import os\ndef f(x):\n    os.sync()\n    raise SystemExit(0)",
        "import _thread\ndef f(x): _thread.exit()",
    ],
)
def test_tests_cannot_be_left_out(program):
    result = run_program(program, SQUARES, timeout_s=5)
    assert result.status == "failed"


def test_messages_cannot_change_a_terminal():
    result = run_program("raise ValueError('\\x1b]0;title\\x07 \\x1b[2J\\u202e')")
    assert result.message == "ValueError: ?]0;title? ?[2J?"


def test_ends_that_cannot_be_told_from_calls_within_are_refused(monkeypatch):
    """As on a kernel that does not show stack pointers."""
    monkeypatch.setattr(supervisor.Supervisor, "_place_of", lambda self, thread, identity: (thread, "0x0", "0x0"))
    with pytest.raises(SandboxUnavailableError, match="so none was run"):
        run_program("pass")


def test_only_the_end_of_the_output_is_kept():
    result = run_program("import sys\nfor _ in range(100): sys.stderr.write('x' * 10**6)\nraise SystemExit")
    assert len(result.message) <= 4096


@pytest.fixture(scope="session")
def contained():
    """A harmless counter: no bomb goes off unless single forks are refused."""
    attempt = ["try: os.fork()", "except OSError: refusals += 1"]
    assert run_program(lines("import os", "refusals = 0", *attempt, *attempt, "assert refusals == 2")).passed


def test_no_process_can_be_started(contained):
    assert_passes(
        REFUSED,
        "import ctypes, multiprocessing, os, platform, pty, signal, subprocess, sys",
        "assert refused(pty.fork)",
        "assert refused(subprocess.run, [sys.executable, '-c', ''])",
        "assert refused(os.posix_spawn, sys.executable, [sys.executable, '-c', ''], {})",
        "assert refused(os.execv, sys.executable, [sys.executable, '-c', ''])",
        "assert refused(multiprocessing.get_context('fork').Process().start)",
        "clone, vfork = {'x86_64': (56, 58), 'aarch64': (220, 220)}[platform.machine()]",
        "call = ctypes.CDLL(None).syscall",
        "assert call(clone, signal.SIGCHLD, 0, 0, 0, 0) == call(vfork, signal.SIGCHLD, 0, 0, 0, 0) == -1",
        "assert call(435, bytes(64), 64) == -1",
    )


@pytest.mark.parametrize(
    "program",
    [
        lines("import os", "while True:", "    try: os.fork()", "    except OSError: pass"),
        lines(
            "import subprocess", "while True:", "    try: subprocess.Popen(['sleep', '60'])", "    except OSError: 0"
        ),
        lines("import os", "if os.fork() == 0:", "    os.setsid()", "    while True: pass", "while True: pass"),
    ],
)
def test_fork_bombs_and_surviving_children(program, contained, sandboxes):
    ends_within(20, program, timeout_s=0.5)
    assert not processes_of(sandboxes)


def test_threads_are_counted():
    """All of them have room in the memory that a program has by default."""
    assert_passes(
        "import threading, time",
        "for count in range(1000):",
        "    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "    except RuntimeError: break",
        f"assert count == {MAX_THREADS}, count",
    )


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(2**32)",
        "x = []\nwhile len(x) < 100: x.append(bytearray(10**7))",
        "import mmap\nx = mmap.mmap(-1, 2**32)",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nx = bytearray(2**32)",
    ],
)
def test_memory_is_limited(program):
    result = ends_within(20, program, max_memory_mb=256)
    assert result.status == "failed"


@pytest.mark.parametrize("where", ["canary", "home", "environ", "memory", "passwd", "listing"])
def test_nothing_of_the_user_can_be_read(where, canary):
    path = {
        "canary": canary,
        "home": Path.home(),
        "environ": f"/proc/{os.getpid()}/environ",
        "memory": "/proc/self/mem",
        "passwd": "/etc/passwd",
        "listing": canary.parent,
    }[where]
    function = "os.listdir" if where in ("home", "listing") else "open"
    assert_passes(f"import os{REFUSED}assert refused({function}, {str(path)!r})")


def test_nothing_is_inherited(monkeypatch, canary):
    monkeypatch.setenv("HF_TOKEN", "secret")
    descriptor = os.open(canary, os.O_RDWR)
    os.set_inheritable(descriptor, True)
    assert_passes(
        REFUSED,
        "import os, sys",
        "assert 'HF_TOKEN' not in os.environ",
        "assert refused(os.open, '/proc/self/fd/2', os.O_RDWR)",
        "for fd in range(3, 64):",
        "    try: os.fstat(fd)",
        "    except OSError: continue",
        "    raise ValueError(fd)",
    )
    os.close(descriptor)


def test_hashes_are_the_same_in_every_run():
    """The order of a set of texts decides what some programs do."""
    first, second = run_programs(["raise ValueError(hash('text'))"] * 2)
    assert first == second and first.message.startswith("ValueError: ")


def test_nothing_outside_is_changed(canary):
    before = canary.stat()
    assert_passes(
        f"import fcntl, os, shutil\npath, folder = {str(canary)!r}, {str(canary.parent)!r}{REFUSED}",
        "assert refused(os.remove, path)",
        "assert refused(os.truncate, path, 0)",
        "assert refused(open, path, 'a')",
        "assert refused(os.rename, path, 'stolen')",
        "assert refused(os.rename, 'own', path)",
        "assert refused(os.chmod, path, 0)",
        "assert refused(os.chown, path, 1, 1)",
        "assert refused(os.utime, path, (0, 0))",
        "assert refused(os.setxattr, path, 'user.x', b'x')",
        "assert refused(fcntl.flock, os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX)",
        "assert refused(os.mkdir, folder + '/new')",
        "assert refused(os.rmdir, folder + '/sandboxes')",
        "assert refused(open, '/dev/shm/new', 'w')",
        "assert refused(open, os.__file__, 'a')",
        "shutil.rmtree(folder, ignore_errors=True)",
        # Opened to be read, and emptied: what old versions of Landlock miss.
        "open('own', 'w').write('x')",
        "assert refused(os.open, 'own', os.O_RDONLY | os.O_TRUNC)",
    )
    after = canary.stat()
    assert canary.read_text() == "alive"
    assert (before.st_mode, before.st_uid, before.st_mtime_ns) == (after.st_mode, after.st_uid, after.st_mtime_ns)


def test_links_lead_nowhere(canary):
    assert_passes(
        f"import os\npath = {str(canary)!r}{REFUSED}",
        "assert refused(os.symlink, path, 'link')",
        "assert refused(os.link, path, 'link')",
        "assert refused(os.mkfifo, 'pipe')",
        "os.chdir('/')",
        "assert refused(os.listdir)",
        "descriptor = os.open('/proc', os.O_PATH)",
        "assert refused(lambda: os.open('self/environ', os.O_RDONLY, dir_fd=descriptor))",
    )


def test_the_folder_is_removed_whatever_its_rights():
    """The fixture sees that nothing is left."""
    assert_passes("import os\nos.mkdir('a', 0o300)\nopen('a/b', 'w')\nos.umask(0o777)\nos.mkdir('c')\nopen('d', 'w')")


def test_the_disk_cannot_be_filled():
    """Files are counted, and cut off where they get large; files without a name are refused."""
    assert_passes(
        "num_bytes = num_files = 0",
        "for _ in range(200):",
        "    try: file = open(str(num_files), 'wb', 0)",
        "    except OSError: break",
        "    num_files += 1",
        "    try:",
        "        for _ in range(20): num_bytes += file.write(b'x' * 100_000)",
        "    except OSError: file.close()",
        f"assert num_files == {MAX_FILES}, num_files",
        f"assert num_bytes <= {MAX_FILES * MAX_FILE_BYTES}, num_bytes",
    )
    folders = lines("import os", "for n in range(1000):", "    try: os.mkdir(str(n))", "    except OSError: break")
    assert_passes(folders, f"assert n == {MAX_FILES}, n")
    assert_passes(
        REFUSED,
        "import os",
        "assert refused(os.open, '.', os.O_TMPFILE | os.O_RDWR)",
        "assert refused(os.memfd_create, 'x')",
        "open('big', 'w')",
        f"assert refused(os.truncate, 'big', {2 * MAX_FILE_BYTES})",
        f"assert refused(os.posix_fallocate, os.open('big', os.O_RDWR), 0, {2 * MAX_FILE_BYTES})",
    )
    # What takes blocks beyond the end of a file, and files that nobody opened.
    assert_passes(
        "import ctypes, os, platform",
        "libc, size = ctypes.CDLL(None), ctypes.c_long(2**30)",
        "file = os.open('big', os.O_CREAT | os.O_RDWR)",
        "for mode in range(128): assert libc.fallocate(file, mode, ctypes.c_long(0), size) == -1",
        "assert os.fstat(file).st_blocks == 0",
        "renameat2 = {'x86_64': 316, 'aarch64': 276}[platform.machine()]",
        "for flags in range(8): assert libc.syscall(renameat2, -100, b'big', -100, b'other', flags) == -1",
        "assert os.listdir() == ['big']",
    )


def test_no_network(tmp_path):
    """Listeners that really wait, which the test itself can reach."""
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    path, abstract = str(tmp_path / "unix"), f"\0hf-dparallel-{os.getpid()}"
    by_path, by_name = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    by_path.bind(path)
    by_path.listen()
    by_name.bind(abstract)
    listeners = [tcp, udp, by_path, by_name]
    for listener in listeners:
        listener.setblocking(False)
    tcp_address, udp_address = tcp.getsockname(), udp.getsockname()
    assert_passes(
        f"import asyncio, ctypes, platform, socket, urllib.request{REFUSED}",
        f"assert refused(socket.create_connection, {tcp_address})",
        f"assert refused(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', {udp_address}))",
        f"assert refused(lambda: socket.socket(socket.AF_UNIX).connect({path!r}))",
        f"assert refused(urllib.request.urlopen, 'http://127.0.0.1:{tcp_address[1]}')",
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):",
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):",
        "        assert refused(socket.socket, family, kind)",
        # A pair of sockets is allowed for asyncio, but not one that could be pointed at someone else.
        "assert refused(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
        "ours, theirs = socket.socketpair()",
        f"assert refused(ours.connect, {path!r})",
        f"assert refused(ours.sendto, b'x', {path!r})",
        f"assert refused(ours.sendmsg, [b'x'], [], 0, {abstract!r})",
        # io_uring would do all of this past the filter.
        "assert ctypes.CDLL(None).syscall(425, 8, bytes(120)) == -1",
    )
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.recv(1) if listener in (udp, by_name) else listener.accept()
    with socket.create_connection(tcp_address):
        tcp.accept()[0].close()
    for listener in listeners:
        listener.close()


def test_no_signal_reaches_others():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert_passes(
            f"import ctypes, fcntl, os, signal, socket\nother = {other.pid}{REFUSED}",
            "for pid in (other, os.getppid(), 0, -1, -os.getppid(), -other):",
            "    assert refused(os.kill, pid, 0)",
            "assert refused(os.killpg, os.getpgid(0), 0)",
            "assert refused(os.kill, other, signal.SIGKILL)",
            "assert refused(signal.pidfd_send_signal, 0, signal.SIGKILL)",
            "assert refused(os.pidfd_open, other)",
            "assert refused(socket.socket(fileno=os.dup(2)).getsockopt, socket.SOL_SOCKET, 77, 4)  # SO_PEERPIDFD",
            # A descriptor that tells a process of its choice about its input, by a signal of its choice.
            "ours, theirs = os.pipe()",
            "assert refused(fcntl.fcntl, ours, fcntl.F_SETOWN, other)",
            "assert refused(fcntl.fcntl, ours, 10, signal.SIGKILL)",
            "assert refused(fcntl.ioctl, ours, 0x8901, bytes(8))",
            "assert refused(os.setpriority, os.PRIO_PROCESS, other, 19)",
            "libc = ctypes.CDLL(None)",
            "assert libc.ptrace(16, other, 0, 0) == libc.prctl(1, 0) == -1",
        )
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


def run_script(source: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, **kwargs)


# The modules by themselves, which are there at once.
IMPORT = f"import sys\nsys.path.append({str(Path(supervisor.__file__).parents[1])!r})\n"
RUN_GOOD_PROGRAM = (
    IMPORT + "from sandbox import child, programs, system_calls\nchild.give_up_privileges()\n{}\n"
    "print(programs.run_program('pass'))"
)


def test_root_without_privileges_can_run_programs():
    """As in a container, or for an ordinary user: nothing below needs a privilege."""
    result = run_script(RUN_GOOD_PROGRAM.format(""))
    assert "passed=True" in result.stdout, result.stderr


@pytest.mark.parametrize("missing", ["landlock_create_ruleset", "seccomp"])
def test_without_the_kernels_help_nothing_is_run(missing, tmp_path):
    """A filter of our own refuses the system call, as kernels and containers do that lack it."""
    block = (
        f"bodies = {{{missing!r}: [(6, 0, 0, 0x50000 | {errno.ENOSYS})]}}\n"
        "child.install_filter(system_calls.make_filter(bodies, otherwise=system_calls.ALLOW))"
    )
    result = run_script(RUN_GOOD_PROGRAM.format(block))
    assert "SandboxUnavailableError: Programs cannot be isolated here, so none was run" in result.stderr
    assert "passed" not in result.stdout


def test_other_systems_are_refused(monkeypatch):
    """They can import the modules all the same."""
    # Imported before: that of Python 3.13 looks for a module of Windows there.
    hide = "import shutil, sys\nsys.platform = 'win32'\nsys.modules.update(fcntl=None, resource=None)\n"
    result = run_script(hide + IMPORT + "from sandbox.programs import run_program\nrun_program('pass')")
    assert "SandboxUnavailableError: Programs run on 64-bit Linux" in result.stderr
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not system_calls.is_known_machine()
    with pytest.raises(SandboxUnavailableError, match="64-bit Linux"):
        run_program("pass")


def test_a_program_dies_with_its_supervisor(sandboxes):
    script = IMPORT + f"import tempfile\ntempfile.tempdir = {str(sandboxes)!r}\n"
    script += "from sandbox.programs import run_program\nrun_program('while True: pass', timeout_s=60)"
    with subprocess.Popen([sys.executable, "-c", script]) as supervisor:
        deadline = time.monotonic() + 60
        while not processes_of(sandboxes) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_of(sandboxes)
        supervisor.send_signal(signal.SIGKILL)
    while processes_of(sandboxes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for folder in sandboxes.iterdir():
        folder.rmdir()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"timeout_s": 0}, "`timeout_s` must be above 0, got 0"),
        ({"max_memory_mb": 10}, "`max_memory_mb` must be at least 256"),
        ({"num_workers": 0}, "`num_workers` must be at least 1, got 0"),
    ],
)
def test_limits_are_checked(limits, message):
    with pytest.raises(ValueError, match=message):
        run_programs(["pass"], **limits)
