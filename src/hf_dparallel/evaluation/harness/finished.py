# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The requests that are finished, in a file that outlives the run."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn


_VALUES_PER_WEIGHT = 1024


class FinishedRequests(dict[str, dict[str, Any]]):
    """Records of finished requests by key. With a file, each is written to it at once, and read from it again.

    A line that was cut off when a run was killed is ignored.

    Args:
        path (`str` or `os.PathLike`, *optional*): a file of JSON lines. Created with its folder.
    """

    def __init__(self, path: str | os.PathLike | None = None):
        super().__init__()
        self.path = Path(path) if path is not None else None
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._read(self.path)

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keeps a record, and writes it to the file."""
        self[key] = record
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **record}, ensure_ascii=False) + "\n")

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            # What follows must begin on a line of its own.
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.split("\n"):
            try:
                record = dict(json.loads(line))
                self[record.pop("key")] = record
            except (ValueError, KeyError, TypeError):
                continue


def request_key(*parts: Any) -> str:
    """A hash of what an answer depends on, the same in every process."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of the weights of a model and its adapters, wherever they were loaded from.

    Of each tensor it reads values at equal distances, which any training changes.
    """
    hashed = hashlib.sha256()
    for name, weight in model.named_parameters():
        values = weight.detach().reshape(-1)
        values = values[:: max(1, len(values) // _VALUES_PER_WEIGHT)].cpu().contiguous()
        hashed.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        hashed.update(values.view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
