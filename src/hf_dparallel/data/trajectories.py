# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The teacher's own answers, which are what the student is trained on.

Certainty-forcing distillation changes how early a model is certain, not what it says: the training data are the
decoding trajectories of the model itself, filtered by their answers
(https://huggingface.co/papers/2509.26488, "Teacher Trajectory Generation").
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.rows import evaluation_mode
from .claims import Claims
from .rewards import RewardFunction, named_functions, score_completions
from .teacher import Prompts, Teacher, gather_shards
from .trajectory_folder import ShardStore


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)


def generate_trajectories(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 8,
    output_dir: str | os.PathLike | None = None,
    seed: int = 0,
    num_workers: int = 1,
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset.

    With `output_dir`, rows are written in parquet shards of 64 as they are done, each shard whole or not at all. A
    run that was killed goes on where it stopped when it is called again with the same arguments; shards that were
    damaged since then are made anew. Under `torchrun` every process takes one shard after the other, whichever is
    left, and all return the whole dataset.

    A row whose decoding fails, because the logits of the model are NaN, is left out: a warning says which, and a
    restart does not try it again. If not one row of a shard can be decoded, its error ends the run.

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
            Prompts decoded together. Does not change the answers (up to the rounding of sums in batches).
        output_dir (`str` or `os.PathLike`, *optional*):
            Where to keep the shards. Needed with more than one process; on several machines it must be a folder that
            they share.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws with `temperature > 0`; each row has its own, so that they are the same after a restart.
        num_workers (`int`, *optional*, defaults to 1):
            Threads that decode side by side, each `batch_size` prompts: on a CPU faster for small models.

    Returns:
        `datasets.Dataset`: the columns of `dataset` and

        - `prompt_ids` (`list[int]`): the prompt.
        - `completion_ids` (`list[int]`): the answer, up to and including its end-of-sequence token.
        - `commit_step` (`list[int]`): the pass at which each token of the answer was committed.
        - `nfe` (`int`): the number of passes.

    Raises:
        ValueError: if the dataset is empty, has no prompt column, or has a prompt that is empty or contains the mask
            token; if `output_dir` holds another run: of another model, dataset, tokenizer, recipe or seed; or if
            several processes do not share it.
        FloatingPointError: if not one row of a shard can be decoded.
    """
    from accelerate import PartialState

    # Without `cpu`, processes under `torchrun` on a machine without accelerator would not know of one another.
    state = PartialState(cpu=model.device.type == "cpu")
    if output_dir is None and state.num_processes > 1:
        raise ValueError(
            f"`output_dir` is needed with {state.num_processes} processes: they share their rows through it."
        )
    teacher = Teacher(model, tokenizer, generation_config, batch_size, seed, num_workers)
    prompts = Prompts(dataset, tokenizer, teacher.config.mask_token_id)
    with contextlib.ExitStack() as stack:
        run = {} if output_dir is None else teacher.describe() | prompts.describe()
        folder = Path(output_dir or stack.enter_context(tempfile.TemporaryDirectory()))
        store = ShardStore(folder, run, len(dataset))
        store.check_run()
        claims = Claims(store, state)
        stack.enter_context(evaluation_mode(model))
        answers = teacher.answer(prompts.of_shard(store, shard) for shard in claims)
        for shard in gather_shards(_with_progress(answers, claims)):
            store.write(shard.number, shard.rows, shard.failed)
        claims.wait()
        return store.read()


def filter_trajectories(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    reward_funcs: RewardFunction | list[RewardFunction],
    min_reward: float = 1.0,
) -> "Dataset":
    r"""
    Keeps the trajectories that every reward function gives at least `min_reward`, and logs how many it keeps.

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
        `datasets.Dataset`: the kept rows, unchanged. Its `info.description` says how many there are of how many.

    Raises:
        ValueError: if no row is left, or `dataset` has no `completion_ids` or lacks a column of a reward function.
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
    kept_rows = dataset.select(kept)
    # Cards of the data and of what is trained on them say it.
    names = " and ".join(name for name, _ in named_functions(reward_funcs))
    counts = f"{len(kept)} of {len(dataset)} trajectories were kept"
    kept_rows.info.description = f"{counts}: those with a reward of at least {min_reward:g} from {names}."
    return kept_rows


def _with_progress(answers: Iterator[Any], claims: Claims) -> Iterator[Any]:
    from tqdm.auto import tqdm

    # Beside other processes it is not known how many rows this one will decode.
    total = sum(len(claims.store.rows(shard)) for shard in claims.missing) if claims.state.num_processes == 1 else None
    return tqdm(answers, total=total, desc="Trajectories", disable=not claims.state.is_main_process)
