# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the pictures show of their data, read from the matplotlib figures."""

import pytest
import torch

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.inspection.certainty import Reliability
from hf_dparallel.inspection.plots import (
    plot_certainty,
    plot_confidence_and_accuracy,
    plot_confidence_at_passes,
    plot_confidence_maps,
    plot_token_convergence,
    plot_tradeoff,
)

from ..helpers import make_llada, make_tokenizer


POINTS = [{"tokens_per_forward": 0.8, "accuracy": 0.95}, {"tokens_per_forward": 6.4, "accuracy": 0.94}]


def panels(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def data(line):
    return [list(map(float, values)) for values in line.get_data()]


@pytest.mark.parametrize("num_maps", [0, 1, 2])
def test_every_curve_of_the_tradeoff_is_drawn(num_maps):
    curves = {f"method {index}": POINTS for index in range(7)}
    maps = {str(index): torch.rand(4, 8) for index in range(num_maps)}
    axes = panels(plot_tradeoff(curves, maps))[num_maps]
    assert [line.get_label() for line in axes.lines] == list(curves)
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 7
    assert data(axes.lines[0]) == [[0.8, 6.4], [95, 94]]


def test_labels_of_points_in_one_place_stand_one_above_the_other():
    points = [{**POINTS[0], "label": "0.5"}, {**POINTS[1], "label": "0.7"}, {**POINTS[1], "label": "0.8"}]
    (axes,) = plot_tradeoff({"Student": points}).axes
    assert [text.get_text() for text in axes.texts] == ["0.5", "0.7\n0.8"]


def test_maps_show_passes_downwards_from_1():
    maps = {"Teacher": torch.rand(16, 32), "Student": torch.rand(16, 32)}
    for axes, (method, confidence) in zip(panels(plot_confidence_maps(maps)), maps.items(), strict=True):
        assert axes.get_title() == method
        (image,) = axes.images
        assert image.get_array().tolist() == confidence.tolist()
        assert image.get_clim() == (0, 1) and tuple(image.get_extent()) == (0.5, 32.5, 16.5, 0.5)


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


def test_figures_of_decodes_of_different_lengths(tmp_path):
    tokenizer = make_tokenizer()
    recipe = DiffusionGenerationConfig(max_new_tokens=16, block_length=8, output_certainty=True)
    answerer = Answerer(make_llada(), tokenizer, recipe)
    decodes = {
        rule: answerer.with_(**{rule: value}).decode([[2, 3], [4]])
        for rule, value in {"denoising_steps": 2, "entropy_threshold": 1.0}.items()
    }
    figures = plot_certainty(decodes, tokenizer, {"answers": [{"confidence": 0.9, "accuracy": 1.0}]})
    assert list(figures) == [
        "confidence_and_accuracy",
        "token_convergence",
        "confidence_at_passes",
        "confidence_maps",
    ]
    for name, figure in figures.items():
        figure.savefig(tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert [len(axes.lines) for axes in panels(figures["token_convergence"])] == [8, 8]
    first = decodes["denoising_steps"].sequences[0, -16].item()
    assert panels(figures["token_convergence"])[0].lines[0].get_label() == f"1: {tokenizer.decode([first])}"
