# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Accuracy and cost of a decoding recipe on a dataset of prompts."""

import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.prompts import check_new_columns, tokenize_prompts
from ..data.rewards import RewardFunction, check_reward_columns, score_completions
from ..data.thoughts import markers_of
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..generation.output import DecodedRow
from .cost import DecodingCost, mean_cost


if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Evaluation:
    """What [`evaluate_answers`] found out about each prompt, in the order of the dataset."""

    is_correct: list[bool]
    costs: list[DecodingCost]
    # Wall-clock time of the decoding of all prompts.
    seconds: float
    # In exact decoding, the part of the drafts at each place that was accepted, up to the last place with any.
    acceptance: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Returns the means; see [`evaluate_decoding`]."""
        cost = mean_cost(self.costs, self.seconds)
        return {"accuracy": fmean(self.is_correct), **cost, "num_prompts": len(self.costs)}


def evaluate_decoding(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: "Dataset",
    reward_funcs: RewardFunction | list[RewardFunction],
    generation_config: DiffusionGenerationConfig | None = None,
    batch_size: int = 16,
    seed: int = 0,
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
            Prompts decoded together; changes the latency only (up to the rounding of sums in batches).
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws with `temperature > 0`; each row has its own, whatever the batch.

    Returns:
        `dict[str, float]`: `accuracy`, the fraction of right answers; `nfe`, `tokens_per_forward`, `latency_s` and all
        else that [`mean_cost`] returns; `num_prompts`.

    Raises:
        ValueError: if a prompt cannot be decoded, or the columns are not those that the reward functions need.
    """
    answerer = Answerer(model, tokenizer, generation_config, batch_size, seed)
    return evaluate_answers(answerer, dataset, reward_funcs).metrics()


def evaluate_answers(
    answerer: Answerer,
    dataset: "Dataset",
    reward_funcs: RewardFunction | list[RewardFunction],
    description: str = "Evaluation",
) -> Evaluation:
    """Measures prompt by prompt what [`evaluate_decoding`] averages."""
    check_new_columns(dataset, ["completion_ids"])
    check_reward_columns(reward_funcs, dataset.column_names)

    config = answerer.config
    prompt_ids = tokenize_prompts(dataset, answerer.tokenizer, config.mask_token_id, config.chat_template_kwargs)
    # Prompts of similar length next to one another need little padding.
    prompts = sorted(enumerate(prompt_ids), key=lambda prompt: len(prompt[1]))

    start = time.perf_counter()
    answers = dict(tqdm(answerer.rows(prompts), description, len(prompts)))
    seconds = time.perf_counter() - start

    completion_ids = []
    costs = []
    for row in range(len(prompts)):
        answer = answers[row]
        ids = answer.tokens[: answer.num_tokens].tolist()
        completion_ids.append(ids)
        costs.append(DecodingCost.of_tokens(ids, answer.nfe, config.eos_token_ids))

    answered = dataset.add_column("completion_ids", completion_ids)
    rewards = score_completions(answered, answerer.tokenizer, reward_funcs, markers_of(answerer))
    is_correct = [reward is not None and reward >= 1 for reward in rewards]
    drafting = [row for row in answers.values() if row.drafts_proposed is not None]
    return Evaluation(is_correct=is_correct, costs=costs, seconds=seconds, acceptance=_acceptance(drafting))


def _acceptance(rows: list[DecodedRow]) -> list[float]:
    """Returns which part of the drafts at each place was accepted, up to the last place that has any."""
    if not rows:
        return []
    proposed = torch.stack([row.drafts_proposed for row in rows]).sum(dim=0)
    accepted = torch.stack([row.drafts_accepted for row in rows]).sum(dim=0)
    is_any = proposed > 0
    return (accepted[is_any] / proposed[is_any]).tolist()
