# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Verified commits (WINO, https://huggingface.co/papers/2507.18578) against recorded runs of the published code and
against a naive loop."""

import itertools
import json
import random

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
    assert_same_row,
    exact_model,
    left_padded,
    make_dream,
    make_llada,
)
from .naive import _chosen


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


@torch.no_grad()
def naive_verified(model, prompt, max_new_tokens, block_length, back, eos_token_id=None, **rule):
    """One row, and a mask that is written entry by entry. Returns tokens, passes, revisions and commit steps."""
    mask_id, lead = model.config.mask_token_id, int(model.shift_logits)
    row, nfe, revisions = prompt + [mask_id] * max_new_tokens, 0, 0
    steps = [-1] * len(row)
    for start in range(len(prompt), len(row), block_length):
        block = range(start, min(start + block_length, len(row)))
        while any(row[i] == mask_id for i in block):
            # The copy of the block, with the token before it where predictions are one place early.
            places = list(range(start - lead, block.stop))
            ids = row + [mask_id if i in block else row[i] for i in places]
            query, key = torch.meshgrid(torch.arange(len(ids)), torch.arange(len(ids)), indexing="ij")
            place = torch.tensor([-1] * len(row) + places)
            blind = place[query] + lead == key
            visible = torch.where(
                key < len(row), (query < len(row)) | ~blind, (query >= len(row)) & (place[key] >= start)
            )
            mask = torch.zeros(len(ids), len(ids), dtype=model.dtype).masked_fill(~visible, float("-inf"))
            positions = torch.tensor([[*range(len(row)), *places]])
            probs = (
                model(torch.tensor([ids]), attention_mask=mask[None, None], position_ids=positions)
                .logits[0]
                .softmax(-1)
            )
            nfe += 1
            guesses = {}
            for i in (i for i in block if row[i] == mask_id):
                token = max((t for t in range(len(probs[i])) if t != mask_id), key=lambda t: probs[i, t].item())
                entropy = -(probs[i] * (probs[i] + 1e-300).log()).sum().item()
                unsure = probs[i, mask_id] > probs[i, token]
                guesses[i] = (token, probs[i, token].item(), float("inf") if unsure else entropy)
            verified = {i: probs[len(row) + i - places[0], row[i]].item() for i in block if row[i] != mask_id}
            chosen = _chosen(guesses, block_length, 1, 0, **rule)
            limit = sum(steps[i] == nfe - 2 for i in verified) - 1 if len(chosen) > 1 else 0
            doubtful = sorted((i for i in verified if verified[i] < back), key=verified.get)
            for i in doubtful[: max(limit, 0)]:
                row[i], steps[i], revisions = mask_id, -1, revisions + 1
            for i in chosen:
                row[i], steps[i] = guesses[i][0], nfe - 1
            new = row[len(prompt) :]
            decided = new[: new.index(mask_id)] if mask_id in new else new
            if eos_token_id in decided:
                end = decided.index(eos_token_id) + 1
                return new[:end], nfe, revisions, steps[len(prompt) :][:end]
    return row[len(prompt) :], nfe, revisions, steps[len(prompt) :]


PROMPTS = [[2, 3], [4, 5, 6, 7, 8], [9]]
LENGTHS = {"max_new_tokens": 20, "block_length": 8}
BOLD = LENGTHS | {"entropy_bound": 2.0, "revocation_threshold": 0.9}


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (make_llada, {"entropy_threshold": 1.5}),
        (make_llada, {"confidence_factor": 2.0}),
        (make_dream, {"confidence_threshold": 0.5}),
        (make_dream, {"entropy_bound": 2.0}),
    ],
)
@pytest.mark.parametrize("eos_token_id", [None, 20])
def test_rows_of_a_batch_equal_the_naive_loop(make, rule, eos_token_id):
    model = exact_model(make)
    ids, attention_mask = left_padded(PROMPTS)
    out = model.generate(
        ids,
        attention_mask=attention_mask,
        revocation_threshold=0.9,
        eos_token_id=eos_token_id,
        pad_token_id=0,
        stop_at_eos=eos_token_id is not None,
        return_dict_in_generate=True,
        **rule,
        **LENGTHS,
    )
    expected = [
        naive_verified(model, prompt, back=0.9, eos_token_id=eos_token_id, **rule, **LENGTHS) for prompt in PROMPTS
    ]
    for row, (tokens, nfe, revisions, steps) in enumerate(expected):
        assert out.sequences[row, ids.shape[1] :][: len(tokens)].tolist() == tokens
        assert out.commit_step[row].tolist() == steps + [-1] * (20 - len(steps))
        assert (out.nfe[row], out.num_revisions[row]) == (nfe, revisions)
    assert sum(out.num_revisions) > 0 or eos_token_id is not None


def decode_both_ways(model, prompts, **settings):
    """Rows decoded in two slots, and each alone."""
    together = list(model.generate_many(prompts, batch_size=2, generator_for=generator_of, **settings))
    for index, prompt in enumerate(prompts):
        (alone,) = model.generate_many([prompt], generator_for=lambda _, row=index: generator_of(row), **settings)
        yield together[index], alone


def generator_of(row):
    return torch.Generator().manual_seed(row)


def check_rows_are_independent(num_cases):
    rng, revised = random.Random(0), 0
    models = [exact_model(make_llada), exact_model(make_dream)]
    for _ in range(num_cases):
        settings = {
            "max_new_tokens": rng.choice([7, 12, 16]),
            "block_length": rng.choice([3, 4, 8]),
            "revocation_threshold": rng.choice([0.3, 0.9]),
            "cache_implementation": rng.choice([None, "prefix", "dual"]),
            "max_active_blocks": rng.choice([1, 3]),
            "temperature": rng.choice([0, 0, 0.7]),
            "eos_token_id": rng.choice([None, 20]),
            **rng.choice(
                [{"entropy_threshold": 1.5}, {"entropy_bound": 2.0}, {"kl_threshold": 3.0, "kl_confidence": 0.1}]
            ),
        }
        prompts = [[rng.randrange(2, 60) for _ in range(rng.randrange(1, 7))] for _ in range(3)]
        for row, alone in decode_both_ways(rng.choice(models), prompts, **settings):
            assert_same_row(row, alone, settings)
            assert row.nfe <= settings["max_new_tokens"]
            revised += row.num_revisions
    assert revised > num_cases


def test_rows_are_independent():
    check_rows_are_independent(5)


@pytest.mark.slow
def test_rows_are_independent_in_many_cases():
    check_rows_are_independent(200)


@pytest.mark.parametrize(
    ("make", "one_layer"), [(make_llada, {"n_layers": 1}), (make_dream, {"num_hidden_layers": 1})]
)
def test_caches_are_exact_for_a_model_of_one_layer(make, one_layer):
    """There, keys and values depend on nothing but their token, so that only what has changed needs an update."""
    model = make(**one_layer).double()
    exact = list(model.generate_many(PROMPTS, max_active_blocks=2, **BOLD))
    assert sum(row.num_revisions for row in exact) > 0
    for cache in ("prefix", "dual"):
        cached = list(
            model.generate_many(PROMPTS, batch_size=2, max_active_blocks=2, cache_implementation=cache, **BOLD)
        )
        for one, other in zip(exact, cached, strict=True):
            assert torch.equal(one.tokens, other.tokens) and torch.equal(one.commit_step, other.commit_step)
            assert (one.nfe, one.num_revisions) == (other.nfe, other.num_revisions)


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
