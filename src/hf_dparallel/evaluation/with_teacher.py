# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What training has achieved: the student beside its teacher, on rows that it was not trained on."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import datasets
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.rewards import REFERENCE_COLUMNS, RewardFunction, get_reward, score_completions
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..inspection.certainty import certainty_of
from .decoding import evaluate_answers
from .rows import make_rows


def compare_with_teacher(
    model: PreTrainedModel | PeftModel,
    load_teacher: Callable[[], PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    recipe: DiffusionGenerationConfig,
    rows: datasets.Dataset,
    **options: Any,
) -> tuple[str, list[dict[str, Any]], dict[str, torch.FloatTensor]]:
    """Decodes rows, which have `prompt_ids` and the teacher's `completion_ids`, with both.

    Returns what makes an answer right, the rows of a table, and by title the certainty of both for
    [`plot_confidence_maps`]. `options` are arguments of [`Answerer`].
    """
    config = Answerer(model, tokenizer, recipe).config
    rule_of_answers, reward_function = judge(rows, tokenizer)
    rows, prompt_ids = rows.rename_column("completion_ids", "teacher_ids"), rows["prompt_ids"][:]
    measured, certainty = {}, {}

    def measure(model: PreTrainedModel, name: str, *recipes: tuple[str, DiffusionGenerationConfig]) -> None:
        for method, recipe in recipes:
            answerer = Answerer(model, tokenizer, recipe, **options)
            measured[method] = evaluate_answers(answerer, rows, reward_function, method, prompt_ids).metrics()
        title = f"{name}: {measured[method]['nfe']:.1f} passes, accuracy {measured[method]['accuracy']:.0%}"
        certainty[title] = certainty_of(answerer, prompt_ids)

    rule = str(config.commit_rule())
    rule = f"{rule} {getattr(config, rule)}"
    is_adapted = isinstance(model, PeftModel)
    with model.disable_adapter() if is_adapted else nullcontext():
        teacher = model if is_adapted else load_teacher().to(model.device)
        original = [("Teacher, one token per pass", config.one_token_per_pass())] if teacher.noise == "mask" else []
        measure(teacher, "Teacher", *original, (f"Teacher, {rule}", recipe))
    measure(model, "Student", (f"Student, {rule}", recipe))
    return rule_of_answers, make_rows(measured), certainty


def judge(rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[str, RewardFunction]:
    """Returns what makes an answer right: the reward that finds the teacher's right, or else that it is the same."""
    for name in [name for name, column in REFERENCE_COLUMNS.items() if column in rows.column_names]:
        with suppress(ValueError, ImportError):
            reward_function = get_reward(name, rows)
            if any(score_completions(rows, tokenizer, reward_function)):
                return f"An answer is right if the reward '{name}' says so.", reward_function

    # A chat template may end an answer with a token that the teacher does not write.
    def agreement(completion_ids: list[list[int]], teacher_ids: list[list[int]], **kwargs) -> list[float | None]:
        texts = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (completion_ids, teacher_ids))
        return [float(given.strip() == expected.strip()) for given, expected in zip(*texts, strict=True)]

    return "An answer is right if it is the one in the data, word for word.", agreement
