# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The paper's ablations (Tables 3 and 4), its baseline and our variants, decoded in several ways, over several seeds.

    python benchmarks/ablations.py --teacher short_teacher --folder ablations --output ablations.json
    python benchmarks/ablations.py --problems long --folder ablations-long

Every variant is the demo's distillation with other settings of the same trainer. Its adapter is kept, and so is every
figure, in a file of its own. What is in `folder` already is not made again: more ways to decode (`--decodings`) need
no new training, and several processes may share the folder, each with variants of its own (`--variants`), once a first
one has made the trajectories of a seed.

Of each way to decode, the setting with the fewest passes that keeps the accuracy is chosen on tuning problems, and
reported on held-out ones. The AUP is that of the tuning problems, on which all settings of a way are measured.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedModel, set_seed

from hf_dparallel import (
    DiffusionGenerationConfig,
    evaluate_decoding,
    filter_trajectories,
    generate_trajectories,
    numeric_answer_reward,
)
from hf_dparallel.demo.pipeline import (
    BLOCK_LENGTH,
    MAX_NEW_TOKENS,
    TRAJECTORY_RECIPE,
    DemoConfig,
    distil,
    fewest_passes,
    load_teacher,
    word_problem_dataset,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.aup import accuracy_under_parallelism
from hf_dparallel.inspection.plots import plot_tradeoff
from hf_dparallel.reports import markdown_table, write_json


# The language of the bundled teacher is not part of the package.
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from teacher.testbed import conversation_dataset


class Testbed(NamedTuple):
    """What is asked (called with number, seed and split), and the length of the canvas for the answers."""

    problems: Callable[..., Dataset]
    max_new_tokens: int


TESTBEDS = {
    "two-step": Testbed(word_problem_dataset, MAX_NEW_TOKENS),
    # The longest replies have 137 tokens.
    "long": Testbed(functools.partial(conversation_dataset, steps=range(4, 9)), 160),
}

# A student of the short teacher needs twice the steps of the demo's.
SIZES = {"num_trajectories": 1024, "num_train_steps": 200, "num_tuning_problems": 128, "num_problems": 500}

# By name: its row in the table, and its settings of `CertaintyForcingConfig`.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dparallel": ("both losses, semi-AR masking, random ratio (the demo)", {}),
    "fine-tuning": (
        "fine-tuning: masks over the whole answer, cross-entropy alone",
        {"masking": "random", "certainty_weight": 0.0},
    ),
    "consistency-distillation": (
        "consistency distillation",
        {
            "masking": "trajectory",
            "block_length": None,  # the whole answer
            "complementary_masking": False,
            "certainty_weight": 0.0,
        },
    ),
    "trajectory": ("teacher's order", {"masking": "trajectory"}),
    "on-policy": ("half of the rows on policy", {"on_policy_ratio": 0.5}),
    "dmax": (
        "half of the rows on policy, mask ratio 75 %, cross-entropy alone (DMax)",
        {"on_policy_ratio": 0.5, "mask_ratio": 0.75, "certainty_weight": 0.0},
    ),
    "soft-targets": (
        "teacher's order, soft targets from its 4th step on (TAD)",
        {"masking": "trajectory", "near_steps": 4},
    ),
    "sharpened-targets": (
        "soft targets of temperature 0.5, no certainty loss (SPEED)",
        {"near_steps": 0, "teacher_temperature": 0.5, "certainty_weight": 0.0},
    ),
    "on-policy-trajectory": (
        "half of the rows on policy, teacher's order",
        {"on_policy_ratio": 0.5, "masking": "trajectory"},
    ),
    "suffix-window": ("no masks after the block", {"suffix_length": 0}),
    "consistency-only": ("consistency loss only", {"certainty_weight": 0.0}),
    "certainty-only": ("certainty loss only", {"consistency_weight": 0.0}),
    "no-semi-ar": ("both losses, no semi-AR masking", {"masking": "random"}),
    "ratio-25": ("mask ratio 25 %", {"mask_ratio": 0.25}),
    "ratio-50": ("mask ratio 50 %", {"mask_ratio": 0.5}),
    "ratio-75": ("mask ratio 75 %", {"mask_ratio": 0.75}),
    "ratio-100": ("mask ratio 100 %", {"mask_ratio": 1.0}),
    "trajectory-one-view": ("teacher's order, one view", {"masking": "trajectory", "complementary_masking": False}),
    "trajectory-one-view-400": (
        "teacher's order, one view, twice the steps",
        {"masking": "trajectory", "complementary_masking": False, "max_steps": 400},
    ),
    "whole-answer": ("one block, the whole answer", {"block_length": None}),
    "weight-4": ("weight of the certainty loss 4", {"certainty_weight": 4.0}),
}
TEACHER = "teacher"
# The paper decodes its baseline in a fixed number of steps.
IN_FEW_STEPS = (TEACHER, "dparallel", "consistency-distillation")


def decodings(max_new_tokens: int) -> dict[str, list[dict[str, Any]]]:
    """Returns, by way to decode, the settings of a curve of passes and accuracy."""
    # Between 0.5 and 0.7 lies ln 2, an even choice between two tokens.
    verified = [(0.5, 0.7), (0.7, 0.5), (0.7, 0.7), (0.7, 0.8), (0.7, 0.9), (0.8, 0.7), (1.1, 0.7)]
    # As d3LLM decodes: no limit, and a block opens when a tenth of the last one is decided.
    several = {"max_active_blocks": max_new_tokens // BLOCK_LENGTH, "block_add_threshold": 0.1}
    return {
        "one token per pass": [{}],
        "entropy threshold 0.5": [{"entropy_threshold": 0.5}],
        "entropy threshold": [{"entropy_threshold": value} for value in (0.3, 0.5, 0.7, 0.8, 1.1)],
        **{f"verified commits {revocation:g}": [_verified(0.7, revocation)] for revocation in (0.7, 0.8, 0.85, 0.9)},
        "verified commits": [_verified(*pair) for pair in verified],
        "several blocks": [{**several, "entropy_threshold": value} for value in (0.3, 0.5, 0.7)],
        "several blocks, verified 0.7": [{**several, **_verified(0.7, 0.7)}],
        "several blocks, verified": [{**several, **_verified(*pair)} for pair in verified],
        "soft decoding": [{"soft_threshold": value} for value in (0.0, 0.3, 0.5, 0.8, 0.95)],
        "confidence threshold": [{"confidence_threshold": value} for value in (0.9, 0.8, 0.7, 0.6, 0.5)],
        "editing 0.5": [{"confidence_threshold": value, "editing_threshold": 0.5} for value in (0.9, 0.7, 0.5)],
        "few steps": [{"denoising_steps": max_new_tokens // 4}],
    }


def _verified(entropy: float, revocation: float) -> dict[str, float]:
    return {"entropy_threshold": entropy, "revocation_threshold": revocation}


def decodes_so(name: str, decoding: str) -> bool:
    """Returns whether a way to decode suits a model: some need the teacher, or students trained for them."""
    is_on_policy = "on_policy_ratio" in VARIANTS.get(name, ("", {}))[1]
    return {
        "soft decoding": is_on_policy,
        "editing 0.5": is_on_policy,
        "confidence threshold": name == TEACHER,
        "few steps": name in IN_FEW_STEPS,
    }.get(decoding, True)


class Ablations:
    """Trains and measures on one seed's problems. Adapters and figures go to `folder`, a folder for each model."""

    def __init__(self, folder: Path, testbed: Testbed, config: DemoConfig):
        self.folder = folder / f"seed-{config.seed}"
        self.testbed = testbed
        self.config = config
        self.teacher, self.tokenizer = load_teacher(path=config.teacher)
        self.problems = {
            "tuning": testbed.problems(config.num_tuning_problems, config.seed + 1, split="test"),
            "held-out": testbed.problems(config.num_problems, config.seed + 2, split="test"),
        }
        self._student: tuple[str, PreTrainedModel] = (TEACHER, self.teacher)

    def run(self, name: str, ways: list[str]) -> dict[str, Any]:
        """Trains a student if there is none yet, and measures it, or the teacher, with each way to decode."""
        training = {} if name == TEACHER else self._once(name, "training", lambda: self._train(name))
        all_ways = decodings(self.testbed.max_new_tokens)
        accuracy = self._measure(TEACHER, "tuning", {})["accuracy"]
        measured = {}
        for way in (way for way in ways if decodes_so(name, way)):
            curve = [self._measure(name, "tuning", settings) for settings in all_ways[way]]
            chosen = fewest_passes(curve, accuracy)["recipe"]
            measured[way] = {"curve": curve, "chosen": self._measure(name, "held-out", chosen)}
        return {**training, "decodings": measured}

    def _train(self, name: str) -> dict[str, Any]:
        settings = VARIANTS[name][1]
        trajectories = self._trajectories()
        longest = max(map(len, trajectories["prompt_ids"])) + self.testbed.max_new_tokens
        lengths = {"max_length": longest, "block_length": settings.get("block_length", BLOCK_LENGTH) or longest}
        config = DemoConfig(**{**vars(self.config), "output_dir": str(self.folder / name)})
        set_seed(self.config.seed)
        start = time.time()
        distil(trajectories, self.tokenizer, config, self.teacher.dtype, **{**settings, **lengths})
        return {"settings": settings, "train_seconds": time.time() - start}

    def _trajectories(self) -> Dataset:
        path = self.folder / "trajectories.parquet"
        if not path.exists():
            problems = self.testbed.problems(self.config.num_trajectories, self.config.seed, split="train")
            options = {"batch_size": self.config.batch_size, "num_workers": self.config.num_workers}
            recipe = self._recipe(TRAJECTORY_RECIPE)
            rows = generate_trajectories(self.teacher, self.tokenizer, problems, recipe, **options)
            kept = filter_trajectories(rows, self.tokenizer, numeric_answer_reward)
            kept.to_parquet(path.with_suffix(f".{os.getpid()}"))
            os.replace(path.with_suffix(f".{os.getpid()}"), path)
        return Dataset.from_parquet(str(path))

    def _measure(self, name: str, problems: str, settings: dict[str, Any]) -> dict[str, Any]:
        title = " ".join(f"{setting}={value}" for setting, value in settings.items()) or "one token per pass"
        return self._once(name, f"{problems} {title}", lambda: self._evaluate(name, problems, settings))

    def _evaluate(self, name: str, problems: str, settings: dict[str, Any]) -> dict[str, Any]:
        if self._student[0] != name:
            self._student = name, self._load(name)
        options = {"batch_size": self.config.batch_size, "num_workers": self.config.num_workers}
        model, dataset, recipe = self._student[1], self.problems[problems], self._recipe(settings)
        metrics = evaluate_decoding(model, self.tokenizer, dataset, numeric_answer_reward, recipe, **options)
        return {**metrics, "recipe": settings}

    def _load(self, name: str) -> PreTrainedModel:
        if name == TEACHER:
            return self.teacher
        model, _ = load_teacher(torch.float32, self.config.teacher)
        student = PeftModel.from_pretrained(model, str(self.folder / name / "adapter")).merge_and_unload()
        return student.to(self.teacher.dtype).eval()

    def _recipe(self, settings: dict[str, Any]) -> DiffusionGenerationConfig:
        max_new_tokens = self.testbed.max_new_tokens
        return DiffusionGenerationConfig(max_new_tokens=max_new_tokens, block_length=BLOCK_LENGTH, **settings)

    def _once(self, name: str, figures: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self.folder / name / f"{figures}.json"
        if not path.exists():
            print(f"\n{self.folder.name}, {name}: {figures}", flush=True)
            temporary = path.with_suffix(f".{os.getpid()}")
            write_json(make(), temporary)
            os.replace(temporary, path)
        return json.loads(path.read_text())


Runs = dict[int, dict[str, dict[str, Any]]]


def table(runs: Runs, names: list[str], ways: list[str]) -> str:
    """Makes a Markdown table of models and ways to decode, mean ± standard deviation over seeds."""
    lines = []
    for name, way in itertools.product(names, ways):
        if not decodes_so(name, way):
            continue
        chosen = [run[name]["decodings"][way]["chosen"] for run in runs.values()]
        values = [", ".join(f"{value:g}" for value in figures["recipe"].values()) or "–" for figures in chosen]
        passes, tokens = ([figures[key] for figures in chosen] for key in ("nfe", "tokens_per_forward"))
        accuracies = [100 * figures["accuracy"] for figures in chosen]
        figures = map(spread, (passes, tokens, accuracies, aups(runs, name, way)))
        lines.append([title(name), way, "; ".join(values), *figures])
    header = ["Training", "Decoding", "Chosen settings", "Passes", "Tokens per pass", "Accuracy (%)", "AUP"]
    return markdown_table(header, lines, num_text_columns=3)


def title(name: str) -> str:
    """Names a model's row in the table."""
    return "none (the teacher)" if name == TEACHER else VARIANTS[name][0]


def spread(values: list[float]) -> str:
    """Writes mean and, of several values, standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def aups(runs: Runs, name: str, way: str) -> list[float]:
    """Returns, for each seed, the AUP of a way to decode, against the seed's best accuracy of all models and ways.

    Its curve begins with one token per pass, and has no points that another one beats in both accuracy and speed.
    """
    found = []
    for run in runs.values():
        ways = [measured["curve"] for model in run.values() for measured in model["decodings"].values()]
        best = max(point["accuracy"] for curve in ways for point in curve)
        measured = run[name]["decodings"]
        points = [*measured.get("one token per pass", {"curve": []})["curve"], *measured[way]["curve"]]
        curve = pareto_front([(point["answer_tokens_per_forward"], 100 * point["accuracy"]) for point in points])
        found.append(accuracy_under_parallelism(*zip(*curve, strict=True), max_accuracy=100 * best))
    return found


def pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points that no other beats in both numbers, by the first number."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def draw(run: dict[str, dict[str, Any]], ways: list[str], path: Path) -> None:
    """Draws accuracy against tokens per pass on the tuning problems of one seed, a line for each model and way."""
    curves = {
        f"{name}, {way}": [
            {**point, "label": thresholds(point["recipe"])}
            for point in sorted(model["decodings"][way]["curve"], key=lambda point: point["tokens_per_forward"])
        ]
        for name, model in run.items()
        for way in ways
        if len(model["decodings"].get(way, {"curve": []})["curve"]) > 1
    }
    plot_tradeoff(curves).savefig(path)


def thresholds(settings: dict[str, Any]) -> str:
    """Writes, beside a point of the picture, the thresholds that decide and revise tokens."""
    about_blocks = ("max_active_blocks", "block_add_threshold")
    return " ".join(f"{value:g}" for name, value in settings.items() if name not in about_blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = list(decodings(MAX_NEW_TOKENS))
    parser.add_argument("--problems", default="two-step", choices=list(TESTBEDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", default=[TEACHER, *VARIANTS], choices=[TEACHER, *VARIANTS])
    parser.add_argument("--decodings", nargs="+", default=ways, choices=ways)
    parser.add_argument("--teacher", help="folder of the teacher, by default the bundled one")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs, a folder for each seed")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--picture", type=Path, help="PNG file for the curves of the first seed")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES}
    runs: Runs = {}
    for seed in args.seeds:
        config = DemoConfig(teacher=args.teacher, seed=seed, **sizes)
        ablations = Ablations(args.folder, TESTBEDS[args.problems], config)
        runs[seed] = {name: ablations.run(name, args.decodings) for name in args.variants}
    print(table(runs, args.variants, args.decodings))
    if args.picture is not None:
        draw(runs[args.seeds[0]], args.decodings, args.picture)
    if args.output is not None:
        environment = describe_environment()
        write_json({"problems": args.problems, **sizes, "runs": runs, "environment": environment}, args.output)


if __name__ == "__main__":
    main()
