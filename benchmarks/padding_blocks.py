# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Whether to train on blocks of nothing but padding (`padding_blocks`), on the bundled teacher.

    python benchmarks/padding_blocks.py --folder padding --output benchmarks/results/padding_blocks.json

Two students are distilled from the same trajectories as in the demo, and decoded with and without a stop at the end of
the answer. Passes without a stop count those for the padding, as in the paper.
"""

import argparse
from pathlib import Path
from typing import Any

from transformers import set_seed

from hf_dparallel.demo.pipeline import (
    DemoConfig,
    distil,
    evaluate_settings,
    load_teacher,
    make_answerer,
    make_trajectories,
    word_problem_dataset,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


def measure(model: Any, tokenizer: Any, config: DemoConfig, name: str) -> list[dict[str, Any]]:
    """Decodes the held-out problems with and without a stop."""
    problems = word_problem_dataset(config.num_problems, config.seed + 2, split="test")
    answerer = make_answerer(model, tokenizer, config)
    tried = [{"entropy_threshold": 0.5, "stop_at_eos": stop_at_eos} for stop_at_eos in (True, False)]
    return [
        {
            "model": name,
            "stop_at_eos": point["recipe"]["stop_at_eos"],
            "passes": round(point["nfe"], 2),
            "accuracy": round(point["accuracy"], 4),
        }
        for point in evaluate_settings(answerer, problems, tried)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--folder", type=Path, required=True, help="for trajectories and checkpoints")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_trajectories", type=int, default=DemoConfig.num_trajectories)
    parser.add_argument("--num_train_steps", type=int, default=DemoConfig.num_train_steps)
    parser.add_argument("--num_problems", type=int, default=DemoConfig.num_problems)
    args = vars(parser.parse_args())
    folder, output = args.pop("folder"), args.pop("output")
    folder.mkdir(parents=True, exist_ok=True)
    config = DemoConfig(output_dir=str(folder), **args)
    teacher, tokenizer = load_teacher(path=config.teacher)
    trajectories, counts = make_trajectories(teacher, tokenizer, config)
    rows = measure(teacher, tokenizer, config, "teacher")
    for padding_blocks in (False, True):
        set_seed(config.seed)
        student = distil(trajectories, tokenizer, config, teacher.dtype, padding_blocks=padding_blocks)
        rows += measure(student, tokenizer, config, f"student, padding_blocks={padding_blocks}")
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    if output is not None:
        report = {"rows": rows, **counts, "settings": args, "environment": describe_environment()}
        write_json(report, output)


if __name__ == "__main__":
    main()
