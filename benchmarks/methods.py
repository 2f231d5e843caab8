# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""All commit rules and revisions beside one another, caches, and the time of `generate` beside that of the model.

    python benchmarks/certainty.py --output_dir runs/certainty
    python benchmarks/methods.py --output_dir runs/certainty --report benchmarks/results/methods.json

On teacher and students that `benchmarks/certainty.py` has trained in `--output_dir`, whose settings it takes, too.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from certainty import Study, at_thresholds, parser_of
from curves import Curves, passes_at

from hf_dparallel.data.prompts import tokenize_prompts
from hf_dparallel.data.rewards import numeric_answer_reward
from hf_dparallel.environment import describe_environment
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.reports import markdown_table, write_json
from hf_dparallel_rules.settings import SETTINGS


# By method, the settings of its curve.
METHODS: dict[str, list[dict[str, float]]] = {
    "entropy_threshold": at_thresholds((0.2, 0.3, 0.5, 0.7, 0.9, 1.1)),
    "confidence_threshold": [{"confidence_threshold": value} for value in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)],
    "confidence_factor": [{"confidence_factor": value} for value in (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)],
    "entropy_bound": [{"entropy_bound": value} for value in (0.1, 0.3, 0.6, 1.0, 2.0, 3.0)],
    "entropy_budget": [{"entropy_budget": value} for value in (0.2, 0.5, 1.0, 1.5, 2.5, 4.0)],
    "denoising_steps": [{"denoising_steps": value} for value in (40, 32, 24, 16, 12, 8)],
    "soft_threshold": [{"soft_threshold": value} for value in (0.95, 0.9, 0.8, 0.65, 0.5, 0.3)],
    "verified commits": [
        {"entropy_threshold": value, "revocation_threshold": 0.85} for value in (0.3, 0.5, 0.7, 0.9, 1.1, 1.4)
    ],
    "editing": [
        {"confidence_threshold": value, "editing_threshold": 0.5} for value in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    ],
}
# Those of docs/results.md: one, three and five points below the teacher's at one token a pass.
ACCURACIES = (0.948, 0.928, 0.908)
NUM_REPETITIONS = 5


def method_of(settings: dict[str, float]) -> str:
    """Returns the method whose curve has these settings."""
    return next(name for name, recipes in METHODS.items() if settings in recipes)


def measure_caches(study: Study, model: Any, threshold: float) -> list[dict[str, Any]]:
    """Decodes some held-out problems of a seed with each cache."""
    rows: list[dict[str, Any]] = []
    problems = study.problems("rules")
    prompts = list(enumerate(tokenize_prompts(problems, study.tokenizer)))
    plain: list[list[int]] = []
    for cache in ("none", "prefix", "dual"):
        recipe = study.recipe(entropy_threshold=threshold, cache_implementation=cache)
        answerer = Answerer(model, study.tokenizer, recipe, study.args.batch_size)
        start = time.process_time()
        by_row = dict(answerer.rows(prompts))
        seconds = time.process_time() - start

        answers = [by_row[row] for row in range(len(prompts))]
        tokens = [answer.tokens[: answer.num_tokens].tolist() for answer in answers]
        plain = plain or tokens
        texts = study.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        rewards = numeric_answer_reward(texts, answer=problems["answer"])
        equal = [ours == without for ours, without in zip(tokens, plain, strict=True)]
        rows.append(
            {
                "cache": cache,
                "equal": "".join(str(int(is_equal)) for is_equal in equal),
                "right": "".join(str(int(reward or 0)) for reward in rewards),
                "passes": " ".join(str(answer.nfe) for answer in answers),
                "cpu_seconds": round(seconds, 2),
            }
        )
    return rows


@torch.inference_mode()
def measure_overhead(study: Study, model: Any, batch_size: int) -> dict[str, Any]:
    """Times a pass of `generate` at one token a pass, and a call of the model with the same rows, in turn."""
    problems = study.problems("held out")
    prompts = tokenize_prompts(problems, study.tokenizer)[:batch_size]
    width = min(map(len, prompts))
    input_ids = torch.tensor([ids[:width] for ids in prompts], device=model.device)
    canvas = input_ids.new_full((batch_size, study.args.max_new_tokens), model.config.mask_token_id)
    rows = torch.cat([input_ids, canvas], dim=1)
    settings = {
        "max_new_tokens": study.args.max_new_tokens,
        "block_length": study.args.block_length,
        "denoising_steps": study.args.max_new_tokens,
        "stop_at_eos": False,
    }
    passes, calls = [], []
    for repetition in range(NUM_REPETITIONS + 1):
        start = time.process_time()
        out = model.generate(input_ids, **settings, return_dict_in_generate=True)
        of_pass = (time.process_time() - start) / out.nfe.max().item()
        start = time.process_time()
        for _ in range(16):
            model(rows)
        of_call = (time.process_time() - start) / 16
        if repetition:
            passes.append(round(1000 * of_pass, 3))
            calls.append(round(1000 * of_call, 3))
    return {"batch_size": batch_size, "ms_per_pass": passes, "ms_per_call": calls}


def table(points: list[dict[str, Any]], model: str, accuracies: Sequence[float]) -> str:
    """Returns the passes of a model at some accuracies, and AUP, by method: means over seeds."""
    of_model = [point for point in points if point["model"] == model]
    best = max(statistics.mean(map(int, point["right"])) for point in of_model)
    lines = []
    for method in METHODS:
        chosen = [point for point in of_model if method_of(point["settings"]) == method]
        curves = Curves({"points": chosen}, "rules")
        passes = [passes_at(curves.mean(model), accuracy) for accuracy in accuracies]
        shown = ["–" if value is None else f"{value:.1f}" for value in passes]
        aup = statistics.mean(curves.aup(model, seed, best) for seed in curves.seeds)
        lines.append([f"`{method}`" if method in SETTINGS else method, *shown, f"{aup:.0f}"])
    levels = [f"At {100 * accuracy:.1f} %" for accuracy in accuracies]
    return markdown_table(["Passes", *levels, "AUP"], lines)


def main() -> None:
    parser = parser_of(str(__doc__))
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8, 16])
    args: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"environment": describe_environment(), "points": [], "caches": [], "overhead": []}
    recipes = [settings for curve in METHODS.values() for settings in curve]
    for seed in args.seeds:
        study = Study(args, seed)
        for name in ("teacher", *args.students):
            result["points"] += study.measure(name, "rules", recipes)
        model = study.student(args.students[-1])
        result["caches"] += [{"seed": seed} | row for row in measure_caches(study, model, 0.5)]
        if not result["overhead"]:
            result["overhead"] = [measure_overhead(study, model, size) for size in args.batch_sizes]
        if args.report:
            write_json(result, args.report)

    for name in ("teacher", *args.students):
        print(f"\n{name}\n\n{table(result['points'], name, ACCURACIES)}")


if __name__ == "__main__":
    main()
