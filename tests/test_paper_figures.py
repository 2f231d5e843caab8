# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What benchmarks/paper_figures.py measures, against slow loops, and what its pictures show."""

import math
import sys

import paper_figures
import pytest
import torch
from datasets import Dataset
from paper_figures import (
    Reliability,
    answer_confidence_and_accuracy,
    committed_tokens,
    plot_certainty,
    plot_confidence_and_accuracy,
    plot_confidence_at_passes,
    plot_token_convergence,
    prediction_reliability,
    token_convergence,
)

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.inspection.certainty import committed_confidence

from .helpers import make_llada, make_tokenizer


PROMPTS = [[2, 3], [4, 5, 6, 7], [8], [9, 10, 11], [30, 31]]
RECIPE = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, entropy_threshold=1.0, eos_token_id=34)


@pytest.fixture(scope="module")
def out():
    return Answerer(make_llada(), make_tokenizer(), RECIPE, batch_size=2).with_(output_certainty=True).decode(PROMPTS)


def panels(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def data(line):
    return [list(map(float, values)) for values in line.get_data()]


def test_the_script_draws_the_bundled_models(monkeypatch, tmp_path):
    sizes = ["--num_problems=2", "--max_new_tokens=32"]
    monkeypatch.setattr(sys, "argv", ["paper_figures.py", "--folder", str(tmp_path / "new"), *sizes])
    paper_figures.main()
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "new").iterdir())
    names = {path.stem for path in (tmp_path / "new").iterdir()}
    assert names == {"confidence_and_accuracy", "token_convergence", "confidence_at_passes"}


def test_committed_tokens(out):
    tokens = committed_tokens(out)
    assert (tokens == -1).any(), "an answer has to end early for this test to mean something"
    for row in range(len(PROMPTS)):
        for column, step in enumerate(out.commit_step[row].tolist()):
            assert tokens[row, column] == (out.sequences[row, 4 + column] if step >= 0 else -1)


@pytest.mark.parametrize("passes", [None, [0], [1, 3]])
@pytest.mark.parametrize("with_reference", [False, True])
def test_reliability_counts_every_prediction_once(out, passes, with_reference):
    reference = None
    if with_reference:
        reference = torch.randint(-1, 62, (len(PROMPTS), 16), generator=torch.Generator().manual_seed(0))
    measured = prediction_reliability(out, reference, passes, num_bins=5)
    bins = [[] for _ in range(5)]
    for row in range(len(PROMPTS)):
        for step in range(out.candidates.shape[1]) if passes is None else passes:
            for column in range(16):
                confidence = float(out.candidate_probabilities[row, step, column, 0])
                right = committed_tokens(out)[row, column] if reference is None else reference[row, column]
                if math.isnan(confidence) or right == -1:
                    continue
                is_right = int(out.candidates[row, step, column, 0] == right)
                bins[min(int(confidence * 5), 4)].append((confidence, is_right))
    assert sum(map(len, bins)) == measured.count.sum() > 0
    for index, predictions in enumerate(bins):
        assert measured.count[index] == len(predictions)
        if predictions:
            confidence, is_right = (sum(values) / len(predictions) for values in zip(*predictions, strict=True))
            assert float(measured.confidence[index]) == pytest.approx(confidence, abs=1e-5)
            assert float(measured.accuracy[index]) == pytest.approx(is_right, abs=1e-5)
        else:
            assert measured.confidence[index].isnan() and measured.accuracy[index].isnan()


def test_reliability_of_passes_that_there_were_not(out):
    last = out.candidates.shape[1] - 1
    with pytest.raises(ValueError, match=rf"`passes` must be between 0 and {last}, the last pass .* got \[99\]"):
        prediction_reliability(out, passes=[0, 99])


@pytest.mark.parametrize("num_tokens", [1, 3, 99])
def test_convergence_of_single_tokens(out, num_tokens):
    for row in range(len(PROMPTS)):
        positions, confidences = token_convergence(out, row, num_tokens)
        decided = [column for column, step in enumerate(out.commit_step[row].tolist()) if step >= 0]
        assert positions == sorted(set(positions)) and set(positions) <= set(decided)
        assert len(positions) == min(num_tokens, len(decided)) and positions[0] == decided[0]
        assert num_tokens == 1 or positions[-1] == decided[-1]
        assert confidences.shape == (out.nfe[row], len(positions))
        for index, position in enumerate(positions):
            for step in range(int(out.nfe[row])):
                last = min(step, int(out.commit_step[row, position]))
                assert confidences[step, index] == out.confidences[row, last, position]


def test_accuracy_of_answers(out):
    tokenizer = make_tokenizer()
    texts = tokenizer.batch_decode([ids[ids >= 0] for ids in committed_tokens(out)], skip_special_tokens=True)
    answers = [text.split()[-1] if row % 2 else "-1" for row, text in enumerate(texts)]
    dataset = Dataset.from_dict({"prompt": ["?"] * len(PROMPTS), "answer": answers})
    point = answer_confidence_and_accuracy(out, tokenizer, dataset, numeric_answer_reward)
    assert point.pop("accuracy_interval") == pytest.approx([0.118, 0.769], abs=1e-3)
    assert point == {"confidence": pytest.approx(float(committed_confidence(out).mean())), "accuracy": 0.4}


def test_confidence_at_passes_counts_passes_from_1():
    certainty = {"Teacher": torch.rand(16, 5), "Student": torch.rand(16, 5)}
    figure = plot_confidence_at_passes(certainty, passes=(2, 16))
    assert [axes.get_title() for axes in panels(figure)] == ["Pass 2", "Pass 16"]
    for axes, row in zip(panels(figure), (1, 15), strict=True):
        for line, confidence in zip(axes.lines, certainty.values(), strict=True):
            assert data(line) == [[1, 2, 3, 4, 5], pytest.approx(confidence[row].tolist())]


def test_convergence_draws_a_line_for_each_token():
    confidences = torch.rand(6, 3)
    names = ["1: a", "2: $x^2$ $", "3: _\n"]
    figure = plot_token_convergence({"Teacher": (names, confidences), "Student": (names[:1], confidences[:, :1])})
    teacher, student = panels(figure)
    assert len(teacher.lines) == 3 and len(student.lines) == 1
    assert data(teacher.lines[1]) == [[1, 2, 3, 4, 5, 6], pytest.approx(confidences[:, 1].tolist())]
    shown = [text.get_text() for text in teacher.get_legend().get_texts()]
    assert shown == ["1: a", r"2: \$x^2\$ \$", r"3: _\n"]
    figure.canvas.draw()


def test_confidence_and_accuracy_leaves_empty_bins_out():
    nan = torch.nan
    measured = Reliability(torch.tensor([0.1, nan, 0.9]), torch.tensor([0.0, nan, 1.0]), torch.tensor([3, 0, 5]))
    answers = {
        "Teacher": [{"confidence": 0.9, "accuracy": 1.0, "label": "0.3"}, {"confidence": 0.5, "accuracy": 0.25}]
    }
    figure = plot_confidence_and_accuracy({"first pass": {"Teacher": measured}}, answers)
    predictions, whole = panels(figure)
    (counts,) = [axes for axes in figure.axes if axes.get_ylabel() == "Predictions"]
    assert data(counts.lines[0]) == [pytest.approx([0.1, 0.9]), [3, 5]]
    lines = predictions.collections[0].get_segments()
    assert lines[1][:, 1] == pytest.approx([0.566, 1.0], abs=1e-3)  # five of five, by Wilson
    assert [text.get_text() for text in whole.texts] == ["", "0.3"]
    assert data(predictions.lines[0]) == [pytest.approx([0.1, 0.9]), [0, 1]]
    assert data(whole.lines[0]) == [[0.5, 0.9], [25, 100]]
    assert len(panels(plot_confidence_and_accuracy({"first pass": {"Teacher": measured}}))) == 1


def test_figures_of_decodes_of_different_lengths():
    tokenizer = make_tokenizer()
    recipe = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, output_certainty=True)
    answerer = Answerer(make_llada(), tokenizer, recipe)
    decodes = {
        rule: answerer.with_(**{rule: value}).decode([[2, 3], [4]])
        for rule, value in {"denoising_steps": 2, "entropy_threshold": 1.0}.items()
    }
    figures = plot_certainty(decodes, tokenizer, {"answers": [{"confidence": 0.9, "accuracy": 1.0}]})
    assert list(figures) == ["confidence_and_accuracy", "token_convergence", "confidence_at_passes"]
    assert [len(axes.lines) for axes in panels(figures["token_convergence"])] == [8, 8]
    first = decodes["denoising_steps"].sequences[0, -16].item()
    assert panels(figures["token_convergence"])[0].lines[0].get_label() == f"1: {tokenizer.decode([first])}"
