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
from ..evaluation.rows import make_rows
from ..generation.answerer import Answerer
from ..generation.configuration import DiffusionGenerationConfig
from ..inspection.plots import plot_tradeoff
from ..reports import REPORT_NAME, TABLE_METRICS, results_table, write_report
from . import TEACHER, word_problem_dataset


if TYPE_CHECKING:
    from datasets import Dataset

MAX_NEW_TOKENS = 64
BLOCK_LENGTH = 32
# The paper's teacher decodes one token per pass, which takes twice as long and gives nearly the same answers.
TRAJECTORY_RECIPE = {"confidence_threshold": 0.8}
# A threshold keeps the accuracy if it loses at most this much against one token per pass, on the tuning problems.
TOLERANCE = 0.01

# The values to choose from, by rule.
TUNING_GRID = {"confidence_threshold": (0.9, 0.8, 0.7, 0.6, 0.5), "entropy_threshold": (0.3, 0.5, 0.8, 1.1)}


@dataclass
class DemoConfig:
    """Settings of [`run_demo`]. `hf-dparallel demo --help` describes most of them."""

    output_dir: str = "demo_output"
    teacher: str | None = None
    seed: int = 0
    num_trajectories: int = 640
    num_train_steps: int = 100
    num_tuning_problems: int = 128
    num_problems: int = 400
    batch_size: int = 16


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
    tuning = word_problem_dataset(config.num_tuning_problems, config.seed + 1, split="test")

    print("\n1/5  The teacher: one token per pass, and which thresholds keep its accuracy")
    (original,) = _evaluate_settings(by_teacher, tuning, [{}])
    grids = {rule: [{rule: value} for value in values] for rule, values in TUNING_GRID.items()}
    curves = {rule: _evaluate_settings(by_teacher, tuning, grid) for rule, grid in grids.items()}

    print("\n2/5  Its trajectories on new problems, and which of them end in the right answer")
    trajectories, counts = _make_trajectories(teacher, tokenizer, config)

    print("\n3/5  Certainty-forcing distillation")
    by_student = replace(by_teacher, model=distil(trajectories, tokenizer, config, teacher.dtype))

    print("\n4/5  The student: which thresholds keep the teacher's accuracy")
    curves["student"] = _evaluate_settings(by_student, tuning, grids["entropy_threshold"])
    chosen = {name: fewest_passes(curve, original["accuracy"])["recipe"] for name, curve in curves.items()}
    _recipe(chosen["student"]).save_pretrained(output_dir / "adapter")

    print("\n5/5  The comparison on held-out problems")
    held_out = word_problem_dataset(config.num_problems, config.seed + 2, split="test")
    rows = _compare(by_teacher, by_student, held_out, chosen)
    report: dict[str, Any] = {
        "rows": rows,
        "tuning": {"original": original, **curves, "tolerance": TOLERANCE},
        **counts,
        "dataset": "the word problems of hf-dparallel",
        "num_prompts": config.num_problems,
        "settings": vars(config),
        "dtype": str(teacher.dtype),
        "seconds": round(time.time() - start, 1),
    }
    conclusion = _write_results(report, output_dir)
    print(f"\n{conclusion}\n\nReport, picture and adapter are in {output_dir}/ ({report['seconds']:.0f} s).")
    return report


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
        label = " ".join(map(str, settings.values()))
        points.append({**answers.metrics(), "recipe": settings, "label": label})
        print(f"{name}: {points[-1]['nfe']:.1f} passes, {points[-1]['accuracy']:.1%} right", flush=True)
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
    problems = word_problem_dataset(config.num_trajectories, config.seed, split="train")
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
        "warmup_steps": 10,
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
    teacher: Answerer, student: Answerer, problems: "Dataset", chosen: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns a row for each method of the paper's Table 1."""
    methods = {
        "Teacher, one token per pass": (teacher, {}),
        "Teacher, few-step": (teacher, {"denoising_steps": MAX_NEW_TOKENS // 4}),
        "Teacher, confidence threshold": (teacher, chosen["confidence_threshold"]),
        "Teacher, entropy threshold": (teacher, chosen["entropy_threshold"]),
        "Student (dParallel), entropy threshold": (student, chosen["student"]),
    }
    measured = {}
    for title, (answerer, settings) in methods.items():
        (metrics,) = _evaluate_settings(answerer, problems, [settings])
        measured[f"{title} {metrics['label']}".rstrip()] = {metric: metrics[metric] for metric in TABLE_METRICS}
    return make_rows(measured)


def _write_results(report: dict[str, Any], output_dir: Path) -> str:
    """Writes report and picture, and returns the table with what it comes to."""
    original, *_, student = report["rows"]
    teacher = min(report["rows"][2:4], key=lambda row: row["nfe"])
    rule = teacher["method"].removeprefix("Teacher, ")
    conclusion = (
        f"The student takes {student['nfe']:.1f} passes an answer: {original['nfe'] / student['nfe']:.1f} times fewer "
        f"than one token per pass and {teacher['nfe'] / student['nfe']:.1f} times fewer than the teacher's fastest "
        f"threshold of those tried ({rule}), at {student['accuracy']:.1%} accuracy against {original['accuracy']:.1%}."
    )
    paragraphs = [results_table(report["rows"]), conclusion]
    write_report(report, output_dir, [*paragraphs, "![](curves.png)"])
    tuning = report["tuning"]
    curves = {
        "Teacher, confidence": [tuning["original"], *tuning["confidence_threshold"]],
        "Teacher, entropy": [tuning["original"], *tuning["entropy_threshold"]],
        "Student, entropy": tuning["student"],
    }
    plot_tradeoff(curves).savefig(output_dir / "curves.png")
    return "\n\n".join(paragraphs)
