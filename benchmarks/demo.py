# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes the first table and the chart of docs/results.md: runs of the demo with several seeds, and times of answers.

    long="--num_trajectories 640 --num_train_steps 100 --num_tuning_problems 128 --num_problems 400"
    for seed in 0 1 2; do hf-dparallel demo $long --seed $seed --output_dir demo_output/$seed; done
    python benchmarks/demo.py demo_output/0 demo_output/1 demo_output/2 --output demo.json --chart results.svg

Passes and accuracy are those of the runs. Times are measured here, in one thread, the methods in turn, `--repetitions`
times after one that does not count; the table has the median of the CPU's time, and the file the clock's, too.
Thresholds of the teacher that are bolder than those of the demo are measured here, too, and on the held-out problems
all thresholds of the student and of the control, which is trained in as many steps without the certainty loss.
"""

import argparse
import math
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from hf_dparallel.data.prompts import tokenize_prompts
from hf_dparallel.data.rewards import numeric_answer_reward
from hf_dparallel.demo.pipeline import (
    BLOCK_LENGTH,
    MAX_NEW_TOKENS,
    STUDENT_GRID,
    DemoConfig,
    fewest_passes,
    load_teacher,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.decoding import evaluate_answers
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.generation.configuration import DiffusionGenerationConfig
from hf_dparallel.reports import markdown_table, read_report, write_json


BATCH_SIZES = (1, 16)
BOLDER: list[dict[str, Any]] = [{"confidence_threshold": 0.3}, {"entropy_threshold": 2.0}]
CURVES = {
    "original": ("Teacher, one token per pass", "bar"),
    "confidence_threshold": ("Teacher, confidence threshold", "first"),
    "entropy_threshold": ("Teacher, entropy threshold", "second"),
    "control": ("Control, entropy threshold", "fourth"),
    "student": ("Student, entropy threshold", "third"),
}
# Where the adapters of a run are.
ADAPTERS = {"control": Path("control", "adapter"), "student": Path("adapter")}


def settings_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the settings of each row of a report, as the demo has chosen them."""
    tuning = report["tuning"]
    accuracy = tuning["original"]["accuracy"]
    chosen = [fewest_passes(tuning[name], accuracy)["recipe"] for name in list(CURVES)[1:]]
    return [{}, {"denoising_steps": MAX_NEW_TOKENS // 4}, *chosen]


def load_student(folder: Path, name: str) -> Any:
    """Returns the student or the control of a run, merged, in the dtype of the teacher."""
    adapter = str(folder / ADAPTERS[name])
    merged = PeftModel.from_pretrained(load_teacher(torch.float32)[0], adapter).merge_and_unload()
    return merged.to(load_teacher()[0].dtype)


def seconds_per_answer(
    folder: Path, report: dict[str, Any], num_prompts: int, repetitions: int
) -> list[dict[str, list[tuple[float, float]]]]:
    """Returns for each row and batch size the seconds of an answer in each repetition, of the CPU and by the clock."""
    teacher, tokenizer = load_teacher()
    models = [*[teacher] * 4, load_student(folder, "control"), load_student(folder, "student")]
    seconds: list[dict[str, list]] = [{str(size): [] for size in BATCH_SIZES} for _ in models]
    problems = DemoConfig(seed=report["settings"]["seed"], num_problems=num_prompts).problems("comparison")
    prompts = list(enumerate(tokenize_prompts(problems, tokenizer)))
    for repetition in range(repetitions + 1):
        for size in BATCH_SIZES:
            for row, (model, settings) in enumerate(zip(models, settings_of(report), strict=True)):
                how = {"max_new_tokens": MAX_NEW_TOKENS, "block_length": BLOCK_LENGTH} | settings
                answerer = Answerer(model, tokenizer, DiffusionGenerationConfig(**how), size)
                start = time.process_time(), time.perf_counter()
                assert len(list(answerer.rows(prompts))) == num_prompts
                taken = time.process_time() - start[0], time.perf_counter() - start[1]
                if repetition:
                    seconds[row][str(size)].append([each / num_prompts for each in taken])
    return seconds


def measure(model: Any, recipes: list[dict[str, Any]], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures a model on the tuning and on the held-out problems of a run of the demo."""
    _, tokenizer = load_teacher()
    run = DemoConfig(**settings)
    sets = {"tuning": run.problems("tuning"), "held_out": run.problems("comparison")}
    points: list[dict[str, Any]] = [{"recipe": recipe} for recipe in recipes]
    for point in points:
        config = DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_length=BLOCK_LENGTH, **point["recipe"])
        answerer = Answerer(model, tokenizer, config, settings["batch_size"])
        for name, problems in sets.items():
            figures = evaluate_answers(answerer, problems, numeric_answer_reward, name).metrics()
            point[name] = {metric: figures[metric] for metric in ("accuracy", "nfe")}
    return points


def summary(values: Sequence[float], form: str, unit: str = "") -> str:
    """Returns the mean of several seeds and, if they differ in what is printed, their range."""
    mean, low, high = (form.format(value) for value in (statistics.mean(values), min(values), max(values)))
    return mean + unit if low == high else f"{mean}{unit} ({low}–{high})"


def table(result: dict[str, Any]) -> str:
    """Returns the table of the pages: means over seeds with their range."""
    lines = []
    for rows in zip(*(run["rows"] for run in result["runs"]), strict=True):
        medians = [
            {size: statistics.median(cpu for cpu, _ in row["seconds"][size]) for size in row["seconds"]}
            for row in rows
        ]
        thresholds = sorted({row["method"].rpartition(" ")[2] for row in rows})
        name = rows[0]["method"].rpartition(" ")[0] + f" {' or '.join(thresholds)}"
        lines.append(
            [
                rows[0]["method"] if "one token" in name else name,
                summary([row["nfe"] for row in rows], "{:.1f}"),
                summary([1000 * each["1"] for each in medians], "{:.0f}", " ms"),
                summary([1 / each["16"] for each in medians], "{:.1f}"),
                summary([100 * row["accuracy"] for row in rows], "{:.1f}", "%"),
            ]
        )
    return markdown_table(["Method", "Passes", "One answer alone", "Answers/s in batches of 16", "Right"], lines)


def chart(result: dict[str, Any], head: str) -> str:
    """Returns the chart of accuracy against passes, behind the title and style of a picture of the docs."""
    head = re.sub(r'viewBox="[^"]*" width="\d+" height="\d+"', 'viewBox="0 0 480 300" width="480" height="300"', head)
    parts = [head.strip(), '<rect class="page" x="0.5" y="0.5" width="479" height="299" rx="10"/>']
    for percent in (0, 25, 50, 75, 100):
        parts.append(f'<line class="given" x1="52" x2="460" y1="{240 - 2 * percent}" y2="{240 - 2 * percent}"/>')
        parts.append(f'<text x="46" y="{244 - 2 * percent}" class="small" text-anchor="end">{percent}%</text>')
    for doublings in range(7):
        parts.append(f'<text x="{52 + 68 * doublings}" y="260" class="small mid">{2**doublings}</text>')
    parts.append('<text x="256" y="284" class="small mid">forward passes per answer, fewer is faster</text>')
    parts.append('<text x="12" y="20" class="small">right answers</text>')
    for number, (name, (label, style)) in enumerate(CURVES.items()):
        runs = [run["tuning"][name] for run in result["runs"]]
        line = []
        for same in zip(*([run] if isinstance(run, dict) else run for run in runs), strict=True):
            accuracy = statistics.mean(point["accuracy"] for point in same)
            ends = wilson_interval(accuracy, sum(point["num_prompts"] for point in same))
            x = f"{52 + 68 * math.log2(statistics.mean(point['nfe'] for point in same)):.1f}"
            y, low, high = (f"{240 - 200 * value:.1f}" for value in (accuracy, *ends))
            parts.append(f'<circle class="{style} dot" cx="{x}" cy="{y}" r="3.5"/>')
            parts.append(f'<line class="{style}" stroke="#8a93a3" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>')
            line.append(f"{x},{y}")
        parts.append(f'<polyline class="{style}" points="{" ".join(line)}"/>')
        parts.append(f'<circle class="{style} dot" cx="76" cy="{104 + 24 * number}" r="3.5"/>')
        parts.append(f'<text x="88" y="{108 + 24 * number}" class="small">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--chart", type=Path, help="a picture of the docs, whose style stays")
    parser.add_argument("--num_prompts", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"environment": describe_environment(), "num_timed": args.num_prompts, "runs": []}
    for folder in args.folders:
        report = read_report(folder)
        seconds = seconds_per_answer(folder, report, args.num_prompts, args.repetitions)
        rows = [row | {"seconds": of_row} for row, of_row in zip(report["rows"], seconds, strict=True)]
        del report["settings"]["output_dir"]
        grid = [{"entropy_threshold": value} for value in STUDENT_GRID]
        measured = {
            "bolder": measure(load_teacher()[0], BOLDER, report["settings"]),
            "without_certainty": measure(load_student(folder, "control"), grid, report["settings"]),
            "with_certainty": measure(load_student(folder, "student"), grid, report["settings"]),
        }
        result["runs"].append(report | {"rows": rows} | measured)
        write_json(result, args.output)
    print(table(result))
    if args.chart:
        args.chart.write_text(chart(result, args.chart.read_text(encoding="utf-8").partition("<rect")[0]))


if __name__ == "__main__":
    main()
