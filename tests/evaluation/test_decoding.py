# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.decoding import evaluate_decoding

from ..conftest import make_llada
from ..training.test_trajectories import make_prompts, make_tokenizer


RECIPE = DiffusionGenerationConfig(max_new_tokens=8, block_length=4, entropy_threshold=1.0)


def is_right(text: str) -> bool:
    """An arbitrary fact about a text."""
    return sum(int(word) for word in text.split() if word.isdigit()) % 2 == 0


def reward_of_the_text(completions, **kwargs):
    return [float(is_right(text)) for text in completions]


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_figures_equal_those_of_each_row_alone(batch_size):
    model, tokenizer, prompts = make_llada().double(), make_tokenizer(), make_prompts(10)
    figures = evaluate_decoding(model, tokenizer, prompts, reward_of_the_text, RECIPE, batch_size)
    rights, nfe, tokens_per_forward = [], [], []
    for prompt in prompts["prompt"]:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = model.generate(ids, generation_config=RECIPE, return_dict_in_generate=True)
        text = tokenizer.decode(out.sequences[0, ids.shape[1] :], skip_special_tokens=True)
        rights.append(is_right(text))
        nfe.append(out.nfe.item())
        tokens_per_forward.append(out.tokens_per_forward.item())
    assert figures["accuracy"] == sum(rights) / 10 and 0 < sum(rights) < 10
    assert figures["nfe"] == sum(nfe) / 10
    assert figures["tokens_per_forward"] == pytest.approx(sum(tokens_per_forward) / 10)
    assert figures["num_prompts"] == 10 and figures["latency_s"] > 0


def test_rows_are_scored_against_their_own_reference():
    """Batches are sorted by length; the answers must come back in the order of the dataset."""
    model, tokenizer, prompts = make_llada(), make_tokenizer(), make_prompts(10)
    seen = {}

    def reward(prompts, completions, answer, **kwargs):
        seen.update(zip(prompts, zip(completions, answer, strict=True), strict=True))
        return [None] * len(prompts)

    figures = evaluate_decoding(model, tokenizer, prompts, reward, RECIPE, batch_size=4)
    assert figures["accuracy"] == 0.0
    for row in prompts:
        ids = torch.tensor([tokenizer(row["prompt"])["input_ids"]])
        new_ids = model.generate(ids, generation_config=RECIPE)[0, ids.shape[1] :]
        assert seen[row["prompt"]] == (tokenizer.decode(new_ids, skip_special_tokens=True), row["answer"])
