# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints to resume from: which is complete, and in what its run differs from this one."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import ADAPTER_CONFIG_NAME, logging

from ..hub.card import SUMMARY_NAME
from ..reports import read_json


logger = logging.get_logger(__name__)

# What may change between two starts: in an adapter, without another meaning of its weights; in a summary.
_FREE = {"auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights", "lora_dropout"}
_FREE |= {"peft_version", "revision", "task_type", "batch_size", "metrics", "settings", "steps"}


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


def compare_runs(checkpoint: str, model: Any, summary: dict[str, Any]) -> None:
    """Warns of settings in which the run of a checkpoint differs from this one, which has the `summary`.

    Raises a `ValueError` if weights or the state of the optimizer would mean something else.
    """
    folder = Path(checkpoint)
    if (folder / ADAPTER_CONFIG_NAME).is_file() and (adapters := getattr(model, "peft_config", None)):
        config = next(iter(adapters.values())).to_dict()
        before, now = read_json(folder / ADAPTER_CONFIG_NAME), json.loads(json.dumps(config, default=list))
        if changed := _changes({**now, **before}, {**before, **now}):
            raise ValueError(
                f"The adapter of {checkpoint!r} is another one: {', '.join(changed.values())}. Its weights would mean "
                "something else. Resume with the same `peft_config`, or train anew."
            )
        names = [each.get("base_model_name_or_path") for each in (before, now)]
        if names[0] != names[1]:
            logger.warning(f"The adapter of {checkpoint!r} is of {names[0]!r}. Is {names[1]!r} the same model?")
    has_optimizer = any(path.name.startswith(("optimizer", "global_step")) for path in folder.iterdir())
    if not has_optimizer:
        logger.warning(f"{checkpoint!r} has no state of the optimizer: its moments and the schedule begin anew.")
    before = read_json(folder / SUMMARY_NAME) if (folder / SUMMARY_NAME).is_file() else summary
    changed = _changes(before | before["settings"], summary | json.loads(json.dumps(summary["settings"])))
    if has_optimizer and "optim" in changed:
        raise ValueError(f"{checkpoint!r} has the state of another optimizer: {changed['optim']}. Use the same.")
    if changed:
        kept = " and ".join(name for name in ("learning_rate", "weight_decay") if has_optimizer and name in changed)
        values = ", ".join(changed.values()) + (f". But {kept}, stored with the optimizer, stay" if kept else "")
        logger.warning(f"The run of {checkpoint!r} had other settings, and goes on with yours: {values}.")


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Returns, by name, what two runs have different. PEFT writes sets as lists in any order."""
    pairs = {name: (before.get(name), now.get(name)) for name in sorted((before.keys() | now.keys()) - _FREE)}
    return {
        name: f"{name} was {old!r} and is {new!r}"
        for name, (old, new) in pairs.items()
        if (sorted(old) != sorted(new) if isinstance(old, list) and isinstance(new, list) else old != new)
    }


def all_finite(model: nn.Module) -> bool:
    """Returns whether all trainable weights are finite. With sharded weights, each process checks its own shard."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return all((weight.to_local() if hasattr(weight, "to_local") else weight).isfinite().all() for weight in weights)
