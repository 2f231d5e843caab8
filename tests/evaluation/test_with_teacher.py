# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What makes an answer of the student right, where no reward says so. The comparison itself is run by `train`."""

from datasets import Dataset

from hf_dparallel.evaluation.with_teacher import judge

from ..helpers import make_tokenizer


def test_an_answer_is_the_one_in_the_data_if_its_text_is():
    rows = Dataset.from_list([{"prompt_ids": [2], "completion_ids": [5, 0, 1]}])
    _, agreement = judge(rows, make_tokenizer())
    assert agreement([[5, 1], [5, 6, 1]], teacher_ids=[[5, 0, 1], [5, 1]]) == [1.0, 0.0]
