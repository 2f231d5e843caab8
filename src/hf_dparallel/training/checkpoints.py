# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints: which are complete, how training goes on from one, and what to do when one cannot be written."""

import contextlib
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput, sort_checkpoints
from transformers.utils import CONFIG_NAME, logging

from ..hub.files import SUMMARY_NAME
from ..models.base import MaskedDiffusionModel
from .publishing import PublishingMixin, training_summary


logger = logging.get_logger(__name__)


class CheckpointMixin(PublishingMixin):
    """The part of a [`~transformers.Trainer`] that writes checkpoints, and resumes from the last complete one."""

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        r"""
        Trains, see [`~transformers.Trainer.train`].

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                The checkpoint to resume from. `True` is the last complete one in `output_dir`, so a run that was
                killed while it saved can be resumed. A warning names the settings that differ.
            kwargs:
                Further arguments of [`~transformers.Trainer.train`].

        Raises:
            ValueError: if there is no checkpoint to resume from.
            OSError: if a checkpoint cannot be written; those before it are intact.
            FloatingPointError: if the training diverges. All checkpoints are from before that.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(
                    f"`resume_from_checkpoint=True` needs a checkpoint in {self.args.output_dir!r} that was written "
                    "to its end, and there is none. Train without it."
                )
        if resume_from_checkpoint:
            warn_of_changes(resume_from_checkpoint, training_summary(self))
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        if not all_finite(self.model):
            raise FloatingPointError(self._divergence())
        return output

    def _divergence(self) -> str:
        last = last_complete_checkpoint(self.args.output_dir)
        return (
            f"The training has diverged: loss or weights are NaN or infinite at step {self.state.global_step}. "
            + (f"{last} is from before that. " if last else "")
            + "Lower `learning_rate`, or train in bfloat16 instead of float16."
        )

    def _init_training_state(self, max_steps, num_update_steps, num_epochs, checkpoint, trial) -> tuple[int, int]:
        trained = super()._init_training_state(max_steps, num_update_steps, num_epochs, checkpoint, trial)
        # The Trainer takes all steps on streamed data, whose passes have an unknown length, for one pass.
        if not self.state.global_step or num_epochs != sys.maxsize:
            return trained
        saved = TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
        # A run that ended within its first pass has counted it as a whole one.
        self.state.epoch = epoch = math.ceil(saved.epoch) - 1
        batches = round((saved.epoch - epoch) * saved.max_steps * self.args.gradient_accumulation_steps)
        return epoch, 0 if self.args.ignore_data_skip else batches

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        is_ours = isinstance(self.model, MaskedDiffusionModel) and Path(resume_from_checkpoint, CONFIG_NAME).is_file()
        if not is_ours or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        # The Trainer does not know the published names of our weights.
        settings = {"config": self.model.config, "dtype": self.model.dtype}
        saved = type(self.model).from_pretrained(resume_from_checkpoint, **settings)
        self.model.load_state_dict(saved.state_dict())

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return super()._load_best_model()
        # The Trainer would load the adapter "default" into whichever is active.
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if not all_finite(model):
            # The checkpoints before it are worth more, and may have to make room for it.
            raise FloatingPointError(self._divergence())
        checkpoint = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        with writing(checkpoint, is_mine=self.args.should_save):
            super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # After it comes the file that says that a checkpoint is whole: of all processes.
        self.accelerator.wait_for_everyone()


def last_complete_checkpoint(output_dir: str) -> str | None:
    """Returns the last complete checkpoint in a folder, or `None` if there is none.

    A process that is killed while it saves leaves a last checkpoint with missing or truncated files. The Trainer
    writes `trainer_state.json` after all others.
    """
    checkpoints = sort_checkpoints(output_dir) if Path(output_dir).is_dir() else []
    return next((checkpoint for checkpoint in reversed(checkpoints) if _is_complete(Path(checkpoint))), None)


def all_finite(model: nn.Module) -> bool:
    """Tells whether all trainable weights are finite. With sharded weights, each process checks its own shard."""
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


@contextlib.contextmanager
def writing(checkpoint: Path, is_mine: bool) -> Iterator[None]:
    """Marks a checkpoint as incomplete while this process overwrites it, and explains errors.

    Raises an `OSError` with the path that could not be written, the free space, and the last intact checkpoint.
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
