# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Does calibration keep its promise? Ten calibrations of the bundled teacher, each on prompts of its own choice.

A pool of problems is decoded once with every setting. Each seed draws two halves from it and
calibrates as `hf-dparallel calibrate` does. What the recipes lose is counted on problems that none of them has seen.

    python benchmarks/calibration.py --output benchmarks/results/calibration.json
"""

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.calibration import calibrate
from hf_dparallel.evaluation.decoding import Evaluation, evaluate_answers
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.reports import markdown_table, write_json


if TYPE_CHECKING:
    from datasets import Dataset

MAX_NEW_TOKENS = 64
REFERENCE = {"denoising_steps": MAX_NEW_TOKENS}
CANDIDATES = [{"entropy_threshold": threshold / 10} for threshold in range(1, 11)]
# The model and its tokenizer.
Teacher = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--num_problems", type=int, default=1500, help="problems of the pool")
    parser.add_argument("--num_calibration", type=int, default=1000, help="of each seed, in both halves together")
    parser.add_argument("--num_unseen", type=int, default=1500, help="problems to judge the recipes on")
    parser.add_argument("--num_seeds", type=int, default=10)
    parser.add_argument("--drops", type=float, nargs="+", default=[0.01, 0.02, 0.03], help="tolerances")
    arguments = parser.parse_args()
    pool = word_problem_dataset(arguments.num_problems, seed=0, split="test")
    # As the command does, so that figures do not depend on the batch.
    teacher = load_teacher(torch.float32, arguments.teacher)
    decoded = decode(teacher, pool, [REFERENCE, *CANDIDATES])
    runs = [
        {
            "max_accuracy_drop": drop,
            "seed": seed,
            "recipe": calibrate_once(decoded, arguments.num_calibration, drop, seed),
        }
        for drop in arguments.drops
        for seed in range(arguments.num_seeds)
    ]
    judged = judge(teacher, runs, pool, arguments.num_unseen)
    curve = {name: answers.metrics() for name, answers in decoded.items()}
    result = {
        "settings": vars(arguments),
        "curve": {name: {key: metrics[key] for key in ("accuracy", "nfe")} for name, metrics in curve.items()},
        "judged": judged,
        "runs": runs,
        "environment": describe_environment(),
    }
    write_json(result, arguments.output)
    print(table(runs, judged))


def decode(teacher: Teacher, problems: "Dataset", recipes: list[dict[str, Any]]) -> dict[str, Evaluation]:
    """Decodes problems with several settings; by the text of the setting."""
    canvas = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS)
    answerer = Answerer(*teacher, canvas, num_workers=torch.get_num_threads())
    return {
        str(settings): evaluate_answers(
            answerer.with_(**settings), problems, numeric_answer_reward, description=str(settings)
        )
        for settings in recipes
    }


def calibrate_once(decoded: dict[str, Evaluation], num: int, drop: float, seed: int) -> dict[str, Any] | None:
    """Calibrates on problems of the pool that the seed chooses, and returns the recipe, if there is one."""
    order = np.random.default_rng(seed).permutation(len(decoded[str(REFERENCE)].costs))
    splits = {"calibration": order[: num // 2], "confirmation": order[num // 2 : num]}

    def evaluate(split, settings) -> Evaluation:
        return subset(decoded[str(dict(settings))], splits[split])

    best, _ = calibrate(evaluate, CANDIDATES, REFERENCE, drop)
    return None if best is None else best.settings


def judge(
    teacher: Teacher, runs: list[dict[str, Any]], pool: "Dataset", num_unseen: int
) -> dict[str, dict[str, float]]:
    """Measures what each recipe found loses on problems outside the pool, with standard error, and its passes."""
    seen = {row["content"] for messages in pool["prompt"] for row in messages}
    unseen = word_problem_dataset(num_unseen, seed=1, split="test")
    unseen = unseen.filter(lambda row: row["prompt"][0]["content"] not in seen)
    found = [run["recipe"] for run in runs]
    recipes = [settings for settings in CANDIDATES if settings in found]
    decoded = decode(teacher, unseen, [REFERENCE, *recipes])
    before = np.array(decoded[str(REFERENCE)].is_correct, dtype=float)
    judged = {}
    for settings in recipes:
        answers = decoded[str(settings)]
        lost = before - answers.is_correct
        judged[str(settings)] = {
            "accuracy_lost": lost.mean(),
            "standard_error": lost.std() / len(lost) ** 0.5,
            "nfe": answers.metrics()["nfe"],
            "num_problems": len(lost),
        }
    return judged


def subset(answers: Evaluation, rows: np.ndarray) -> Evaluation:
    """Selects the answers to some problems."""
    is_correct, costs = ([values[row] for row in rows] for values in (answers.is_correct, answers.costs))
    return Evaluation(is_correct, costs, answers.seconds)


def table(runs: list[dict[str, Any]], judged: dict[str, dict[str, float]]) -> str:
    """Writes a line per tolerance. Where nothing could be confirmed, nothing was promised."""
    lines = []
    for drop in sorted({run["max_accuracy_drop"] for run in runs}):
        of_drop = [run["recipe"] for run in runs if run["max_accuracy_drop"] == drop]
        found = [judged[str(recipe)] for recipe in of_drop if recipe is not None]
        kept = sum(figures["accuracy_lost"] <= drop + 1e-9 for figures in found)
        passes = f"{np.mean([figures['nfe'] for figures in found]):.1f}" if found else ""
        largest = f"{100 * max(figures['accuracy_lost'] for figures in found):+.1f}" if found else ""
        lines.append([f"{100 * drop:g} points", f"{len(found)} of {len(of_drop)}", kept, passes, largest])
    return markdown_table(["Tolerance", "Recipes found", "Kept", "Passes", "Largest loss"], lines, num_text_columns=0)


if __name__ == "__main__":
    main()
