# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import pytest
import torch
from matplotlib.figure import Figure

from hf_dparallel.evaluation.plots import mean_confidence, plot_certainty_and_tradeoff
from hf_dparallel.evaluation.report import make_rows, markdown_table
from hf_dparallel.evaluation.terminal import color_by_commit_step, color_legend


MEASURED = {
    "Original": {"accuracy": 0.95, "nfe": 64.0, "tokens_per_forward": 0.8, "latency_s": 0.2, "num_prompts": 5},
    "Student": {"accuracy": 0.94, "nfe": 8.0, "tokens_per_forward": 6.4, "latency_s": 0.025, "num_prompts": 5},
}


def test_rows_and_table():
    rows = make_rows(MEASURED)
    assert [row["speedup"] for row in rows] == [1.0, 8.0]
    assert list(rows[0]) == ["method", "accuracy", "nfe", "tokens_per_forward", "latency_s", "speedup"]
    assert markdown_table(rows).splitlines() == [
        "| Method   | Passes | Tokens per pass | Latency | Speed-up | Accuracy |",
        "| -------- | -----: | --------------: | ------: | -------: | -------: |",
        "| Original |   64.0 |            0.80 |  200 ms |     1.0x |    95.0% |",
        "| Student  |    8.0 |            6.40 |   25 ms |     8.0x |    94.0% |",
    ]


def test_mean_confidence_keeps_the_last_value_of_a_decided_token():
    nan = torch.nan
    confidences = torch.tensor([[[0.2, 0.9], [0.6, nan], [nan, nan]], [[0.4, 0.5], [nan, nan], [nan, nan]]])
    expected = torch.tensor([[0.3, 0.7], [0.5, 0.7], [0.5, 0.7], [0.5, 0.7]])
    torch.testing.assert_close(mean_confidence(confidences, num_passes=4), expected)


def test_picture_is_written(tmp_path):
    certainty = {"Teacher": torch.rand(16, 32), "Student": torch.rand(16, 32)}
    plot_certainty_and_tradeoff(certainty, {"Teacher": list(MEASURED.values())}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("num_maps", [0, 1, 2])
def test_every_curve_is_drawn(monkeypatch, num_maps):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: saved.append(figure))
    curves = {f"method {index}": list(MEASURED.values()) for index in range(7)}
    plot_certainty_and_tradeoff({str(index): torch.rand(4, 8) for index in range(num_maps)}, curves, "unused.png")
    axes = saved[0].axes[num_maps]
    assert [line.get_label() for line in axes.lines] == list(curves)
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 7


def test_tokens_are_coloured_from_first_to_last_pass():
    text = color_by_commit_step(["a", "b", "c"], [0, 9, 0], num_passes=10)
    first, last = "\033[38;5;27m", "\033[38;5;196m"
    assert text == f"{first}a\033[0m {last}b\033[0m {first}c\033[0m"
    assert color_by_commit_step(["a"], [0], num_passes=1) == f"{first}a\033[0m"
    assert color_legend(10).endswith("pass 10")
