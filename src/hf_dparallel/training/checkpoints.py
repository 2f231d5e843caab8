# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints to resume from."""

import json
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints


def last_complete_checkpoint(output_dir: str) -> str | None:
    """Returns the last complete checkpoint in a folder, or `None` if there is none.

    A process that is killed while it saves leaves a last checkpoint with missing or truncated files. The Trainer
    writes `trainer_state.json` after all others.
    """
    for checkpoint in reversed(sort_checkpoints(output_dir) if Path(output_dir).is_dir() else []):
        with suppress(OSError, ValueError, SafetensorError):
            json.loads(Path(checkpoint, TRAINER_STATE_NAME).read_text())
            for file in Path(checkpoint).glob("*.safetensors"):
                # Reads the header, and compares it with the size of the file.
                safe_open(file, framework="pt").__exit__(None, None, None)
            return checkpoint
    return None
