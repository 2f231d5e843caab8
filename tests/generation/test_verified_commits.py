# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Verified commits (WINO, https://huggingface.co/papers/2507.18578) against recorded runs of the published code and
against a naive loop."""

import itertools
import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, CompileConfig

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.generation import commit_rules
from hf_dparallel.generation.commit_rules import commit_by_count, commit_rule
from hf_dparallel.generation.settings import SETTINGS

from ..helpers import (
    MASK,
    RemoteCodeConfig,
    RemoteCodeModel,
    exact_model,
    make_dream,
    make_llada,
)


# A decode without end would wait for a long time.
pytestmark = pytest.mark.timeout(120)

MODELS = ("llada", "llada_gqa")
# Thresholds and block lengths of the runs that are looked at each time.
SAMPLE = ((0.1, 16),)


@pytest.fixture
def capped_rule():
    """The commit rule of the published code: a confidence threshold with at most so many tokens in a pass."""
    tables = (SETTINGS, commit_rules._RULES)
    before = [dict(table) for table in tables]

    @commit_rule("capped_confidence", float, help="A threshold.", noun="a probability", maximum=1)
    def commit_capped(prediction, masked, threshold):
        confident = masked & (prediction.confidence > threshold)
        cap = (0.7 * masked.sum(dim=1)).long().clamp(min=5).clamp(max=20)
        return commit_by_count(prediction.confidence, masked, confident.sum(dim=1).clamp(min=1).minimum(cap))

    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


def recorded_runs(golden_dir):
    lines = (golden_dir / "wino" / "generation.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_recorded(golden_dir, lines):
    """Runs with equal settings are decoded in one batch."""
    batches = {}
    for line in lines:
        batches.setdefault((line["model"], *line["params"].values()), []).append(line)
    models = {name: AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model") for name in MODELS}
    for batch in batches.values():
        params = batch[0]["params"]
        rows = models[batch[0]["model"]].generate_many(
            [line["prompt_ids"] for line in batch],
            max_new_tokens=params["gen_length"],
            block_length=params["block_length"],
            capped_confidence=params["threshold"],
            revocation_threshold=params["threshold_back"],
            stop_at_eos=False,
        )
        for line, row in zip(batch, rows, strict=True):
            assert row.tokens.tolist() == line["generated_ids"]
            assert (row.nfe, row.num_revisions) == (line["nfe_forward_calls"], line["num_remasked"])


def test_recorded_runs(golden_dir, capped_rule):
    lines = recorded_runs(golden_dir)
    check_recorded(
        golden_dir, [line for line in lines if (line["params"]["threshold"], line["params"]["block_length"]) in SAMPLE]
    )


@pytest.mark.slow
def test_all_recorded_runs(golden_dir, capped_rule):
    lines = recorded_runs(golden_dir)
    assert len(lines) == 87
    check_recorded(golden_dir, lines)


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
LENGTHS = {"max_new_tokens": 20, "block_length": 8}
BOLD = LENGTHS | {"entropy_bound": 2.0, "revocation_threshold": 0.9}


def test_decoding_ends_whatever_the_model_says(monkeypatch):
    """Every pass is sure of other tokens than the pass before, and finds all that is decided impossible."""
    model, passes = make_llada(), itertools.count()

    def score(inputs, where, **kwargs):
        step = next(passes)
        torch.manual_seed(step)
        logits = torch.randn(*where.shape, 64) * (step % 3)
        logits[..., 2 + step % 5] += 4 * torch.rand(where.shape)
        return logits

    monkeypatch.setattr(model, "score", score)
    revised = 0
    for block_length, max_active_blocks, seed in itertools.product([5, 24], [1, 4], range(3)):
        (row,) = model.generate_many(
            [[2, 3 + seed]],
            max_new_tokens=24,
            block_length=block_length,
            max_active_blocks=max_active_blocks,
            confidence_threshold=0.1,
            revocation_threshold=1.0,
            stop_at_eos=False,
        )
        assert row.nfe <= 24 and (row.tokens != MASK).all()
        revised += row.num_revisions
    assert revised > 100


class Recorder:
    """A streamer that notes what it gets."""

    def __init__(self):
        self.final, self.drafts = [], []

    def put(self, value):
        self.final += value.flatten().tolist()

    def put_draft(self, value):
        self.drafts.append(self.final + value.flatten().tolist())

    def end(self):
        pass


def test_a_streamed_token_never_changes():
    model, streamer = exact_model(make_dream), Recorder()
    out = model.generate(
        torch.tensor([PROMPTS[0]]), streamer=streamer, stop_at_eos=False, return_dict_in_generate=True, **BOLD
    )
    assert out.num_revisions > 0
    assert streamer.final == out.sequences[0].tolist()
    assert all(MASK not in draft for draft in streamer.drafts)
    # Some drafted token did change.
    assert any(draft != streamer.final[: len(draft)] for draft in streamer.drafts)


def test_a_draft_goes_to_the_end_of_the_block():
    """A token that was taken back is drafted at its place, too."""
    model, streamer = exact_model(make_dream), Recorder()
    settings = {"max_new_tokens": 20, "block_length": 8, "entropy_bound": 2.0, "revocation_threshold": 0.9}
    out = model.generate(
        torch.tensor([[2, 3]]), streamer=streamer, stop_at_eos=False, return_dict_in_generate=True, **settings
    )
    assert out.num_revisions > 0
    assert {len(draft) for draft in streamer.drafts} == {2 + 8, 2 + 16, 2 + 20}


def test_certainty_is_told_of_every_mask_again():
    model = exact_model(make_dream)
    settings = BOLD | {"stop_at_eos": False, "return_dict_in_generate": True}
    out = model.generate(torch.tensor([PROMPTS[0]]), output_certainty=True, **settings)
    plain = model.generate(torch.tensor([PROMPTS[0]]), **settings)
    assert torch.equal(out.sequences, plain.sequences) and out.nfe == plain.nfe
    predicted = ~out.entropies[0].isnan()
    # A mask is predicted until it is decided; one that is taken back is predicted again, at first by the next pass.
    changes = (predicted[1:] & ~predicted[:-1]).sum()
    assert changes == out.num_revisions
    last = predicted.int().flip(0).argmax(dim=0)
    assert (len(predicted) - 1 - last).tolist() == out.commit_step[0].tolist()


def test_masks_inside_a_prompt():
    """Given tokens stay, and are no part of the copy."""
    prompt = torch.tensor([[MASK, 3, MASK, MASK, 6, MASK, 8, MASK, MASK, MASK, 12, MASK]])
    given = prompt != MASK
    for make in (make_llada, make_dream):
        model = exact_model(make)
        for cache in (None, "dual"):
            out = model.generate(
                prompt,
                max_new_tokens=0,
                block_length=5,
                entropy_bound=4.0,
                revocation_threshold=0.9,
                cache_implementation=cache,
                return_dict_in_generate=True,
            )
            assert torch.equal(out.sequences[given], prompt[given]) and not (out.sequences == MASK).any()
            assert out.nfe <= (~given).sum()


def test_the_first_token_is_verified_without_being_seen():
    """Dream predicts it at its own place; in one layer no other place has heard of it."""
    model, differences = make_dream(num_hidden_layers=1).double(), []
    score = model.score

    def compare(inputs, where, *args, **kwargs):
        of_first = [index for index in where[0].tolist() if index >= 8 and inputs["position_ids"][0, index] == 0]
        if of_first:
            changed = inputs["input_ids"].clone()
            changed[0, 0] = (changed[0, 0] + 1) % 60
            logits = [
                score(inputs | {"input_ids": ids}, torch.tensor([of_first])) for ids in (changed, inputs["input_ids"])
            ]
            differences.append((logits[0] - logits[1]).abs().max().item())
        return score(inputs, where, *args, **kwargs)

    model.score = compare
    prompt = torch.tensor([[*[MASK] * 7, 6]])
    model.generate(prompt, max_new_tokens=0, block_length=8, entropy_bound=0.1, revocation_threshold=1e-9)
    assert differences and max(differences) < 1e-9


def test_models_of_other_classes():
    foreign, own = (
        enable_diffusion_generation(RemoteCodeModel(RemoteCodeConfig()), MASK, shift_logits=True),
        make_dream(),
    )
    expected = own.generate(torch.tensor([PROMPTS[1]]), **BOLD)
    assert torch.equal(foreign.generate(torch.tensor([PROMPTS[1]]), eos_token_id=1, pad_token_id=1, **BOLD), expected)
    foreign.takes_visibility = False
    with pytest.raises(ValueError, match="`revocation_threshold=0.9` hides tokens from some places"):
        foreign.generate(torch.tensor([PROMPTS[1]]), **BOLD)


def test_a_class_that_ignores_such_masks_is_found_out():
    class Deaf(RemoteCodeModel):
        def forward(self, input_ids, attention_mask=None, position_ids=None):
            return super().forward(input_ids, None, position_ids)

    assert not enable_diffusion_generation(Deaf(RemoteCodeConfig()), MASK).takes_visibility


def test_what_does_not_go_together():
    model, prompt = make_llada(), torch.tensor([PROMPTS[0]])
    with pytest.raises(ValueError, match="`revocation_threshold=0.5` needs a commit rule with a threshold"):
        model.generate(prompt, revocation_threshold=0.5)
    with pytest.raises(ValueError, match="`revocation_threshold=0.9` does not go with `compile_config=CompileConfig"):
        model.generate(prompt, compile_config=CompileConfig(), **BOLD)
    assert torch.equal(
        model.generate(prompt, revocation_threshold=0.0, entropy_bound=2.0, **LENGTHS),
        model.generate(prompt, entropy_bound=2.0, **LENGTHS),
    )
