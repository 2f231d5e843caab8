# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy and cost of a decoding recipe on a dataset of prompts."""

import time
from typing import TYPE_CHECKING

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation.configuration import DiffusionGenerationConfig
from ..training.prompts import length_sorted_batches, tokenize_prompts
from ..training.rewards import RewardFunction, score_completions


if TYPE_CHECKING:
    from datasets import Dataset


def evaluate_decoding(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    reward_funcs: RewardFunction | list[RewardFunction],
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 16,
    description: str = "Evaluation",
) -> dict[str, float]:
    r"""
    Decodes the prompts of a dataset and measures how good the answers are and what they cost.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            A model with [`~DiffusionGenerationMixin.generate`], with or without an adapter. Used in evaluation mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        dataset (`datasets.Dataset`):
            Prompts as for [`generate_trajectories`], and the columns that the reward functions read.
        reward_funcs (`Callable` or `list[Callable]`):
            An answer is right if every function gives it 1 or more. See [`filter_trajectories`].
        generation_config ([`DiffusionGenerationConfig`], *optional*):
            The recipe. By default the model's own.
        batch_size (`int`, *optional*, defaults to 16):
            Prompts decoded together; changes the latency only.
        description (`str`, *optional*):
            Title of the progress bar.

    Returns:
        `dict[str, float]`:

        - `accuracy`: fraction of right answers.
        - `nfe`: mean number of forward passes of an answer.
        - `tokens_per_forward`: mean over answers of tokens, without padding, over passes.
        - `latency_s`: seconds of wall-clock time in `generate`, over the number of prompts.
        - `num_prompts`: the number of prompts.
    """
    from datasets import Dataset, concatenate_datasets
    from tqdm.auto import tqdm

    prompt_ids = tokenize_prompts(dataset, tokenizer)
    completion_ids: list[list[int]] = [[]] * len(prompt_ids)
    nfe, tokens_per_forward, seconds = [], [], 0.0
    was_training = model.training
    model.eval()
    with tqdm(total=len(prompt_ids), desc=description) as progress:
        for rows in length_sorted_batches(range(len(prompt_ids)), prompt_ids, batch_size):
            prompts = tokenizer.pad(
                {"input_ids": [prompt_ids[row] for row in rows]}, padding_side="left", return_tensors="pt"
            ).to(model.device)
            start = time.perf_counter()
            out = model.generate(
                **prompts, generation_config=generation_config, tokenizer=tokenizer, return_dict_in_generate=True
            )
            # Reading the result waits for the device.
            new_ids = out.sequences[:, prompts["input_ids"].shape[1] :].tolist()
            seconds += time.perf_counter() - start
            for row, ids in zip(rows, new_ids, strict=True):
                completion_ids[row] = ids
            nfe += out.nfe.tolist()
            tokens_per_forward += out.tokens_per_forward.tolist()
            progress.update(len(rows))
    model.train(was_training)
    answers = concatenate_datasets([dataset, Dataset.from_dict({"completion_ids": completion_ids})], axis=1)
    rewards = score_completions(answers, tokenizer, reward_funcs)
    return {
        "accuracy": sum(reward is not None and reward >= 1 for reward in rewards) / len(rewards),
        "nfe": sum(nfe) / len(nfe),
        "tokens_per_forward": sum(tokens_per_forward) / len(nfe),
        "latency_s": seconds / len(nfe),
        "num_prompts": len(nfe),
    }
