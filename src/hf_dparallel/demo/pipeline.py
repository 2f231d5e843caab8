# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The whole method on the bundled teacher: trajectories, filter, distillation, comparison."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from ..data.rewards import numeric_answer_reward
from ..data.trajectories import filter_trajectories, generate_trajectories
from ..evaluation.decoding import evaluate_answers
from ..evaluation.intervals import mean_interval, wilson_interval
from ..evaluation.rows import make_rows
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..inspection.plots import plot_tradeoff
from ..reports import REPORT_NAME, TABLE_METRICS, results_table, write_report
from . import TEACHER, word_problem_dataset


if TYPE_CHECKING:
    from datasets import Dataset

MAX_NEW_TOKENS = 64
# One block, as each takes at least one pass: answers have about 42 tokens, and room is left below every method.
BLOCK_LENGTH = 64
# The paper's teacher decodes one token per pass, which takes eight times as long and gives nearly the same answers.
TRAJECTORY_RECIPE = {"entropy_threshold": 1.1}
# A threshold keeps the accuracy if it loses at most this much against one token per pass, on the tuning problems.
TOLERANCE = 0.01

# The values to choose from, by rule: up to those at which the teacher loses accuracy.
TUNING_GRID = {"confidence_threshold": (0.6, 0.5, 0.4), "entropy_threshold": (0.8, 1.1, 1.4, 1.7)}
# Those of the student and of the control, both entropy thresholds.
STUDENT_GRID = (0.1, 0.2, 0.3, 0.5, 0.8)
CONTROL = "Control, without the certainty loss, entropy threshold"
STUDENT_ROW = "Student (dParallel), entropy threshold"


@dataclass
class DemoConfig:
    """Settings of [`run_demo`]. `hf-dparallel demo --help` describes most of them."""

    output_dir: str = "demo_output"
    teacher: str | None = None
    seed: int = 0
    num_trajectories: int = 320
    num_train_steps: int = 25
    num_tuning_problems: int = 64
    num_problems: int = 96
    batch_size: int = 16

    def problems(self, purpose: str) -> "Dataset":
        """Draws the problems for "trajectories", "tuning" or "comparison": others for each of them, in every seed."""
        number, offset, split = {
            "trajectories": (self.num_trajectories, 0, "train"),
            "tuning": (self.num_tuning_problems, 1, "test"),
            "comparison": (self.num_problems, 2, "test"),
        }[purpose]
        return word_problem_dataset(number, 3 * self.seed + offset, split)


def load_teacher(
    dtype: torch.dtype | None = None, path: str | Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a teacher and its tokenizer, by default the bundled one in the dtype in which this CPU decodes faster."""
    path = path or TEACHER
    tokenizer = AutoTokenizer.from_pretrained(path)
    # Twice as fast on CPUs with instructions for it, and slower on all others.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # of torch 2.12
    has_bfloat16 = any(map(capabilities.get, ("avx512_bf16", "amx_bf16", "bf16")))
    dtype = dtype or (torch.bfloat16 if has_bfloat16 else torch.float32)
    return AutoModelForMaskedLM.from_pretrained(path, dtype=dtype).eval(), tokenizer


def run_demo(config: DemoConfig) -> dict[str, Any]:
    """Distils the bundled teacher and compares it with its student; writes and returns the report.

    Writes to `config.output_dir`: `report.json`, `report.md`, `curves.png`, the trajectories and the adapter. The
    report has `rows`, see [`make_rows`], and what was chosen and counted on the way.
    """
    start = time.time()
    set_seed(config.seed)

    output_dir = Path(config.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    for name in (REPORT_NAME, "report.md", "curves.png"):
        (output_dir / name).unlink(missing_ok=True)  # of another run, if this one is killed

    teacher, tokenizer = load_teacher(path=config.teacher)
    by_teacher = Answerer(teacher, tokenizer, _recipe({}), config.batch_size)
    tuning = config.problems("tuning")

    _announce(1, "The teacher, one token per pass and by thresholds: what is to be kept", 0.8 * len(tuning))
    (original,) = _evaluate_settings(by_teacher, tuning, [{}])
    grids = {rule: [{rule: value} for value in values] for rule, values in TUNING_GRID.items()}
    curves = {rule: _evaluate_settings(by_teacher, tuning, grid) for rule, grid in grids.items()}

    _announce(2, "Its trajectories: the right answers that a student learns from", 0.06 * config.num_trajectories)
    trajectories, counts = _make_trajectories(teacher, tokenizer, config)

    _announce(3, "Two trainings: with the certainty loss, and a control without it", 4 * config.num_train_steps)
    student = distil(trajectories, tokenizer, config, teacher.dtype)
    beside = replace(config, output_dir=str(output_dir / "control"))
    control = distil(trajectories, tokenizer, beside, teacher.dtype, certainty_weight=0.0)

    _announce(4, "Both by thresholds: which of them keep the teacher's accuracy", 0.3 * len(tuning))
    students = {"student": replace(by_teacher, model=student), "control": replace(by_teacher, model=control)}
    grid = [{"entropy_threshold": value} for value in STUDENT_GRID]
    for name, answerer in students.items():
        curves[name] = _evaluate_settings(answerer, tuning, grid)
    chosen = {name: fewest_passes(curve, original["accuracy"])["recipe"] for name, curve in curves.items()}
    _recipe(chosen["student"]).save_pretrained(output_dir / "adapter")

    _announce(5, "The comparison, on problems that no threshold was chosen on", 0.7 * config.num_problems)
    rows, intervals, conclusion = _compare(by_teacher, students, config.problems("comparison"), chosen)
    report: dict[str, Any] = {
        "rows": rows,
        "intervals": intervals,
        "tuning": {"original": original, **curves, "tolerance": TOLERANCE},
        **counts,
        "dataset": "the word problems of hf-dparallel",
        "num_prompts": config.num_problems,
        "settings": vars(config),
        "dtype": str(teacher.dtype),
        "seconds": round(time.time() - start, 1),
    }
    text = _write_results(report, conclusion, output_dir)
    print(f"\n{text}\n\nReport, picture and adapter are in {output_dir}/ ({report['seconds']:.0f} s).")
    return report


def _announce(number: int, purpose: str, seconds: float) -> None:
    print(f"\n{number}/5  {purpose} (about {seconds:.0f} s on two CPU cores)", flush=True)


def _recipe(settings: dict[str, Any]) -> DiffusionGenerationConfig:
    return DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **settings)


def _evaluate_settings(
    answerer: Answerer, problems: "Dataset", tried: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns accuracy and cost with each of the settings, which are in `recipe`, and as a `label` for a picture."""
    points = []
    for settings in tried:
        name = " ".join(f"{name} {value}" for name, value in settings.items()) or "one token per pass"
        answers = evaluate_answers(answerer.with_(**settings), problems, numeric_answer_reward, name)
        point = {**answers.metrics(), "recipe": settings, "label": " ".join(map(str, settings.values()))}
        point["accuracy_interval"] = list(wilson_interval(point["accuracy"], len(problems)))
        point["passes"] = [cost.nfe for cost in answers.costs]
        points.append(point)
        print(f"{name}: {point['nfe']:.1f} passes, {point['accuracy']:.1%} right", flush=True)
    return points


def fewest_passes(curve: list[dict[str, Any]], accuracy: float) -> dict[str, Any]:
    """Returns the point of fewest passes that keeps the accuracy, or else the most accurate one."""
    keeping = [point for point in curve if point["accuracy"] >= accuracy - TOLERANCE]
    if not keeping:
        return max(curve, key=lambda point: point["accuracy"])
    return min(keeping, key=lambda point: point["nfe"])


def _make_trajectories(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: DemoConfig
) -> tuple["Dataset", dict[str, int]]:
    """Returns the teacher's right answers, and how many there were of both kinds."""
    problems = config.problems("trajectories")
    rows = generate_trajectories(teacher, tokenizer, problems, _recipe(TRAJECTORY_RECIPE), config.batch_size)
    kept = filter_trajectories(rows, tokenizer, numeric_answer_reward)
    print(f"Kept {len(kept)} of {len(rows)}.")
    kept.to_parquet(Path(config.output_dir) / "trajectories.parquet")
    return kept, {"trajectories_kept": len(kept), "trajectories_dropped": len(rows) - len(kept)}


def distil(
    trajectories: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    config: DemoConfig,
    dtype: torch.dtype,
    **settings: Any,
) -> PreTrainedModel:
    """Trains a LoRA adapter, saves it and returns the student with the adapter merged, in `dtype`.

    `settings` of [`CertaintyForcingConfig`] replace the demo's own.
    """
    from peft import LoraConfig

    from ..training.config import CertaintyForcingConfig
    from ..training.trainer import CertaintyForcingTrainer

    model, _ = load_teacher(torch.float32, config.teacher)

    # A step in bf16 takes 0.7 of the time of one with the fused attention, whose backward pass is slow on CPUs.
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    longest_prompt = max(map(len, trajectories["prompt_ids"]))
    defaults = {
        "max_steps": config.num_train_steps,
        "per_device_train_batch_size": 32,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": min(10, config.num_train_steps // 5),
        "block_length": BLOCK_LENGTH,
        # Decoding enters each block fully masked, which a fixed ratio would never show.
        "mask_ratio": "random",
        "max_length": longest_prompt + MAX_NEW_TOKENS,
        "bf16": dtype == torch.bfloat16,
        "activation_checkpointing": False,
        "use_cpu": True,
        "save_strategy": "no",
        "seed": config.seed,
    }

    args = CertaintyForcingConfig(str(Path(config.output_dir) / "checkpoints"), **(defaults | settings))
    lora = LoraConfig(r=32, lora_alpha=64)
    trainer = CertaintyForcingTrainer(model, args, trajectories, processing_class=tokenizer, peft_config=lora)
    trainer.train()
    trainer.save_model(str(Path(config.output_dir) / "adapter"))

    student = trainer.model.merge_and_unload().to(dtype).eval()
    student.set_attn_implementation(attention)
    return student


def _compare(
    teacher: Answerer,
    students: dict[str, Answerer],
    problems: "Dataset",
    chosen: dict[str, dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Returns a row for each method of the paper's Table 1 and for the control, their intervals, and a conclusion."""
    methods = {
        "Teacher, one token per pass": (teacher, {}),
        "Teacher, few-step": (teacher, {"denoising_steps": MAX_NEW_TOKENS // 4}),
        "Teacher, confidence threshold": (teacher, chosen["confidence_threshold"]),
        "Teacher, entropy threshold": (teacher, chosen["entropy_threshold"]),
        CONTROL: (students["control"], chosen["control"]),
        STUDENT_ROW: (students["student"], chosen["student"]),
    }
    measured = {}
    intervals = {}
    passes = {}
    for title, (answerer, settings) in methods.items():
        (point,) = _evaluate_settings(answerer, problems, [settings])
        method = f"{title} {point['label']}".rstrip()
        measured[method] = {metric: point[metric] for metric in TABLE_METRICS}
        passes[title] = point["passes"]
        intervals[method] = {
            "accuracy_interval": point["accuracy_interval"],
            "nfe_interval": list(mean_interval(point["passes"])),
        }

    rows = make_rows(measured)
    saved = [more - fewer for more, fewer in zip(passes[CONTROL], passes[STUDENT_ROW], strict=True)]
    return rows, intervals, _conclude(rows, mean_interval(saved))


def _conclude(rows: list[dict[str, Any]], saved: tuple[float, float]) -> str:
    """Says what the rows come to; `saved` is the interval of the passes of the control less those of the student."""
    original, *_, control, student = rows
    teacher = min(rows[2:4], key=lambda row: row["nfe"])
    rule = teacher["method"].removeprefix("Teacher, ")
    tells = "tells them apart" if saved[0] > 0 or saved[1] < 0 else "cannot tell them apart"
    return (
        f"The student takes {student['nfe']:.1f} passes an answer: {original['nfe'] / student['nfe']:.0f} times fewer "
        f"than one token per pass and {teacher['nfe'] / student['nfe']:.1f} times fewer than the teacher's best "
        f"threshold of those tried ({rule}), at {student['accuracy']:.1%} accuracy against {original['accuracy']:.1%} "
        f"and {teacher['accuracy']:.1%}. One pass is the least possible.\n\n"
        f"The control, trained alike but for the certainty loss, takes {control['nfe'] - student['nfe']:+.2f} passes "
        f"(95 % interval {saved[0]:+.2f} to {saved[1]:+.2f}), at {control['accuracy']:.1%}: this table {tells}. Each "
        "has its own threshold, and one training is no evidence for others."
    )


def _write_results(report: dict[str, Any], conclusion: str, output_dir: Path) -> str:
    """Writes report and picture, and returns the table with what it comes to."""
    table = results_table([row | report["intervals"][row["method"]] for row in report["rows"]])
    paragraphs = [table, conclusion]
    write_report(report, output_dir, [*paragraphs, "![](curves.png)"])
    tuning = report["tuning"]
    curves = {
        "Teacher, confidence": [tuning["original"], *tuning["confidence_threshold"]],
        "Teacher, entropy": [tuning["original"], *tuning["entropy_threshold"]],
        "Control, entropy": tuning["control"],
        "Student, entropy": tuning["student"],
    }
    plot_tradeoff(curves).savefig(output_dir / "curves.png")
    return "\n\n".join(paragraphs)
