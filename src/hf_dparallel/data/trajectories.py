# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Generates and filters the teacher's own answers, on which the student is trained.

Certainty-forcing distillation changes how early a model is certain, not what it answers. Its training data are
therefore decoding trajectories of the model itself, filtered by the correctness of the answers
(https://huggingface.co/papers/2509.26488, "Teacher Trajectory Generation").
"""

import contextlib
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..environment import join_processes
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.output import DecodedRow
from .folder import TrajectoryFolder, common_chat_template_kwargs
from .prompts import check_is_dataset
from .rewards import RewardFunction, score_completions
from .texts import decode_without
from .thoughts import ThoughtMarkers, hidden_tokens


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
) -> "Dataset":
    r"""
    Lets a model answer the prompts of a dataset.

    With `output_dir`, rows are written in parquet shards of 64 as they are decoded, each shard whole or not at all. To
    continue a run that was killed, call this function again with the same arguments. Under `torchrun` every process
    decodes its share of the shards, and all return the whole dataset.

    A row whose logits are NaN is left out, with a warning. If no row of a whole shard can be decoded, the run ends
    with an error.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The teacher, with [`~DiffusionGenerationMixin.generate`]. It decodes in evaluation mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset (`datasets.Dataset`):
            Prompts in one of TRL's formats: a column `prompt` of texts or of lists of messages, or a column
            `messages`, whose trailing assistant messages are left out. Texts are tokenized as they are; messages go
            through the chat template.
        generation_config ([`DiffusionGenerationConfig`], *optional*):
            Generation settings. By default the model's own.
        batch_size (`int`, *optional*, defaults to 8):
            Prompts decoded together. Does not change the answers, up to rounding.
        output_dir (`str` or `os.PathLike`, *optional*):
            Folder for the shards. Required with more than one process; on several machines it must be a shared folder.
        seed (`int`, *optional*, defaults to 0):
            Seed for sampling with `temperature > 0`. Each row has its own generator, so a restart gives the same
            answers.

    Returns:
        `datasets.Dataset`: the columns of `dataset` and

        - `prompt_ids` (`list[int]`): the prompt.
        - `completion_ids` (`list[int]`): the answer, up to and including its end-of-sequence token.
        - `commit_step` (`list[int]`): the pass at which each token of the answer was committed.
        - `nfe` (`int`): the number of passes.
        - `chat_template_kwargs` (`str`): what the template got, as JSON, if anything; for the student's recipe.

    Raises:
        ValueError: if the dataset is empty, has no prompt column, or has a prompt that is empty or contains the mask
            token; if `output_dir` holds another run: with another model, prompts, tokenizer, recipe or seed; or if
            several processes do not share it.
        FloatingPointError: if no row of a whole shard can be decoded.
        OSError: if a shard cannot be written, as on a full disk. Those before it are saved.
    """
    from tqdm.auto import tqdm

    state = join_processes()
    if output_dir is None and state.num_processes > 1:
        raise ValueError(f"`output_dir` must be set with {state.num_processes} processes: they share rows through it.")

    answerer = Answerer(model, tokenizer, generation_config, batch_size, seed)
    with tempfile.TemporaryDirectory() as temporary:
        teacher = {} if output_dir is None else answerer.fingerprint()
        folder = TrajectoryFolder(output_dir or temporary, dataset, tokenizer, answerer.config, teacher)

        if state.is_main_process:
            folder.prepare()
        state.wait_for_everyone()
        if not folder.path.is_dir():
            raise ValueError(
                f"Process {state.process_index} does not see `output_dir={str(output_dir)!r}`, which the first "
                "process has made. Choose a folder that all machines share."
            )

        prompts = list(folder.prompts(state.process_index, state.num_processes))
        with contextlib.closing(answerer.rows(prompts, raise_errors=False)) as answers:
            # In the first process, $TQDM_DISABLE decides.
            silent = {} if state.is_main_process else {"disable": True}
            for row, answer in tqdm(answers, "Trajectories", len(prompts), **silent):
                folder.add(row, as_columns(answer))

        # A collective operation would time out.
        while folder.missing():
            time.sleep(0.5)
        return folder.read()


def filter_trajectories(
    dataset: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    reward_funcs: RewardFunction | list[RewardFunction],
    min_reward: float = 1.0,
    thought_markers: list[str] | None = None,
) -> "Dataset":
    r"""
    Returns the trajectories with a reward of at least `min_reward` from every reward function, and logs their number.

    Args:
        dataset (`datasets.Dataset`):
            The dataset that [`generate_trajectories`] returned.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Decodes `completion_ids`.
        reward_funcs (`Callable` or `list[Callable]`):
            Functions with TRL's signature: called with `prompts`, `completions`, `completion_ids` and all other
            columns as keyword arguments, they return one reward per row, or `None` for rows that they do not apply
            to. For instance [`numeric_answer_reward`] or `trl.rewards.accuracy_reward`. Completions are texts if the
            prompts are, else lists with one assistant message.
        min_reward (`float`, *optional*, defaults to 1.0):
            The lowest reward of kept rows. Rows for which all functions return `None` are dropped.
        thought_markers (`list[str]`, *optional*):
            What a thought, which the functions do not see, begins and ends with. By default as in the chat template.

    Returns:
        `datasets.Dataset`: the kept rows, unchanged.

    Raises:
        TypeError: if `dataset` is a stream or has several splits.
        ValueError: if no row is left, or `dataset` has no `completion_ids` or lacks a column of a reward function.
    """
    check_is_dataset(dataset)
    if "completion_ids" not in dataset.column_names:
        raise ValueError(
            f"`dataset` must have the column `completion_ids`, got {dataset.column_names}. "
            "Make it with `generate_trajectories`."
        )

    markers = ThoughtMarkers.of(tokenizer, thought_markers, common_chat_template_kwargs(dataset))
    rewards = score_completions(dataset, tokenizer, reward_funcs, markers)
    kept = [row for row, reward in enumerate(rewards) if reward is not None and reward >= min_reward]

    logger.info(f"Kept {len(kept)} of {len(dataset)} trajectories, dropped {len(dataset) - len(kept)}.")
    if not kept:
        first = decode_without(tokenizer, dataset[0]["completion_ids"], hidden_tokens(tokenizer, markers))
        raise ValueError(
            f"None of {len(dataset)} trajectories has a reward of at least `min_reward={min_reward}`. The first "
            f"completion is {first[:200]!r}. Check that its answer has the form that the reward function reads."
        )
    return dataset.select(kept)


def as_columns(answer: DecodedRow) -> dict[str, Any] | None:
    """Returns the columns of an answer as lists, or `None` if its logits were NaN."""
    if answer.error is not None:
        return None

    # With `stop_at_eos=False`, there are tokens after the first EOS.
    return {
        "completion_ids": answer.tokens[: answer.num_tokens].tolist(),
        "commit_step": answer.commit_step[: answer.num_tokens].tolist(),
        "nfe": answer.nfe,
    }
