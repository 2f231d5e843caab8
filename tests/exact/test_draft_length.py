# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How many tokens are drafted: as many as pay, whatever that is, with the same answers."""

import math
import random

import pytest
import torch

from hf_dparallel.exact import draft_length
from hf_dparallel.exact.draft_length import DraftLength

from .helpers import EOS, EVERYTHING, decode, make_model, make_ragged, one_at_a_time


def observed(length: DraftLength, proposed: int, accepted: int, passes: int = 30, num_masks: int = 15) -> DraftLength:
    for _ in range(passes):
        length.note(num_masks, [proposed], [accepted])
    return length


def test_where_tokens_cost_nothing_all_are_drafted():
    assert DraftLength(15, math.inf).choose(64) == 15
    assert observed(DraftLength(15, math.inf), 3, 0).choose(64) == 15


def test_what_passes_cost_decides():
    # An AMD EPYC in float32: a pass of no token costs as much as eight.
    lengths = {rows: observed(DraftLength(15, 8.0), 4, 3).choose(rows) for rows in (1, 2, 4, 8, 16)}
    assert lengths[1] == 3 and lengths[16] == 0
    assert sorted(lengths.values(), reverse=True) == list(lengths.values())
    assert observed(DraftLength(15, 8.0), 15, 15).choose(1) == 15
    assert all(observed(DraftLength(15, 1e-9), 15, 15).choose(rows) == 0 for rows in (1, 8))


def test_rejected_drafts_end_and_are_tried_again():
    length = observed(DraftLength(15, 8.0), 4, 0)
    assert length.choose(1) == 0
    tried = []
    for _ in range(1000):
        length.note(0, [0], [0])
        tried.append(length.choose(1) > 0)
    assert not any(tried[:100]) and any(tried)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_do_not_depend_on_it(monkeypatch, temperature):
    rng = random.Random(0)
    monkeypatch.setattr(DraftLength, "choose", lambda self, rows: rng.randrange(self.longest + 1))
    model, prompts = make_model(), make_ragged(12, seed=21)
    sampling = {"temperature": temperature} if temperature else {}
    answers = []
    for masks in ("some", "none"):
        rule = {"confidence_threshold": EVERYTHING} if masks == "some" else {}
        rows = model.generate_many(
            prompts,
            batch_size=3,
            max_new_tokens=24,
            generator_for=lambda row: torch.Generator().manual_seed(row),
            **rule,
            **sampling,
        )
        answers.append([row.tokens.tolist() for row in rows])
    assert answers[0] == answers[1]
    if not temperature:
        expected = [one_at_a_time(model, prompt, 24) for prompt in prompts]
        assert [row[: row.index(EOS) + 1] if EOS in row else row for row in answers[0]] == expected


def test_a_slow_machine_decodes_one_token_a_pass(monkeypatch):
    monkeypatch.setattr(draft_length, "measure_free_tokens", lambda model: 1e-9)
    out, answers = decode(make_model(), make_ragged(4))
    assert out.nfe.tolist() == list(map(len, answers))
    assert not out.drafts_proposed.any()


def test_a_machine_is_measured_once_and_what_was_found_stays(monkeypatch):
    monkeypatch.undo()
    model, other = make_model(adapter=False), make_model(adapter=False)
    first = draft_length.draft_length_of(model, 4)
    assert 0 < first.free_tokens < math.inf
    assert draft_length.draft_length_of(model, 4) is first
    assert draft_length.draft_length_of(model, 5) is not first is not draft_length.draft_length_of(other, 4)


def test_the_output_counts_drafts_by_place():
    model, prompts = make_model(), make_ragged(6)
    out, answers = decode(model, prompts, confidence_threshold=0.4)
    assert out.drafts_proposed.shape == out.drafts_accepted.shape == (6, 4)
    assert (out.drafts_accepted <= out.drafts_proposed).all() and out.drafts_accepted.any()
    assert (out.drafts_proposed.diff(dim=1) <= 0).all() and (out.drafts_accepted.diff(dim=1) <= 0).all()
    # A pass decides the drafts that are accepted, and one more token.
    lengths = torch.tensor(list(map(len, answers)))
    assert (out.nfe + out.drafts_accepted.sum(dim=1) >= lengths).all()
    whole, _ = decode(model, prompts, confidence_threshold=0.4, stop_at_eos=False)
    assert (whole.nfe + whole.drafts_accepted.sum(dim=1)).tolist() == [30] * 6
    plain, _ = decode(model, prompts, confidence_threshold=None)
    assert not plain.drafts_proposed.any()
    free, _ = decode(model, prompts, exact=False)
    assert free.drafts_proposed is None
