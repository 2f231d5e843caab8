# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The Python blocks of the page on evaluation run, on the bundled teacher and the stand-ins of the data sets."""

import pytest
from lm_eval import tasks

from ...pages import ROOT, run_blocks


@pytest.mark.usefixtures("_few_tasks", "_in_datasets")
def test_the_blocks_of_the_page_run(monkeypatch, capsys):
    monkeypatch.setattr("lm_eval.evaluator.TaskManager", lambda metadata: tasks.TaskManager())
    names = run_blocks(ROOT / "docs" / "evaluation.md")

    score, answer_tokens_per_forward = map(float, capsys.readouterr().out.split()[-2:])
    assert 0 <= score <= 1 < answer_tokens_per_forward
    assert len(names["results"]["samples"]["gsm8k_cot_zeroshot"]) == 2 * 2  # two filters
