# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The teacher's own answers, which are what the student is trained on.

Certainty-forcing distillation changes how early a model is certain, not what it says: the training data are the
decoding trajectories of the model itself, filtered by their answers
(https://huggingface.co/papers/2509.26488, "Teacher Trajectory Generation").
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..generation.configuration import DiffusionGenerationConfig
from .prompts import length_sorted_batches, tokenize_prompts
from .rewards import RewardFunction, score_completions


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)

SHARD_SIZE = 256
_MANIFEST = "trajectories.json"


def generate_trajectories(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    output_dir: str | os.PathLike | None = None,
    seed: int = 0,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset.

    With `output_dir`, rows are written in parquet shards of 256 as they are done, each shard whole or not at all. A
    run that was killed goes on where it stopped when it is called again with the same arguments. Under `torchrun`
    every process takes its share of the shards, and all return the whole dataset.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The teacher, with [`~DiffusionGenerationMixin.generate`]. It is used in evaluation mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset (`datasets.Dataset`):
            Prompts in one of TRL's formats: a column `prompt` of texts or of lists of messages, or a column
            `messages`, whose trailing assistant messages are left out. Texts are tokenized as they are; messages go
            through the chat template.
        generation_config ([`DiffusionGenerationConfig`], *optional*):
            Settings of the decoding. By default the model's own.
        batch_size (`int`, *optional*, defaults to 8):
            Prompts decoded together. Does not change the answers.
        output_dir (`str` or `os.PathLike`, *optional*):
            Where to keep the shards. Needed with more than one process.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws with `temperature > 0`; each row has its own, so that they are the same after a restart.

    Returns:
        `datasets.Dataset`: the columns of `dataset` and

        - `prompt_ids` (`list[int]`): the prompt.
        - `completion_ids` (`list[int]`): the answer, up to and including its end-of-sequence token.
        - `commit_step` (`list[int]`): the pass at which each token of the answer was committed.
        - `nfe` (`int`): the number of passes.

    Raises:
        ValueError: if the dataset is empty or has no prompt column, or `output_dir` holds another run.
    """
    from accelerate import PartialState
    from datasets import Dataset, concatenate_datasets
    from tqdm.auto import tqdm

    state = PartialState()
    if output_dir is None:
        if state.num_processes > 1:
            raise ValueError(
                f"`output_dir` is needed with {state.num_processes} processes: they share their rows through it."
            )
        with tempfile.TemporaryDirectory() as folder:
            return generate_trajectories(model, tokenizer, dataset, generation_config, batch_size, folder, seed)

    prompt_ids = tokenize_prompts(dataset, tokenizer)
    store = _ShardStore(Path(output_dir), len(dataset))
    settings = generation_config.settings() if generation_config is not None else {}
    store.claim({"prompts": _hash(prompt_ids), "settings": settings, "seed": seed}, state.is_main_process)
    mine = store.missing()[state.process_index :: state.num_processes]
    rows = [row for shard in mine for row in store.rows(shard)]
    was_training = model.training
    model.eval()
    with tqdm(total=len(rows), desc="Trajectories", disable=not state.is_main_process) as progress:
        for shard in mine:
            answers: dict[int, dict[str, Any]] = {}
            for batch in length_sorted_batches(store.rows(shard), prompt_ids, batch_size):
                answers |= _decode(model, tokenizer, {row: prompt_ids[row] for row in batch}, generation_config, seed)
                progress.update(len(batch))
            indices = list(store.rows(shard))
            new = {name: [answers[row][name] for row in indices] for name in answers[indices[0]]}
            store.write(shard, concatenate_datasets([dataset.select(indices), Dataset.from_dict(new)], axis=1))
    model.train(was_training)
    state.wait_for_everyone()
    return store.read()


def filter_trajectories(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    reward_funcs: RewardFunction | list[RewardFunction],
    min_reward: float = 1.0,
) -> "Dataset":
    r"""
    Keeps the trajectories that every reward function gives at least `min_reward`, and logs how many those are.

    Args:
        dataset (`datasets.Dataset`):
            What [`generate_trajectories`] returned.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Decodes `completion_ids`.
        reward_funcs (`Callable` or `list[Callable]`):
            Functions with TRL's signature: called with `prompts`, `completions`, `completion_ids` and all other
            columns as keyword arguments, they return one reward per row, `None` where they have nothing to say. For
            instance [`numeric_answer_reward`] or `trl.rewards.accuracy_reward`. Completions are texts if the prompts
            are, else lists with one assistant message.
        min_reward (`float`, *optional*, defaults to 1.0):
            The least reward to keep a row. A row for which all functions return `None` is dropped.

    Returns:
        `datasets.Dataset`: the kept rows, unchanged.

    Raises:
        ValueError: if no row is left, or `dataset` has no `completion_ids`.
    """
    if "completion_ids" not in dataset.column_names:
        raise ValueError(
            f"`dataset` needs the column `completion_ids`, it has {dataset.column_names}. "
            "Make it with `generate_trajectories`."
        )
    rewards = score_completions(dataset, tokenizer, reward_funcs)
    kept = [row for row, reward in enumerate(rewards) if reward is not None and reward >= min_reward]
    logger.info(f"Kept {len(kept)} of {len(dataset)} trajectories, dropped {len(dataset) - len(kept)}.")
    if not kept:
        first = tokenizer.decode(dataset[0]["completion_ids"], skip_special_tokens=True)
        raise ValueError(
            f"None of {len(dataset)} trajectories has `min_reward={min_reward}` or more. Look at a few completions "
            f"(the first one is {first[:200]!r}): is the answer in the form that the reward function reads?"
        )
    return dataset.select(kept)


def _decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: dict[int, list[int]],
    generation_config: DiffusionGenerationConfig | None,
    seed: int,
) -> dict[int, dict[str, Any]]:
    """Decodes one batch, `prompts` by row, and returns the new columns by row."""
    inputs = tokenizer.pad({"input_ids": list(prompts.values())}, padding_side="left", return_tensors="pt")
    generators = [torch.Generator(model.device).manual_seed(_hash(seed, row)) for row in prompts]
    out = model.generate(
        **inputs.to(model.device),
        generation_config=generation_config,
        generator=generators,
        tokenizer=tokenizer,
        return_dict_in_generate=True,
    )
    prompt_length = inputs["input_ids"].shape[1]
    answers = {}
    for index, (row, prompt) in enumerate(prompts.items()):
        # Padding after the end of the answer has commit step -1.
        length = int((out.commit_step[index] >= 0).sum())
        answers[row] = {
            "prompt_ids": prompt,
            "completion_ids": out.sequences[index, prompt_length : prompt_length + length].tolist(),
            "commit_step": out.commit_step[index, :length].tolist(),
            "nfe": int(out.nfe[index]),
        }
    return answers


def _hash(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])


class _ShardStore:
    """A folder of parquet shards of one run."""

    def __init__(self, folder: Path, num_rows: int):
        self.folder = folder
        self.num_rows = num_rows
        self.num_shards = -(-num_rows // SHARD_SIZE)

    def claim(self, run: dict[str, Any], is_main_process: bool) -> None:
        """Notes which run the folder belongs to, or checks that it is this one."""
        run = {"num_rows": self.num_rows, **run}
        path = self.folder / _MANIFEST
        previous = json.loads(path.read_text()) if path.exists() else run
        changed = [name for name, value in run.items() if previous.get(name) != value]
        if changed:
            raise ValueError(
                f"`output_dir={str(self.folder)!r}` holds trajectories of another run, which differs in "
                f"{', '.join(changed)}. Choose another folder, or delete that one to start over."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if is_main_process:
            _write_atomically(path, lambda temporary: temporary.write_text(json.dumps(run)))

    def rows(self, shard: int) -> range:
        return range(shard * SHARD_SIZE, min((shard + 1) * SHARD_SIZE, self.num_rows))

    def missing(self) -> list[int]:
        return [shard for shard in range(self.num_shards) if not self._path(shard).exists()]

    def write(self, shard: int, rows: "Dataset") -> None:
        _write_atomically(self._path(shard), rows.to_parquet)

    def read(self) -> "Dataset":
        from datasets import Dataset, concatenate_datasets
        from pyarrow.parquet import read_table

        return concatenate_datasets([Dataset(read_table(self._path(shard))) for shard in range(self.num_shards)])

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}-of-{self.num_shards:05d}.parquet"


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file whole or not at all, whenever the process is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    os.replace(temporary, path)
