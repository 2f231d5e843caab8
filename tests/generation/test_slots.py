# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`generate_many`: each prompt as if decoded alone, in order, whatever happens to the others."""

import itertools
import time
from contextlib import contextmanager

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from hf_dparallel.generation.cache import CanvasLayer
from hf_dparallel.generation.canvas import Canvas
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.hooks.base import DecodingHook
from hf_dparallel.generation.slots import SlotDecoder

from ..helpers import assert_same_row, make_a2d, make_dream, make_fast_dllm, make_llada, make_nemotron, make_sdar


SETTINGS = {"max_new_tokens": 16, "block_length": 4, "entropy_threshold": 1.0, "pad_token_id": 0}


def test_a_row_is_timed_from_its_slot_to_its_end(tiny_llada):
    start = time.perf_counter()
    first, second, third = tiny_llada.generate_many([[2, 3], [4, 5], [6, 7]], batch_size=2, **SETTINGS)
    seconds = time.perf_counter() - start
    assert min(first.seconds, second.seconds, third.seconds) > 0
    # The third takes a slot when one of the others is done.
    assert min(first.seconds, second.seconds) + third.seconds <= seconds


def test_slots_are_refilled_at_once_and_prompts_read_as_needed(tiny_llada):
    eos = tiny_llada.generate(torch.tensor([[2, 3]]), **SETTINGS)[0, 2].item()
    read = []
    endless = (read.append(n) or [2 + n % 60, 3] for n in itertools.count())
    batches = []
    tiny_llada.model.layers[0].register_forward_hook(lambda module, args, output: batches.append(len(output)))
    rows = tiny_llada.generate_many(endless, batch_size=3, **(SETTINGS | {"eos_token_id": eos}))
    taken = list(itertools.islice(rows, 40))
    assert len({row.nfe for row in taken}) > 1
    assert set(batches) == {3}
    # What was read is returned, waits for an earlier row, or is being decoded.
    assert len(read) == 40 + len(rows.finished) + len(rows._decoder)


def test_as_completed_waits_for_no_earlier_prompt(tiny_llada):
    eos = tiny_llada.generate(torch.tensor([[2, 3]]), **SETTINGS)[0, 2].item()
    prompts = [[n, 3] for n in range(2, 40)]
    rows = tiny_llada.generate_many(prompts, batch_size=4, **(SETTINGS | {"eos_token_id": eos}))
    passes = []
    tiny_llada.lm_head.register_forward_hook(lambda module, args, output: passes.append(len(output)))
    indices = []
    for row in rows.as_completed():
        indices.append(row.index)
        # Those that begin with the first pass come right after their last.
        assert row.index >= 4 or row.nfe == len(passes)
    assert sorted(indices) == list(range(len(prompts))) and indices != sorted(indices)


def test_as_completed_goes_on_after_a_failing_prompt(tiny_llada):
    rows = tiny_llada.generate_many([[99], [2, 3], "abc", [4], []], batch_size=1, **SETTINGS)
    indices, failures = [], []
    for _ in range(4):
        try:
            for row in rows.as_completed():
                indices.append(row.index)
        except ValueError as error:
            failures.append(str(error)[:8])
    assert indices == [1, 3] and failures == ["Prompt 0", "Prompt 2", "Prompt 4"]


def test_an_interrupted_reading_of_prompts_loses_none_that_were_read(tiny_llada):
    def read():
        yield [2, 3]
        yield [4, 5, 6]
        raise KeyboardInterrupt

    rows = tiny_llada.generate_many(read(), batch_size=3, **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert [row.index for row in rows] == [0, 1]


def test_a_failing_prompt_loses_no_other(tiny_llada):
    prompts = [[2, 3], [99], [4], [], "abc", [5], [1.5], torch.tensor([1j])]
    rows = tiny_llada.generate_many(prompts, batch_size=4, **SETTINGS)
    assert next(rows).index == 0
    with pytest.raises(ValueError, match=r"Prompt 1: `input_ids\[0, 0\]` is 99"):
        next(rows)
    assert next(rows).index == 2
    with pytest.raises(ValueError, match=r"Prompt 3: `input_ids` must be .* at least one token"):
        next(rows)
    with pytest.raises(ValueError, match="Prompt 4: .* got 'abc'"):
        next(rows)
    assert next(rows).index == 5
    for number in (6, 7):
        with pytest.raises(ValueError, match=f"Prompt {number}: `input_ids` must be token ids"):
            next(rows)
    with pytest.raises(StopIteration):
        next(rows)


def test_nan_in_one_row_loses_no_other():
    model = make_llada()

    def spoil(module, args, output):
        # Only prompt 1 has token 5.
        output[torch.tensor([5 in ids for ids in seen[-1].tolist()])] = torch.nan
        return output

    seen = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    model.lm_head.register_forward_hook(spoil)
    rows = model.generate_many([[2, 3], [4, 5], [6]], **(SETTINGS | {"stop_at_eos": False}))
    assert next(rows).index == 0
    with pytest.raises(FloatingPointError, match=r"NaN at step 0 of row 1"):
        next(rows)
    assert next(rows).index == 2


def test_an_interruption_keeps_what_is_finished(tiny_llada):
    eos = tiny_llada.generate(torch.tensor([[4, 3]]), **SETTINGS)[0, 2].item()
    kwargs = SETTINGS | {"eos_token_id": eos, "entropy_threshold": 0.0}
    alone = {n: tiny_llada.generate(torch.tensor([[n, 3]]), **kwargs)[0, 2:].tolist() for n in range(2, 20)}

    def interrupt(module, args, output):
        if rows.finished:
            raise KeyboardInterrupt

    tiny_llada.lm_head.register_forward_hook(interrupt)
    rows = tiny_llada.generate_many([[n, 3] for n in range(2, 20)], batch_size=6, **kwargs)
    taken = []
    with pytest.raises(KeyboardInterrupt):
        for row in rows:
            taken.append(row)
    kept = [*taken, *rows.finished.values()]
    assert rows.finished and len(kept) > len(taken)
    for row in kept:
        assert row.tokens.tolist() == alone[row.index + 2]


CERTAIN = {"max_new_tokens": 10, "confidence_threshold": 0.3, "stop_at_eos": False, "pad_token_id": 0}
EXACT = {"block_length": 4, "causal_past": True, "shift_logits": True}
# What computes something in each pass, the last one after the scores of the model.
PLACES = ["", "model.layers.1", "lm_head", "processor"]


class Processor(torch.nn.Module):
    def forward(self, input_ids, scores):
        return scores


class NeverStops(torch.nn.Module):
    def forward(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@contextmanager
def interrupted(module, at):
    """Interrupts a module once, as it is called for the time `at`. Yields when it was."""
    calls, times = itertools.count(1), []

    def interrupt(module, args):
        if next(calls) == at:
            times.append(at)
            raise KeyboardInterrupt

    handle = module.register_forward_pre_hook(interrupt)
    yield times
    handle.remove()


def read_through_interruptions(rows):
    read = []
    while True:
        try:
            read.append(next(rows))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            return read


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_llada, {"block_length": 4}),
        (make_llada, {"cache_implementation": "prefix", "block_length": 4}),
        (make_dream, {"cache_implementation": "dual", "block_length": 7, "cache_refresh_interval": 3}),
        (make_llada, {"cache_implementation": "dual", "block_length": 7, "output_certainty": True}),
        (make_sdar, {}),
        (make_fast_dllm, {"temperature": 1.0}),
        (make_nemotron, {}),
        (make_a2d, {"exact": True, "temperature": 1.0, "confidence_threshold": 0.01}),
        (make_a2d, {"exact": False, "repetition_penalty": 1.2}),
    ],
)
def test_an_interrupted_pass_is_run_again(make, settings, place):
    model = make(**(EXACT if "exact" in settings else {})).double()
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7))]
    processor = Processor()
    kwargs = {"batch_size": 2, "generator_for": lambda number: torch.Generator().manual_seed(number)}
    kwargs |= CERTAIN | {"return_dict_in_generate": True, "logits_processor": [processor]} | settings
    expected = list(model.generate_many(prompts, **kwargs))
    for at in (1, 2, 4):
        with interrupted(processor if place == "processor" else model.get_submodule(place), at) as times:
            rows = read_through_interruptions(model.generate_many(prompts, **kwargs))
        for row, other in zip(rows, expected, strict=True):
            assert_same_row(row, other, (at, row.index))
            if row.entropies is not None:
                torch.testing.assert_close(row.entropies, other.entropies, equal_nan=True)
        assert times or at > 1


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_llada, {"cache_implementation": "dual", "output_certainty": True}),
        (make_sdar, {"temperature": 1.0}),
        (make_a2d, {"exact": True, "temperature": 1.0, "confidence_threshold": 0.01}),
    ],
)
def test_an_interruption_that_waits_for_the_device_loses_no_pass(monkeypatch, make, settings):
    model = make(**(EXACT if "exact" in settings else {})).double()
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7))]
    kwargs = {"batch_size": 2, "generator_for": lambda number: torch.Generator().manual_seed(number)}
    kwargs |= CERTAIN | {"return_dict_in_generate": True} | settings
    expected = list(model.generate_many(prompts, **kwargs))
    read_status = Canvas.read_status

    def interrupt(canvas):
        # Not where rows enter: all work of the device has been waited for then.
        if len(canvas.status) == len(canvas) and next(calls) == at:
            raise KeyboardInterrupt
        read_status(canvas)

    monkeypatch.setattr(Canvas, "read_status", interrupt)
    for at in range(1, 8):
        calls = itertools.count(1)
        rows = read_through_interruptions(model.generate_many(prompts, **kwargs))
        for row, other in zip(rows, expected, strict=True):
            assert torch.equal(row.tokens, other.tokens), (at, row.index)
            if row.entropies is not None:
                torch.testing.assert_close(row.entropies, other.entropies, equal_nan=True)


def test_a_pass_that_is_done_when_it_is_interrupted_has_drawn():
    model, criterion = make_a2d(**EXACT).double(), NeverStops()
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7))]
    kwargs = CERTAIN | {"batch_size": 2, "exact": True, "temperature": 1.0, "stopping_criteria": [criterion]}
    kwargs["generator_for"] = lambda number: torch.Generator().manual_seed(number)
    expected = list(model.generate_many(prompts, **kwargs))
    for at in (1, 4, 9):
        with interrupted(criterion, at) as times:
            rows = read_through_interruptions(model.generate_many(prompts, **kwargs))
        assert times
        for row, other in zip(rows, expected, strict=True):
            # How many tokens are drafted, and so the passes, depends on what was decoded before.
            assert torch.equal(row.tokens, other.tokens), (at, row.index)


@pytest.mark.parametrize("at", range(1, 7))
def test_an_interrupted_change_of_rows_is_made_again(monkeypatch, at):
    model, resize, calls = make_sdar().double(), CanvasLayer.resize, itertools.count(1)
    prompts = [[2 + (7 * row + k) % 60 for k in range(length)] for row, length in enumerate((5, 9, 3, 7, 12, 4))]
    expected = list(model.generate_many(prompts, batch_size=2, **CERTAIN))

    def interrupt(*args):
        if next(calls) == at:
            raise KeyboardInterrupt
        resize(*args)

    monkeypatch.setattr(CanvasLayer, "resize", interrupt)
    rows = read_through_interruptions(model.generate_many(prompts, batch_size=2, **CERTAIN))
    for row, other in zip(rows, expected, strict=True):
        assert_same_row(row, other, (at, row.index))


class GivesFirstAnswer(DecodingHook):
    def enter(self, row_ids):
        self.canvas.begin(0, [9] * 8)


def test_a_row_that_enters_finished_is_not_lost_when_a_pass_is_interrupted(tiny_llada):
    config = resolve(tiny_llada, max_new_tokens=8, block_length=4, entropy_threshold=1.0, pad_token_id=0)
    decoder = tiny_llada.make_decoder(config, [GivesFirstAnswer()])
    rows = SlotDecoder(decoder, [[2, 3], [4, 5, 6]], 2, lambda prompt: prompt[0])
    with interrupted(tiny_llada, 1) as times:
        read = read_through_interruptions(rows)
    assert times and [row.index for row in read] == [0, 1]


def test_tokens_are_checked_by_a_criterion_that_was_interrupted(tiny_llada):
    class Stops(StoppingCriteria):
        num_calls = 0

        def __call__(self, input_ids, scores, answer_start=0, **kwargs):
            self.num_calls += 1
            if self.num_calls == interrupted_call:
                raise KeyboardInterrupt
            return torch.full((len(input_ids),), input_ids.shape[1] - answer_start == 6)

    # Read by the criterion.
    for interrupted_call in range(1, 7):  # noqa: B007
        kwargs = SETTINGS | {"stop_at_eos": False, "stopping_criteria": StoppingCriteriaList([Stops()])}
        (row,) = read_through_interruptions(tiny_llada.generate_many([[2, 3]], **kwargs))
        assert row.num_tokens == 6
