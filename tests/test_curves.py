# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The study of the certainty loss: problems, students, and comparisons at equal accuracy."""

import json
import sys

import certainty
import curves
import promise
import pytest
import short_problems
import torch

from hf_dparallel.training.objective import TokenTerms


def test_no_problem_is_in_two_sets_of_the_study():
    sets = [
        {row["prompt"][0]["content"] for row in short_problems.problems(split, first, 60)}
        for split in ("train", "test")
        for first in (0, 60, 120)
    ]
    assert sum(map(len, sets)) == 360 == len(set.union(*sets))


def point(model: str, threshold: float, passes: list[int], right: str, seed: int = 0) -> dict:
    settings = {"entropy_threshold": threshold} if threshold else {}
    return {
        "seed": seed,
        "model": model,
        "problems": "held out",
        "settings": settings,
        "tokens_per_forward": 40 * len(passes) / sum(passes),
        "right": right,
        "passes": " ".join(map(str, passes)),
    }


def test_passes_at_an_accuracy_lie_on_the_line_between_two_thresholds():
    line = [(4.0, 0.5), (8.0, 0.9), (16.0, 0.8)]
    assert curves.passes_at(line, 0.7) == pytest.approx(6.0)
    assert curves.passes_at(line, 0.4) == 4.0
    # A stricter threshold that is worse does not count.
    assert curves.passes_at(line, 0.9) == pytest.approx(8.0)
    assert curves.passes_at(line, 0.95) is None
    assert curves.accuracy_at(line, 6.0) == pytest.approx(0.7)


def test_students_that_differ_by_the_threshold_alone_are_equal_at_equal_accuracy():
    """A student that is bolder at each threshold, on the same curve: fewer passes, and no gain."""
    right = ["1" * 20, "1" * 18 + "00", "1" * 12 + "0" * 8]
    passes = [20, 10, 5]
    points = [point("teacher", 0, [40] * 20, "1" * 19 + "0")]
    for threshold, count, digits in zip((0.2, 0.5, 0.9), passes, right, strict=True):
        points.append(point("consistency", threshold, [count] * 20, digits))
        points.append(point("both", threshold / 2, [count] * 20, digits))

    found = curves.Curves({"points": points})
    for loss in (1, 3, 5):
        assert found.ratio("both", "consistency", loss)["ratio"] == pytest.approx(1)
    assert found.gain("both", "consistency") == pytest.approx(0)
    assert found.ratio("both", "teacher", 1)["ratio"] < 1
    assert found.ratio_intervals("both", "consistency")[-1] == pytest.approx((1, 1))


def test_the_early_tokens_of_a_block_weigh_most():
    collator = certainty.EarlyCollator(1, 0, block_length=2, max_length=8)
    row = {"prompt_ids": [5, 6], "completion_ids": [7, 8, 9], "commit_step": [3, 1, 4]}
    batch = collator([row])
    assert batch["weights"].shape == batch["labels"].shape == (2, 8)
    first, second, third = batch["weights"][0, 2:5].tolist()
    assert second == third == 1 and first == pytest.approx(1 / 3)
    # Both tokens of a block are scored, with losses of 3 and 6.
    labels = torch.tensor([[-100, -100, 7, 8, -100]])
    losses = torch.tensor([[3.0], [6.0]])
    terms = TokenTerms(losses=losses, counted=torch.ones_like(losses).bool().expand(2, 2), entropy=torch.zeros(2))
    terms = terms._replace(losses=losses.expand(2, 2))
    averaged = collator.average(terms, {"labels": labels, "weights": batch["weights"][:1, :5]})
    assert averaged.losses[0, 0].item() == pytest.approx((1 / 3 * 3 + 6) / (1 / 3 + 1))


def test_a_guess_is_not_sharpened():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    _, counted = certainty.certainty_of_the_likely(logits, torch.tensor([0, 0]))
    assert counted.tolist() == [True, False]


def test_a_student_answers_with_its_own_right_answer_in_every_second_epoch():
    collator = certainty.BoldCollator(1, 0, block_length=4, max_length=8, complementary_masking=False)
    row = {"prompt_ids": [5, 6], "completion_ids": [7, 8, 0]}
    collator.answers = {(5, 6): [9, 9, 0]}
    seen = []
    for epoch in (0, 1):
        collator.set_epoch(epoch)
        seen.append(collator.mask([collator._choose(row)]).clean[0, 2].item())
    assert sorted(seen) == [7, 9]


def test_the_study_runs_and_goes_on(tmp_path, monkeypatch):
    """All students, in two steps of two answers; what is there is not made again."""
    report = tmp_path / "report.json"
    flags = ["--num_trajectories", "4", "--num_problems", "2", "--num_steps", "2", "--train_batch_size", "2"]
    flags += ["--thresholds", "2.5", "--teacher_thresholds", "2.5", "--seeds", "0", "--output_dir", str(tmp_path)]
    argv = ["certainty.py", *flags, "--report", str(report), "--students", *certainty.STUDENTS]
    monkeypatch.setattr(sys, "argv", argv)
    certainty.main()
    written = json.loads(report.read_text())
    assert {each["model"] for each in written["points"]} == {"teacher", *certainty.STUDENTS}
    monkeypatch.setattr(certainty.Study, "_point", None)
    certainty.main()
    assert json.loads(report.read_text()) == written


def test_a_calibration_is_judged_on_all_prompts():
    points = [point("teacher", 0, [40] * 50, "1" * 50)]
    points += [point("both", 0.2, [20] * 50, "1" * 50), point("both", 0.9, [5] * 50, "1" * 40 + "0" * 10)]
    population = promise.Population(curves.Curves({"points": points}), "both", 0)
    assert population.best(0.02) == 20 and population.best(0.3) == 5
    row = promise.simulate(population, 1000, 0.02, 3)
    assert row["chosen"] == {"0.2": 3} and row["broken"] == 0
