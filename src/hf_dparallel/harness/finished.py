# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The requests that are finished, in a file that outlives the run."""

import glob
import json
import os
from pathlib import Path
from typing import Any


class FinishedRequests(dict[str, dict[str, Any]]):
    """Records of finished requests by key. With a file, each is written to it at once, and read from it again.

    The harness's `use_cache` cannot stand in for it: it knows neither the model nor its settings, keeps neither costs
    nor drawn answers, and is lost to another number of processes. A line that was cut off when a run was killed is
    ignored.
    The file has JSON lines. Each of several processes writes a file with its `rank` after the name, and
    reads the files of all, however many there were.
    """

    def __init__(self, path: str | os.PathLike | None = None, rank: int | None = None):
        super().__init__()
        self.path: Path | None = None
        if path is None:
            return
        shared = Path(path)
        self.path = shared if rank is None else shared.with_name(f"{shared.name}.{rank}")
        shared.parent.mkdir(parents=True, exist_ok=True)
        for file in [shared, *sorted(shared.parent.glob(f"{glob.escape(shared.name)}.*"))]:
            if file.exists() and (file == shared or file.suffix[1:].isdecimal()):
                self._read(file)

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keeps a record, and writes it to the file."""
        self[key] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **record}, ensure_ascii=False) + "\n")

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path == self.path and text and not text.endswith("\n"):
            # The next record must begin on a new line.
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.split("\n"):
            try:
                record = dict(json.loads(line))
                self[record.pop("key")] = record
            except (ValueError, KeyError, TypeError):
                continue
