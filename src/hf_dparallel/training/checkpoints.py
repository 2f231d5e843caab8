# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints to resume from: which is complete, and in what its run differs from this one."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import logging

from ..hub.files import SUMMARY_NAME


logger = logging.get_logger(__name__)


def last_complete_checkpoint(output_dir: str) -> str | None:
    """Returns the last complete checkpoint in a folder, or `None` if there is none.

    A process that is killed while it saves leaves a last checkpoint with missing or truncated files. The Trainer
    writes `trainer_state.json` after all others.
    """
    checkpoints = sort_checkpoints(output_dir) if Path(output_dir).is_dir() else []
    return next((checkpoint for checkpoint in reversed(checkpoints) if _is_complete(Path(checkpoint))), None)


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text())
        for file in checkpoint.glob("*.safetensors"):
            # Reads the header, and compares it with the size of the file.
            safe_open(file, framework="pt").__exit__(None, None, None)
    except (OSError, ValueError, SafetensorError):
        return False
    return True


def warn_of_changes(checkpoint: str, summary: dict[str, Any]) -> None:
    """Warns of settings in which the run of a checkpoint differs from this one, which has the `summary`."""
    path, mine = Path(checkpoint, SUMMARY_NAME), json.dumps(summary)
    summaries = map(json.loads, (path.read_text() if path.is_file() else mine, mine))
    before, now = ({"num_sequences": facts["num_sequences"], **facts["settings"]} for facts in summaries)
    # Batches are compared by the Trainer, which finds their size anew with `auto_find_batch_size`.
    names = (before | now).keys() - {"steps", "batch_size"}
    changed = sorted(name for name in names if before.get(name) != now.get(name))
    if changed:
        values = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in changed)
        logger.warning(f"The run of {checkpoint!r} had other settings, and goes on with yours: {values}.")


def all_finite(model: nn.Module) -> bool:
    """Returns whether all trainable weights are finite. With sharded weights, each process checks its own shard."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return all((weight.to_local() if hasattr(weight, "to_local") else weight).isfinite().all() for weight in weights)
