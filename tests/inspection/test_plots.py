# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the pictures show of their data, read from the matplotlib figures."""

from hf_dparallel.inspection.plots import plot_tradeoff


POINTS = [{"tokens_per_forward": 0.8, "accuracy": 0.95}, {"tokens_per_forward": 6.4, "accuracy": 0.94}]


def test_every_curve_of_the_tradeoff_is_drawn():
    curves = {f"method {index}": POINTS for index in range(7)}
    (axes,) = plot_tradeoff(curves).axes
    assert [line.get_label() for line in axes.lines] == list(curves)
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 7
    assert [list(map(float, values)) for values in axes.lines[0].get_data()] == [[0.8, 6.4], [95, 94]]


def test_labels_of_points_in_one_place_stand_one_above_the_other():
    points = [{**POINTS[0], "label": "0.5"}, {**POINTS[1], "label": "0.7"}, {**POINTS[1], "label": "0.8"}]
    (axes,) = plot_tradeoff({"Student": points}).axes
    assert [text.get_text() for text in axes.texts] == ["0.5", "0.7\n0.8"]


def test_neither_labels_of_two_curves_nor_the_legend_cover_a_point():
    figure = plot_tradeoff({name: [{**POINTS[0], "label": "0.5"}] for name in ("Teacher", "Student")})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not boxes[0].overlaps(boxes[1]) and all(axes.get_window_extent().contains(*box.p1) for box in boxes)
    assert not figure.legends[0].get_window_extent().overlaps(axes.get_window_extent())
