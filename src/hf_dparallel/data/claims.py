# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Several processes that share the shards of a folder: each shard goes to the first process that asks for it."""

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.utils import logging

from .trajectory_folder import ShardStore


if TYPE_CHECKING:
    from accelerate import PartialState

logger = logging.get_logger(__name__)

_PREFIX = ".claims-"
# A network file system may take that long to show a new file on another machine.
_SECONDS_TO_APPEAR = 60
_SECONDS_OF_SILENCE = 600


class Claims:
    """Hands out the shards of a run among the processes that `torchrun` started.

    A claim is an empty file in a hidden folder, which only one process can create. So no process waits for another in
    a collective operation, which would end with an error after ten minutes.

    Args:
        store ([`ShardStore`]): the shards.
        state ([`~accelerate.PartialState`]): the processes.

    Raises:
        ValueError: if the processes do not see the same folder.
    """

    def __init__(self, store: ShardStore, state: "PartialState"):
        from accelerate.utils import broadcast_object_list

        self.store = store
        self.state = state
        names = [""]
        if state.is_main_process:
            store.prepare()
            names = [Path(tempfile.mkdtemp(prefix=_PREFIX, dir=store.folder)).name]
        self.folder = store.folder / broadcast_object_list(names)[0]
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while not self.folder.is_dir():
            if time.monotonic() > deadline:
                raise ValueError(
                    f"Process {state.process_index}, on {socket.gethostname()}, does not see what the first process "
                    f"wrote to `output_dir={str(store.folder)!r}`. Processes share their work through it: choose a "
                    "folder on a file system that all machines share, or run each machine on its own part of the data."
                )
            time.sleep(0.1)
        self.missing = store.missing()

    def __iter__(self) -> Iterator[int]:
        """Yields the shards that this process has to make, each when it is asked for."""
        return (shard for shard in self.missing if not self.store.path(shard).exists() and self._claim(shard))

    def wait(self) -> None:
        """Waits until all shards are there, for any time that the other processes need."""
        missing, since = self.store.missing(), time.monotonic()
        while missing:
            time.sleep(0.5)
            num_before = len(missing)
            missing = [shard for shard in missing if not self.store.path(shard).exists()]
            if len(missing) < num_before:
                since = time.monotonic()
            elif time.monotonic() - since > _SECONDS_OF_SILENCE:
                logger.warning(
                    f"Process {self.state.process_index} waits for {len(missing)} shards of other processes, and none "
                    f"was finished in {_SECONDS_OF_SILENCE} s. If one of them has died, start the run again with the "
                    "same folder."
                )
                since = time.monotonic()
        if self.state.is_main_process:
            # The claims of runs that were killed go with it.
            for folder in self.store.folder.glob(f"{_PREFIX}*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _claim(self, shard: int) -> bool:
        try:
            (self.folder / str(shard)).touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            # Another process has it, or has come to the end of all.
            return False
        return True
