# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import numpy as np
import pytest

from hf_dparallel.evaluation.calibration import calibrate, parse_sweep
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation


REFERENCE = {"denoising_steps": 64}


class SimulatedDecoder:
    """Answers `num` prompts a split: each threshold has a cost, and rates of answers lost and gained."""

    def __init__(self, thresholds: dict[float, tuple[float, float, float]], num: int = 400, seed: int = 0):
        self.thresholds = thresholds
        self.num = num
        self.rng = np.random.default_rng(seed)
        self.calls = []

    def __call__(self, split, settings):
        self.calls.append((split, settings))
        reference = np.arange(self.num) % 10 != 0
        if settings == REFERENCE:
            return Evaluation(reference.tolist(), [DecodingCost(64, 64, 60)] * self.num, 1.0)
        nfe, lost, gained = self.thresholds[settings["entropy_threshold"]]
        draws = self.rng.random(self.num)
        is_correct = np.where(reference, draws > lost / 0.9, draws < gained / 0.1)
        return Evaluation(is_correct.tolist(), [DecodingCost(nfe, 64, 60)] * self.num, 1.0)


def run(decoder, **settings):
    candidates = [{"entropy_threshold": threshold} for threshold in decoder.thresholds]
    return calibrate(decoder, candidates, REFERENCE, **settings)


def test_the_fastest_that_keeps_the_accuracy():
    decoder = SimulatedDecoder({0.1: (40, 0, 0), 0.5: (20, 0.001, 0.001), 0.3: (30, 0, 0), 0.9: (10, 0.2, 0)})
    best, trials = run(decoder, max_accuracy_drop=0.02)
    assert best.settings == {"entropy_threshold": 0.5} and best.nfe == 20
    assert best.p_value["confirmation"] <= 0.1 and abs(best.accuracy_drop("confirmation")) < 0.02
    # In the order of the candidates, with the one that fails on the first half left out of the second.
    assert [trial.settings["entropy_threshold"] for trial in trials] == [0.1, 0.5, 0.3, 0.9]
    assert "confirmation" not in trials[3].p_value
    # The reference is decoded once for each half.
    assert decoder.calls.count(("calibration", REFERENCE)) == decoder.calls.count(("confirmation", REFERENCE)) == 1


def test_slower_settings_are_not_confirmed_when_faster_ones_are_as_sure():
    decoder = SimulatedDecoder({0.1: (40, 0, 0), 0.3: (30, 0, 0)})
    best, _ = run(decoder, max_accuracy_drop=0.02)
    assert best.settings == {"entropy_threshold": 0.3}
    assert ("confirmation", {"entropy_threshold": 0.1}) not in decoder.calls


def test_nothing_is_accepted_after_the_first_failure():
    class WorseLater(SimulatedDecoder):
        def __call__(self, split, settings):
            if split == "confirmation":
                self.thresholds = {0.1: (40, 0.1, 0), 0.3: (30, 0, 0)}
            return super().__call__(split, settings)

    decoder = WorseLater({0.1: (40, 0, 0), 0.3: (30, 0.008, 0)})
    best, trials = run(decoder, max_accuracy_drop=0.02)
    assert best is None and trials[0].p_value["confirmation"] > 0.1
    assert ("confirmation", {"entropy_threshold": 0.3}) not in decoder.calls


def test_the_tolerance_itself_is_tolerated():
    def evaluate(split, settings):
        is_correct = [settings == REFERENCE or index >= 25 for index in range(100)]
        return Evaluation(is_correct, [DecodingCost(20, 64, 60)] * 100, 1.0)

    best, trials = calibrate(evaluate, [{"entropy_threshold": 0.5}], REFERENCE, 0.25, confidence=0.1)
    assert best is trials[0] and best.accuracy_drop("calibration") == 0.25
    assert best.reference_accuracy == {"calibration": 1.0, "confirmation": 1.0}
    assert best.accuracy == {"calibration": 0.75, "confirmation": 0.75}


@pytest.mark.parametrize(("num", "thresholds"), [(400, {0.5: (20, 0.2, 0)}), (20, {0.5: (20, 0, 0)})], ids=str)
def test_too_large_a_drop_and_too_few_prompts_give_nothing(num, thresholds):
    decoder = SimulatedDecoder(thresholds, num)
    best, trials = run(decoder, max_accuracy_drop=0.02)
    assert best is None and len(trials) == 1


def test_the_promise_is_kept_as_often_as_promised():
    """Settings that lose more than the tolerance, in truth, are accepted in at most one of ten calibrations."""
    thresholds = {0.1: (40, 0.0, 0.0), 0.3: (30, 0.005, 0.005), 0.5: (20, 0.032, 0.01), 0.7: (15, 0.05, 0.01)}
    broken = 0
    for seed in range(30):
        best, _ = run(SimulatedDecoder(thresholds, num=200, seed=seed), max_accuracy_drop=0.02)
        broken += best is not None and best.settings["entropy_threshold"] > 0.4
    assert broken <= 5  # 30 calibrations: more than a standard deviation above three


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("confidence_threshold=0.9", "confidence_threshold", [0.9]),
        ("denoising_steps=64,32,16", "denoising_steps", [64, 32, 16]),
    ],
)
def test_values_of_a_sweep(text, name, values):
    assert parse_sweep(text) == (name, values)
    assert [type(value) for value in parse_sweep(text)[1]] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stop_at_eos=1", "must start with one of max_new_tokens, block_length, .*, and ="),
        ("entropy_treshold=1", "and ="),
        ("entropy_threshold", "must be of the form entropy_threshold=VALUE,"),
        ("entropy_threshold=a,b", "must be of the form"),
        ("entropy_threshold=0.1:1", "must be of the form"),
        ("denoising_steps=1.5", "with whole numbers"),
    ],
)
def test_bad_sweeps(text, message):
    with pytest.raises(ValueError, match=f"`sweep` .*{message}.*got '{text}'"):
        parse_sweep(text)
