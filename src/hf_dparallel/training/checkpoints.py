# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Which checkpoints are whole, and what to do when one cannot be written."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
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
    """The last checkpoint in a folder that was written to its end; `None` if there is none.

    A process that is killed while it saves leaves a folder with some files missing or cut short, which is the last one
    by its name. The Trainer writes `trainer_state.json` after all others.
    """
    checkpoints = sort_checkpoints(output_dir) if Path(output_dir).is_dir() else []
    return next((checkpoint for checkpoint in reversed(checkpoints) if _is_complete(Path(checkpoint))), None)


def all_finite(model: nn.Module) -> bool:
    """Whether no weight that is trained is NaN or infinite. Each process sees its part of weights that are split."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return all((weight.to_local() if hasattr(weight, "to_local") else weight).isfinite().all() for weight in weights)


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
    """Warns of settings that the run of a checkpoint has had otherwise, by the `training_summary` of this one."""
    path, mine = Path(checkpoint, SUMMARY_NAME), json.dumps(summary)
    summaries = map(json.loads, (path.read_text() if path.is_file() else mine, mine))
    before, now = ({"num_sequences": facts["num_sequences"], **facts["settings"]} for facts in summaries)
    # Batches are compared by the Trainer, which finds their size anew with `auto_find_batch_size`.
    names = (before | now).keys() - {"steps", "batch_size"}
    changed = sorted(name for name in names if before.get(name) != now.get(name))
    if changed:
        values = ", ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in changed)
        logger.warning(f"The run of {checkpoint!r} had other settings, and goes on with yours: {values}.")


@contextlib.contextmanager
def writing(checkpoint: Path, is_mine: bool) -> Iterator[None]:
    """Marks a checkpoint that is written over as incomplete, if this process writes it, and explains what goes wrong.

    Raises an `OSError` that says what could not be written, how much room there is, and which checkpoint is safe.
    """
    try:
        if is_mine:
            (checkpoint / TRAINER_STATE_NAME).unlink(missing_ok=True)
        yield
    except Exception as error:
        # torch and safetensors have errors of their own for what the operating system refuses.
        if not isinstance(error, OSError) and not re.search("I/O error|inline_container", str(error)):
            raise
        last = last_complete_checkpoint(str(checkpoint.parent))
        kept = f"{last} is intact: go on with `resume_from_checkpoint=True`." if last else "There is none before it."
        room = shutil.disk_usage(next(folder for folder in checkpoint.absolute().parents if folder.exists())).free
        raise OSError(
            f"Could not write {str(checkpoint)!r} ({error}); {room / 2**20:.0f} MB are free there. {kept} Free some "
            "space, or check the permissions and quotas, and run it again."
        ) from error
