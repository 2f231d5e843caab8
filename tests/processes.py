# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Programs in processes of their own that start at once.

They are forked from a server that has imported the libraries, which takes as long as most of these tests together.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

from torch.distributed import TCPStore


# Seconds after which two processes that train hang.
_LONGEST = 300
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["pytest", "hf_dparallel._on_demand"])


# What a program leaves is never freed: a process group of gloo would wait for a thread that waits for the GIL.
_NAMESPACE = {"__name__": "__main__"}


class Program:
    """A Python program that runs in the folder and with the import path of the tests.

    Args:
        source (`str`): its text.
        arguments: what it finds in `sys.argv[1:]`.
        environment (`str`): variables that it has beside the ones of the tests.

    Attributes:
        output (`TextIO`): what it writes, errors included, as it writes it.
    """

    def __init__(self, source: str, *arguments, **environment: str):
        reader, writer = _SERVER.Pipe(duplex=False)
        argv = [str(argument) for argument in arguments]
        self._process = _SERVER.Process(
            target=_run, args=(source, argv, os.getcwd(), dict(os.environ) | environment, writer), daemon=True
        )
        self._process.start()
        writer.close()
        self.output = open(os.dup(reader.fileno()), encoding="utf-8")  # noqa: SIM115
        reader.close()

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for its end and returns the exit code; `None` if it is still running."""
        self._process.join(seconds)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Ends it, if it is still running."""
        self.end()
        self._process.join()
        self.output.close()

    def end(self) -> None:
        """Sends SIGKILL to it and to the processes that it has started, which hold its output open, too."""
        self._process.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _run(source: str, argv: list[str], folder: str, environment: dict[str, str], writer: Connection) -> None:
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(writer.fileno(), descriptor)
    writer.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["program", *argv]
    # As at the end of a process that was not forked.
    atexit._clear()
    try:
        exec(compile(source, "program", "exec"), _NAMESPACE)
    finally:
        atexit._run_exitfuncs()


def run_program(source: str, *arguments) -> tuple[int, str]:
    """Returns the exit code of a program and what it wrote."""
    program = Program(source, *arguments)
    with program.output:
        output = program.output.read()
    return program.wait(), output


def run_in_two_processes(source: str, *arguments) -> None:
    """Runs a program in two processes that find each other as under torchrun."""
    # As torchrun's agent: a port that is free now may be taken when the first of them listens there.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} for rank in "01"]
    programs = [Program(source, *arguments, **address, **rank) for rank in ranks]
    # If one hangs, what both have written is seen.
    limit = threading.Timer(_LONGEST, lambda: [program.end() for program in programs])
    limit.start()
    try:
        with ThreadPoolExecutor() as pool:
            outputs = list(pool.map(lambda program: program.output.read(), programs))
        assert [program.wait() for program in programs] == [0, 0], "\n\n".join(output[-3000:] for output in outputs)
    finally:
        limit.cancel()
        for program in programs:
            program.kill()


def run_python(program: str) -> str:
    """Returns the output of a program in a process in which nothing has been imported before."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
