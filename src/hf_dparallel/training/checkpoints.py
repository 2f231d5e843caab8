# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints to resume from."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import ADAPTER_CONFIG_NAME, logging

from ..hub.card import SUMMARY_NAME
from ..reports import read_json


logger = logging.get_logger(__name__)

# What may differ in the configuration of an adapter without another meaning of its weights.
_FREE = {"auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights", "lora_dropout"}
_FREE |= {"peft_version", "revision", "task_type"}


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


def check_resumable(checkpoint: str, model: Any, optim: str) -> None:
    """Raises a `ValueError` if the weights or the state of the optimizer would mean something else in this run."""
    folder, changed = Path(checkpoint), {}
    if (folder / ADAPTER_CONFIG_NAME).is_file() and (adapters := getattr(model, "peft_config", None)):
        now = json.loads(json.dumps(next(iter(adapters.values())).to_dict(), default=list))
        before = read_json(folder / ADAPTER_CONFIG_NAME)
        # PEFT writes sets as lists in any order.
        changed = {
            name: tuple(sorted(each[name]) if isinstance(each[name], list) else each[name] for each in (before, now))
            for name in (before.keys() & now.keys()) - _FREE
        }
    has_optimizer = any(path.name.startswith(("optimizer", "global_step")) for path in folder.iterdir())
    if not has_optimizer:
        logger.warning(f"{checkpoint!r} has no state of the optimizer: its moments and the schedule begin anew.")
    elif (folder / SUMMARY_NAME).is_file():
        changed["optim"] = (read_json(folder / SUMMARY_NAME)["settings"]["optim"], optim)
    for name, (was, value) in sorted(changed.items()):
        if was != value:
            raise ValueError(
                f"{checkpoint!r} cannot be resumed: {name} was {was!r} and is {value!r}, so its weights or states "
                "would mean something else. Resume with the same adapter and optimizer, or train anew."
            )
