# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Does calibration keep its promise? Ten calibrations of the bundled teacher, each on prompts of its own choice.

All problems are decoded once with every setting. Each seed draws a calibration and a confirmation half, calibrates as
`hf-dparallel calibrate` does, and the accuracy that its recipe loses is counted on all problems that it did not see.

    python benchmarks/calibration.py --output benchmarks/results/calibration.json
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.calibration import calibrate
from hf_dparallel.evaluation.decoding import EvaluatedAnswers, evaluate_answers


MAX_NEW_TOKENS = 64
REFERENCE = {"denoising_steps": MAX_NEW_TOKENS}
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--num_problems", type=int, default=1500, help="problems in all")
    parser.add_argument("--num_calibration", type=int, default=1000, help="of each seed, in both halves together")
    parser.add_argument("--num_seeds", type=int, default=10)
    parser.add_argument("--drops", type=float, nargs="+", default=[0.01, 0.02, 0.03], help="tolerances")
    arguments = parser.parse_args()
    decoded = decode_all(arguments.num_problems)
    runs = [
        {"max_accuracy_drop": drop, "seed": seed, **calibrate_once(decoded, arguments.num_calibration, drop, seed)}
        for drop in arguments.drops
        for seed in range(arguments.num_seeds)
    ]
    curve = {
        name: {"accuracy": answers.figures()["accuracy"], "nfe": answers.figures()["nfe"]}
        for name, answers in decoded.items()
    }
    result = {"settings": vars(arguments), "curve": curve, "runs": runs, "environment": describe_environment()}
    Path(arguments.output).write_text(json.dumps(result, indent=2) + "\n")
    print(table(runs, arguments.num_problems - arguments.num_calibration))


def decode_all(num_problems: int) -> dict[str, EvaluatedAnswers]:
    """Decodes all problems with every setting; by the text of the setting."""
    teacher, tokenizer = load_teacher()
    problems = word_problem_dataset(num_problems, seed=0, split="test")
    recipes = [REFERENCE, *({"entropy_threshold": threshold} for threshold in THRESHOLDS)]
    return {
        str(settings): evaluate_answers(
            teacher,
            tokenizer,
            problems,
            numeric_answer_reward,
            DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, **settings),
            batch_size=32,
            description=str(settings),
            num_workers=torch.get_num_threads(),
        )
        for settings in recipes
    }


def calibrate_once(decoded: dict[str, EvaluatedAnswers], num: int, drop: float, seed: int) -> dict[str, object]:
    """Calibrates on problems that the seed chooses, and counts what is lost on the others."""
    order = np.random.default_rng(seed).permutation(len(decoded[str(REFERENCE)].nfe))
    splits = {"calibration": order[: num // 2], "confirmation": order[num // 2 : num]}

    def evaluate(split, settings) -> EvaluatedAnswers:
        return subset(decoded[str(dict(settings))], splits[split])

    candidates = [{"entropy_threshold": threshold} for threshold in THRESHOLDS]
    best, _ = calibrate(evaluate, candidates, REFERENCE, drop)
    if best is None:
        return {"recipe": None}
    unseen = order[num:]
    before, after = (subset(decoded[str(settings)], unseen).figures() for settings in (REFERENCE, best.settings))
    return {"recipe": best.settings, "nfe": after["nfe"], "accuracy_lost": before["accuracy"] - after["accuracy"]}


def subset(answers: EvaluatedAnswers, rows: np.ndarray) -> EvaluatedAnswers:
    """The answers to some of the problems."""
    lists = (answers.is_correct, answers.nfe, answers.num_tokens, answers.num_answer_tokens)
    return EvaluatedAnswers(*([values[row] for row in rows] for values in lists), seconds=answers.seconds)


def table(runs: list[dict], num_unseen: int) -> str:
    """A line for each tolerance. Where nothing could be confirmed, nothing was promised."""
    lines = [
        f"| Tolerance | Recipes found | Kept on {num_unseen} unseen | Passes | Largest loss |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for drop in sorted({run["max_accuracy_drop"] for run in runs}):
        of_drop = [run for run in runs if run["max_accuracy_drop"] == drop]
        found = [run for run in of_drop if run["recipe"] is not None]
        # A loss of just the tolerance keeps it.
        kept = sum(run["accuracy_lost"] <= drop + 1e-9 for run in found)
        passes = f"{np.mean([run['nfe'] for run in found]):.1f}" if found else ""
        largest = f"{100 * max(run['accuracy_lost'] for run in found):+.1f}" if found else ""
        cells = (f"{100 * drop:g} points", f"{len(found)} of {len(of_drop)}", kept, passes, largest)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
