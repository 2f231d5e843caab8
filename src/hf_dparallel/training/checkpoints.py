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
_FREE = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "init_lora_weights",
    "lora_dropout",
    "peft_version",
    "revision",
    "task_type",
}


def last_complete_checkpoint(output_dir: str) -> str | None:
    """Returns the last complete checkpoint in a folder, or `None` if there is none.

    A process that is killed while it saves leaves a last checkpoint with missing or truncated files. The Trainer
    writes `trainer_state.json` after all others.
    """
    if not Path(output_dir).is_dir():
        return None

    for checkpoint in reversed(sort_checkpoints(output_dir)):
        with suppress(OSError, ValueError, SafetensorError):
            json.loads(Path(checkpoint, TRAINER_STATE_NAME).read_text())
            for file in Path(checkpoint).glob("*.safetensors"):
                # Opening reads the header, and compares it with the size of the file.
                with safe_open(file, framework="pt"):
                    pass
            return checkpoint
    return None


def check_resumable(checkpoint: str, model: Any, optim: str) -> None:
    """Raises a `ValueError` if the weights or the state of the optimizer would mean something else in this run."""
    folder = Path(checkpoint)
    changed: dict[str, tuple[Any, Any]] = {}
    adapters = getattr(model, "peft_config", None)
    if adapters and (folder / ADAPTER_CONFIG_NAME).is_file():
        now = json.loads(json.dumps(next(iter(adapters.values())).to_dict(), default=list))
        before = read_json(folder / ADAPTER_CONFIG_NAME)
        for name in (before.keys() & now.keys()) - _FREE:
            changed[name] = (_in_order(before[name]), _in_order(now[name]))

    files = [path.name for path in folder.iterdir()]
    if not any(name.startswith(("optimizer", "global_step")) for name in files):
        logger.warning(f"{checkpoint!r} has no state of the optimizer: its moments and the schedule begin anew.")
    elif SUMMARY_NAME in files:
        settings = read_json(folder / SUMMARY_NAME)["settings"]
        changed["optim"] = (settings["optim"], optim)

    for name, (was, value) in sorted(changed.items()):
        if was != value:
            raise ValueError(
                f"{checkpoint!r} cannot be resumed: {name} was {was!r} and is {value!r}, so its weights or states "
                "would mean something else. Resume with the same adapter and optimizer, or train anew."
            )


def _in_order(value: Any) -> Any:
    # PEFT writes sets as lists in any order.
    return sorted(value) if isinstance(value, list) else value
