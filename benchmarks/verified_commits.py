# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What verified commits gain and what they cost: passes and accuracy of a student, and the time of its passes.

    hf-dparallel demo --output_dir demo_output
    python benchmarks/verified_commits.py --adapter demo_output/adapter --output verified_commits.json
    python benchmarks/verified_commits.py --adapter demo-student --problems long --max_active_blocks 5
    python benchmarks/verified_commits.py --shape small

The first form decodes held-out problems of the demo with the bundled teacher and an adapter that was trained on it,
with thresholds that are bolder and bolder, plain and verified; the second one problems of 4 to 8 steps. The third form
times passes with and without the copy of the block that verifies it, on random weights.
"""

import argparse
import time

import torch
from ablations import TESTBEDS
from peft import PeftModel
from speed import random_model, random_prompts

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo import path_of
from hf_dparallel.demo.pipeline import BLOCK_LENGTH, evaluate_settings, load_teacher
from hf_dparallel.environment import describe_environment
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.reports import markdown_table, write_json


# Entropy thresholds, and the probability that their commits are verified with; 0 is plain.
PAIRS = ["0.5:0", "0.7:0", "0.7:0.3", "0.7:0.5", "0.7:0.7", "0.7:0.9", "0.8:0", "0.8:0.7", "0.8:0.9"]
CACHES = (None, "prefix", "dual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--adapter", help="folder of the student's adapter")
    parser.add_argument("--shape", help="time the passes of a random model of this shape instead")
    parser.add_argument("--output", help="JSON file to write")
    parser.add_argument("--num_problems", type=int, default=300, help="held-out problems")
    parser.add_argument("--pairs", nargs="+", default=PAIRS, help="entropy and revocation thresholds")
    parser.add_argument("--seed", type=int, default=2, help="of the problems")
    parser.add_argument("--rounds", type=int, default=6, help="how often each decode is timed")
    parser.add_argument("--prompt_length", type=int, default=64)
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--max_active_blocks", type=int, default=1, help="plain passes that are timed have one")
    parser.add_argument("--problems", default="two-step", choices=list(TESTBEDS))
    arguments = parser.parse_args()
    rows = time_passes(arguments) if arguments.shape else evaluate_student(arguments)
    print(table(rows))
    if arguments.output:
        result = {"settings": vars(arguments), "rows": rows, "environment": describe_environment()}
        write_json(result, arguments.output)


def evaluate_student(arguments: argparse.Namespace) -> list[dict]:
    """Measures the student's accuracy, passes and revisions with each pair of thresholds."""
    model, tokenizer = load_teacher(torch.float32, arguments.teacher)
    adapter = path_of(arguments.adapter)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()
    testbed = TESTBEDS[arguments.problems]
    problems = testbed.problems(arguments.num_problems, arguments.seed, split="test")
    recipe = DiffusionGenerationConfig(
        max_new_tokens=testbed.max_new_tokens,
        block_length=BLOCK_LENGTH,
        max_active_blocks=arguments.max_active_blocks,
    )
    names = ("entropy_threshold", "revocation_threshold")
    tried = [dict(zip(names, map(float, pair.split(":")), strict=True)) for pair in arguments.pairs]
    points = evaluate_settings(Answerer(model, tokenizer, recipe), problems, tried)
    return [point["recipe"] | {name: point[name] for name in ("accuracy", "nfe")} for point in points]


def time_passes(arguments: argparse.Namespace) -> list[dict]:
    """Measures the CPU time of a pass, plain and verified, by cache; verified passes are as bold and revise little.

    The plain ones have one block open, the verified ones up to `--max_active_blocks`.
    """
    model = random_model(arguments.shape, torch.float32, "cpu", "sdpa")
    prompt = random_prompts(model, 1, arguments.prompt_length)
    recipes = {
        (cache, revocation): {
            "cache_implementation": cache,
            "revocation_threshold": revocation,
            "max_active_blocks": num_blocks,
        }
        for cache in CACHES
        for revocation, num_blocks in ((0.0, 1), (1e-9, arguments.max_active_blocks))
    }
    seconds: dict[tuple, list[float]] = {key: [] for key in recipes}
    # In turns, so that other programs on the machine slow all alike.
    for _ in range(arguments.rounds):
        for key, settings in recipes.items():
            start = time.process_time()
            out = model.generate(
                prompt,
                max_new_tokens=arguments.max_new_tokens,
                block_length=BLOCK_LENGTH,
                # About four tokens a pass.
                confidence_factor=4.0,
                stop_at_eos=False,
                return_dict_in_generate=True,
                **{name: value for name, value in settings.items() if value is not None},
            )
            seconds[key].append((time.process_time() - start) / out.nfe.item())
    plain = {cache: min(seconds[cache, 0.0]) for cache in CACHES}
    return [
        {"cache": cache, "revocation_threshold": revocation, "ratio": min(times) / plain[cache]}
        for (cache, revocation), times in seconds.items()
    ]


def table(rows: list[dict]) -> str:
    """Writes rows in Markdown."""
    lines = [[f"{value:.3g}" if isinstance(value, float) else value for value in row.values()] for row in rows]
    return markdown_table(list(rows[0]), lines)


if __name__ == "__main__":
    main()
