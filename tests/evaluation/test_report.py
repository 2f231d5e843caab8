# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
from hf_dparallel.evaluation.report import make_rows, results_table


MEASURED = {
    "Original": {"accuracy": 0.95, "nfe": 64.0, "tokens_per_forward": 0.8, "latency_s": 0.2, "num_prompts": 5},
    "Student": {"accuracy": 0.94, "nfe": 8.0, "tokens_per_forward": 6.4, "latency_s": 0.025, "num_prompts": 5},
}


def test_rows_and_table():
    rows = make_rows(MEASURED)
    assert [row["speedup"] for row in rows] == [1.0, 8.0]
    assert list(rows[0]) == ["method", "accuracy", "nfe", "tokens_per_forward", "latency_s", "speedup"]
    assert results_table(rows).splitlines() == [
        "| Method   | Passes | Tokens per pass | Latency | Speed-up | Accuracy |",
        "| -------- | -----: | --------------: | ------: | -------: | -------: |",
        "| Original |   64.0 |            0.80 |  200 ms |     1.0x |    95.0% |",
        "| Student  |    8.0 |            6.40 |   25 ms |     8.0x |    94.0% |",
    ]
