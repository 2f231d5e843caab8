# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How many tokens are drafted: as many as pay, whatever that is, with the same answers."""

import gc
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
import torch

from hf_dparallel.exact import draft_length
from hf_dparallel.exact.draft_length import DraftLength

from .helpers import EOS, EVERYTHING, decode, make_model, make_ragged, one_at_a_time


# Of passes with masks: seconds before the first token, and of each. Then of passes without, by rows. As on an EPYC.
MASKS = (0.1, 0.0065)
PLAIN = {1: 0.07, 2: 0.08, 4: 0.1, 8: 0.14, 16: 0.2}
FREE = (1.0, 0.0)


@pytest.fixture(autouse=True)
def _every_draft_pays():
    """Replaces the fixture of all other tests: here passes are timed."""


@pytest.fixture
def all_masks(monkeypatch):
    monkeypatch.setattr(DraftLength, "choose", lambda self, num_rows, most: min(most, self.longest))


def timed_by(seconds, longest=15) -> DraftLength:
    model = torch.nn.Identity()
    model.device = torch.device("cpu")
    length = DraftLength(longest, model)
    length._seconds = seconds
    return length


def make_length(seconds=MASKS, plain=PLAIN, longest=15) -> DraftLength:
    length = timed_by(seconds, longest)
    for rows, each in plain.items():
        for _ in range(2):
            length.note_pass(rows, rows, False, each)
    return length


def observed(length: DraftLength, proposed: int, accepted: int, passes: int = 30, num_masks: int = 15) -> DraftLength:
    for _ in range(passes):
        length.note_drafts(num_masks, [proposed], [accepted])
    return length


def chosen(length: DraftLength, num_rows: int = 1, most: int = 99) -> int:
    """Where the number of drafts has grown to."""
    for _ in range(4):
        choice = length.choose(num_rows, most)
    return choice


def test_where_tokens_cost_nothing_all_are_drafted():
    plain = {1: 1.0, 64: 1.0}
    assert chosen(make_length(FREE, plain)) == chosen(make_length(FREE, plain), 64) == 15
    # Three of the four drafts of a pass.
    assert chosen(observed(make_length(FREE, plain), 4, 3), 64) in range(3, 16)
    # Not more than an answer has room for.
    assert chosen(make_length(FREE, plain), most=2) == 2 and chosen(make_length(FREE, plain), most=0) == 0


def test_the_number_of_drafts_grows():
    length = make_length(FREE, {1: 1.0})
    assert [length.choose(1, 99) for _ in range(4)] == [3, 9, 15, 15]


def test_what_passes_take_decides():
    lengths = {rows: chosen(observed(make_length(), 4, 3), rows) for rows in PLAIN}
    assert lengths[1] == 3 and sorted(lengths.values(), reverse=True) == list(lengths.values())
    lengths = {rows: chosen(observed(make_length(), 4, 1), rows) for rows in PLAIN}
    assert lengths[1] == 1 and lengths[16] == 0
    assert chosen(observed(make_length(), 15, 15)) == 15
    assert all(chosen(observed(make_length((10.0, 1.0)), 15, 15), rows) == 0 for rows in PLAIN)


def test_passes_are_timed_as_they_run():
    length = observed(make_length(), 15, 12)
    assert chosen(length) > 0
    for _ in range(5):
        length.note_pass(1, 16, True, 1.0)
    assert chosen(length) == 0
    # One pass that is slow by chance changes nothing.
    length = observed(make_length(), 15, 12)
    length.note_pass(1, 16, True, 9.0)
    length.note_pass(1, 1, False, 9.0)
    assert chosen(length) > 0


def test_numbers_of_rows_are_timed_without_drafts_first_and_again():
    length = timed_by(FREE)
    assert length.choose(3, 99) == 0
    # It verifies what was drafted before.
    length.note_pass(3, 9, False, 0.1)
    length.note_pass(3, 3, False, 1.0)
    assert length.choose(3, 99) == 0
    length.note_pass(3, 3, False, 1.0)
    assert length.choose(3, 99) > 0 and length.choose(2, 99) == 0
    for _ in range(99):
        length.note_pass(3, 9, True, 1.0)
    assert length.choose(3, 99) > 0
    length.note_pass(3, 9, True, 1.0)
    assert length.choose(3, 99) == 0
    length.note_pass(3, 3, False, 1.0)
    assert length.choose(3, 99) > 0


def test_rejected_drafts_end_and_few_are_tried_again():
    length = observed(make_length(), 4, 0, passes=1)
    tried = []
    for _ in range(1000):
        tried.append(length.choose(1, 99))
        length.note_drafts(tried[-1], [min(tried[-1], 4)], [0])
        length.note_pass(1, 1, False, PLAIN[1])
    assert not any(tried[:30]) and 1 <= sum(map(bool, tried)) <= 20 and max(tried) <= 3


def test_threads_share_what_is_found_out():
    length = make_length()

    def work(number: int) -> None:
        for step in range(300):
            masks = length.choose(1 + number, 99)
            length.note_pass(1 + number, 4 + step % 9, masks > 0, 0.1)
            length.note_drafts(masks, [masks], [masks])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_do_not_depend_on_it(monkeypatch, temperature):
    rng = random.Random(0)
    monkeypatch.setattr(DraftLength, "choose", lambda self, *given: rng.randrange(self.longest + 1))
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
    monkeypatch.setattr(draft_length, "measure_passes", lambda *given: (1e9, 1e9))
    out, answers = decode(make_model(), make_ragged(4))
    assert out.nfe.tolist() == list(map(len, answers))
    assert not out.drafts_proposed.any()


def test_a_machine_is_measured_once_and_what_was_found_stays():
    model, other = make_model(adapter=False), make_model(adapter=False)
    first = draft_length.draft_length_of(model, 4)
    assert draft_length.draft_length_of(model, 4) is first
    assert draft_length.draft_length_of(model, 5) is not first is not draft_length.draft_length_of(other, 4)
    known = ref(model)
    del model, first
    gc.collect()
    assert known() is None
    model = other
    of_pass, of_token = draft_length.measure_passes(model, time.perf_counter)
    assert 0 < of_pass + of_token < math.inf and of_token >= 0


def test_passes_are_timed_without_prompts(monkeypatch, all_masks):
    noted = []
    monkeypatch.setattr(DraftLength, "note_pass", lambda self, *given: noted.append(given))
    prompts = make_ragged(5, seed=2)
    rows = list(make_model().generate_many(prompts, batch_size=2, max_new_tokens=20, confidence_threshold=EVERYTHING))
    # Each prompt is computed once, in a pass of its own or with the rows that go on.
    assert 0 < len(noted) < sum(row.nfe for row in rows)
    for num_rows, num_tokens, has_masks, seconds in noted:
        # Of a row: the last token, at most four drafts, and at most four masks.
        assert num_rows <= num_tokens <= 9 * num_rows and num_rows in (1, 2) and seconds > 0
        assert has_masks or num_tokens <= 5 * num_rows
    assert len({num_tokens for _, num_tokens, _, _ in noted}) > 1


def test_the_output_counts_drafts_by_place(all_masks):
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
