# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the certainty loss does: accuracy against passes of a teacher and of its students, over many thresholds.

    python benchmarks/certainty.py --output_dir runs/certainty --report benchmarks/results/certainty.json

Students have equal data, steps and tuning, and differ in what `STUDENTS` says. Each seed has problems of its own: for
the trajectories, and for the curves. What is in `--output_dir` already is not made again, so a run that was stopped
goes on where it was, and more students, thresholds or seeds add to it. `benchmarks/curves.py` makes the figures.

The teacher and its problems are small ones of this folder. The same at 8B, on one GPU:

    python benchmarks/certainty.py --model GSAI-ML/LLaDA-8B-Instruct --dataset gsm8k --output_dir runs/certainty-8b \\
        --max_new_tokens 256 --num_trajectories 2000 --num_problems 400 --num_steps 190 --train_batch_size 64 \\
        --micro_batch_size 1 --learning_rate 2e-5 --mask_ratio 0.5 --max_length 512 --trajectory_confidence 0.9 \\
        --lora_alpha 32 --thresholds 0.1 0.2 0.3 0.45 0.6 0.8 1.0 --students consistency both

With `--adapters consistency=FOLDER both=FOLDER`, adapters that exist are measured, and nothing is trained.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import short_problems
import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerCallback, set_seed

import hf_dparallel  # noqa: F401  # registers the models
from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DiffusionGenerationConfig,
    filter_trajectories,
    generate_trajectories,
    numeric_answer_reward,
)
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.decoding import evaluate_answers
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.reports import read_json, write_json
from hf_dparallel.training.collator import DataCollatorForSemiAutoregressiveMasking
from hf_dparallel.training.objective import RowTerms, TokenTerms, mean_by_row
from hf_dparallel_rules.certainty import entropy_from_logits


SHORT_TEACHER = str(Path(__file__).parent / "short_teacher")
# By name, the settings of `StudyConfig` and, for some, a collator.
STUDENTS: dict[str, dict[str, Any]] = {
    "consistency": {"certainty_weight": 0.0},
    "both": {},
    # Certainty only where the teacher's token has more than half of the probability.
    "likely": {"certainty_weight": 0.0, "likely_weight": 2.0},
    # Both losses, and tokens count the less, the later the teacher committed them in their block.
    "early": {"collator": "early"},
    # Both losses, and from half of the steps on every second answer is the student's own, of a bold decode.
    "bold": {"collator": "bold"},
}
BOLD_THRESHOLD = 1.1
# Other problems than those of the trainings, which have two or three steps: of as many steps, or as people typed them.
OTHERS = {"one step": (1,), "four steps": (4,), "typed by people": ()}


def certainty_of_the_likely(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the entropy at the temperature 0.5, which counts where the label has a probability above 0.5."""
    log_probabilities = logits.detach().float().log_softmax(dim=-1)
    of_labels = log_probabilities.gather(1, labels[:, None]).squeeze(1).exp()
    return entropy_from_logits(logits, 0.5), of_labels > 0.5


@dataclass
class StudyConfig(CertaintyForcingConfig):
    """The trainer's settings with one more term of the loss."""

    likely_weight: float = 0.0

    @property
    def added_terms(self):
        return {"likely": certainty_of_the_likely}


@dataclass
class EarlyCollator(DataCollatorForSemiAutoregressiveMasking):
    """Weighs the tokens of a block from 1, for those of its first pass, down to 0.1."""

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(examples)
        weights = torch.stack([self._weights(example) for example in examples])
        return batch | {"weights": weights.repeat(self.num_views, 1)}

    def score(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        given = {name: value for name, value in inputs.items() if name != "weights"}
        return super().score(model, given, *args, **kwargs)

    def average(self, terms: TokenTerms, batch: dict[str, Any]) -> RowTerms:
        return mean_by_row(terms, batch["labels"], batch["weights"])

    def _weights(self, example: dict[str, Any]) -> torch.Tensor:
        start = len(example["prompt_ids"])
        steps = torch.tensor(example["commit_step"], dtype=torch.float32)
        weights = torch.full((self.padded_length,), 0.1)
        for first in range(0, len(steps), self.block_length):
            block = steps[first : first + self.block_length]
            since = block - block.min()
            of_block = (1 - since / (since.max() + 1)).clamp(min=0.1)
            weights[start + first : start + first + len(block)] = of_block

        return weights


@dataclass
class BoldCollator(DataCollatorForSemiAutoregressiveMasking):
    """Gives a prompt's answer in `answers` instead of the teacher's in every second epoch."""

    def __post_init__(self):
        super().__post_init__()
        self.answers: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return super().__call__([self._choose(example) for example in examples])

    def _choose(self, example: dict[str, Any]) -> dict[str, Any]:
        prompt = example["prompt_ids"]
        own = self.answers.get(tuple(prompt))
        is_turn = (sum(prompt) + int(self._epoch)) % 2 == 0
        return {"prompt_ids": prompt, "completion_ids": own} if own and is_turn else example


class AnswerBoldly(TrainerCallback):
    """Lets the student answer the problems of its training after half of the steps, and keeps what is right."""

    def __init__(self, study: "Study", collator: BoldCollator, prompts: Dataset):
        self.study = study
        self.collator = collator
        self.prompts = prompts

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step != args.max_steps // 2:
            return
        recipe = self.study.recipe(entropy_threshold=BOLD_THRESHOLD)
        rows = generate_trajectories(model, self.study.tokenizer, self.prompts, recipe, self.study.args.batch_size)
        kept = filter_trajectories(rows, self.study.tokenizer, numeric_answer_reward)
        print(f"{len(kept)} of {len(rows)} bold answers are right.", flush=True)
        self.collator.answers = {tuple(row["prompt_ids"]): row["completion_ids"] for row in kept}


COLLATORS = {"early": EarlyCollator, "bold": BoldCollator}


class Study:
    """One seed: its problems, the trajectories of the teacher, students, and their curves, in a folder of its own."""

    def __init__(self, args: argparse.Namespace, seed: int):
        self.args = args
        self.seed = seed
        self.folder = Path(args.output_dir) / f"seed-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.dtype = getattr(torch, args.dtype)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def recipe(self, **settings: Any) -> DiffusionGenerationConfig:
        lengths = {"max_new_tokens": self.args.max_new_tokens, "block_length": self.args.block_length}
        return DiffusionGenerationConfig(**lengths, **settings)

    def problems(self, kind: str) -> Dataset:
        """Returns this seed's problems of a kind: "train", "held out", "rules" (some of these), or others by name."""
        args = self.args
        split = "train" if kind == "train" else "test"
        of_kind = {"train": args.num_trajectories, "held out": args.num_problems}
        count = of_kind.get(kind, args.num_others)
        first = self.seed * (args.num_problems if kind == "rules" else count)
        if kind == "typed by people":
            return short_problems.typed(self.seed)
        if args.dataset == "word_problems":
            return short_problems.problems(split, first, count, OTHERS.get(kind, (2, 3, 3)))

        rows = load_dataset("openai/gsm8k", "main", split=split).shuffle(seed=0)
        chosen = rows.select(range(first, first + count))
        prompts = [[{"role": "user", "content": question}] for question in chosen["question"]]
        return Dataset.from_dict({"prompt": prompts, "answer": chosen["answer"]})

    def load(self, dtype: torch.dtype) -> Any:
        return AutoModelForMaskedLM.from_pretrained(self.args.model, dtype=dtype).to(self.device).eval()

    def trajectories(self) -> Dataset:
        """Returns the right answers of the teacher, which it gives if there are none yet."""
        path = self.folder / "trajectories.parquet"
        if not path.exists():
            args = self.args
            how: dict[str, Any] = {"temperature": args.trajectory_temperature} if args.trajectory_temperature else {}
            if args.trajectory_confidence:
                how["confidence_threshold"] = args.trajectory_confidence

            rows = generate_trajectories(
                self.load(self.dtype),
                self.tokenizer,
                self.problems("train"),
                self.recipe(**how),
                args.batch_size,
                output_dir=self.folder / "trajectories",
                seed=self.seed,
            )
            kept = filter_trajectories(rows, self.tokenizer, numeric_answer_reward)
            print(f"seed {self.seed}: kept {len(kept)} of {len(rows)} trajectories", flush=True)
            kept.to_parquet(path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)
        return Dataset.from_parquet(str(path))

    def student(self, name: str) -> Any:
        """Returns a student with its adapter merged; it is trained if there is none yet."""
        adapter = dict(self.args.adapters).get(name, self.folder / name / "adapter")
        if not Path(adapter, "adapter_config.json").exists():
            self._train(name, adapter)
        # A small one is merged in the dtype of its training, and rounded once.
        base = self.load(torch.float32 if self.device == "cpu" else self.dtype)
        student = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
        return student.to(self.dtype).eval()

    def _train(self, name: str, adapter: Path) -> None:
        args = self.args
        rows = self.trajectories()
        settings = dict(STUDENTS[name])
        collator_class = COLLATORS.get(settings.pop("collator", ""))
        longest = max(map(len, rows["prompt_ids"])) + args.max_new_tokens
        config = StudyConfig(
            str(self.folder / name),
            max_steps=args.num_steps,
            per_device_train_batch_size=args.micro_batch_size or args.train_batch_size,
            gradient_accumulation_steps=args.train_batch_size // (args.micro_batch_size or args.train_batch_size),
            learning_rate=args.learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=10,
            block_length=args.block_length,
            mask_ratio=args.mask_ratio,
            max_length=args.max_length or longest,
            bf16=self.dtype == torch.bfloat16,
            activation_checkpointing=self.device == "cuda",
            use_cpu=self.device == "cpu",
            save_strategy="no",
            report_to="none",
            seed=self.seed,
            **settings,
        )
        set_seed(self.seed)
        model = self.load(self.dtype if self.device == "cuda" else torch.float32)
        if self.device == "cpu":
            # The backward pass of the fused attention is slow on CPUs.
            model.set_attn_implementation("eager")

        collator = None
        callbacks = []
        if collator_class is not None:
            collator = collator_class(
                model.config.mask_token_id,
                self.tokenizer.eos_token_id,
                block_length=config.block_length,
                mask_ratio=config.mask_ratio,
                max_length=config.max_length,
                seed=config.seed,
            )
        if isinstance(collator, BoldCollator):
            callbacks = [AnswerBoldly(self, collator, self.problems("train"))]

        trainer = CertaintyForcingTrainer(
            model,
            config,
            rows,
            processing_class=self.tokenizer,
            data_collator=collator,
            callbacks=callbacks,
            peft_config=LoraConfig(r=args.lora_rank, lora_alpha=args.lora_alpha),
        )
        trainer.train()
        trainer.save_model(str(adapter))

    def measure(self, name: str, kind: str, recipes: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
        """Returns the points of a model's curve, one for each recipe, on problems of a kind."""
        model = None
        points = []
        for settings in recipes:
            title = " ".join(f"{setting}={value:g}" for setting, value in settings.items()) or "one token a pass"
            path = self.folder / name / f"{kind} {title}.json"
            if not path.exists():
                if model is None:
                    model = self.load(self.dtype) if name == "teacher" else self.student(name)
                write_json(self._point(model, name, kind, settings), path)

            points.append(read_json(path))
        return points

    def _point(self, model: Any, name: str, kind: str, settings: dict[str, float]) -> dict[str, Any]:
        answerer = Answerer(model, self.tokenizer, self.recipe(**settings), self.args.batch_size)
        answers = evaluate_answers(answerer, self.problems(kind), numeric_answer_reward)
        metrics = answers.metrics()
        what = f"seed {self.seed}, {name}, {kind}, {settings}"
        print(f"{what}: {metrics['nfe']:.2f} passes, {metrics['accuracy']:.1%} right", flush=True)
        return {
            "seed": self.seed,
            "model": name,
            "problems": kind,
            "settings": settings,
            "tokens_per_forward": round(metrics["answer_tokens_per_forward"], 4),
            "right": "".join(str(int(is_right)) for is_right in answers.is_correct),
            "passes": " ".join(str(cost.nfe) for cost in answers.costs),
        }


def pair(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    return name, Path(folder)


def parser_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--report", type=Path, help="JSON with all points, whole outcomes by problem")
    parser.add_argument("--model", default=SHORT_TEACHER)
    parser.add_argument("--dataset", choices=("word_problems", "gsm8k"), default="word_problems")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--students", nargs="*", choices=list(STUDENTS), default=["consistency", "both"])
    parser.add_argument("--adapters", type=pair, nargs="*", default=[], help="NAME=FOLDER of trained students")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.2, 0.3, 0.5, 0.6, 0.65, 0.7, 0.9, 1.1, 1.4])
    parser.add_argument("--teacher_thresholds", type=float, nargs="*", default=[0, 0.5, 0.8, 1.1, 1.4, 1.8, 2.2])
    parser.add_argument("--teacher_confidences", type=float, nargs="*", default=[0.8, 0.6, 0.4])
    parser.add_argument("--others", type=float, nargs="*", default=[], help="thresholds on other problems")
    parser.add_argument("--num_trajectories", type=int, default=384)
    parser.add_argument("--num_problems", type=int, default=256)
    parser.add_argument("--num_others", type=int, default=128)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--block_length", type=int, default=32)
    parser.add_argument("--batch_size", type=int, default=64, help="prompts decoded together")
    parser.add_argument("--trajectory_confidence", type=float, default=0.8, help="0: one token a pass")
    parser.add_argument("--trajectory_temperature", type=float, default=0.0)
    parser.add_argument("--num_steps", type=int, default=120)
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--micro_batch_size", type=int, default=0, help="sequences at a time; 0: the whole batch")
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--mask_ratio", type=lambda text: text if text == "random" else float(text), default="random")
    parser.add_argument("--max_length", type=int, default=0, help="0: the longest prompt and a canvas")
    parser.add_argument("--lora_rank", type=int, default=32)
    parser.add_argument("--lora_alpha", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    return parser


def at_thresholds(thresholds: Sequence[float]) -> list[dict[str, float]]:
    """Returns recipes with entropy thresholds; 0 is one token a pass."""
    return [{"entropy_threshold": threshold} if threshold else {} for threshold in thresholds]


def write_report(args: argparse.Namespace, points: list[dict[str, Any]]) -> None:
    """Writes the points with what made them."""
    settings = {name: value for name, value in vars(args).items() if name not in ("output_dir", "report")}
    settings |= {"model": Path(args.model).name, "adapters": [name for name, _ in args.adapters]}
    write_json({"settings": settings, "environment": describe_environment(), "points": points}, args.report)


def main() -> None:
    args = parser_of(str(__doc__)).parse_args()
    points = []
    for seed in args.seeds:
        study = Study(args, seed)
        for name in dict.fromkeys([*args.students, *dict(args.adapters)]):
            points += study.measure(name, "held out", at_thresholds(args.thresholds))
            for kind in OTHERS if args.others else ():
                points += study.measure(name, kind, at_thresholds(args.others))

        by_confidence = [{"confidence_threshold": value} for value in args.teacher_confidences]
        points += study.measure("teacher", "held out", at_thresholds(args.teacher_thresholds) + by_confidence)
        for kind in OTHERS if args.others else ():
            points += study.measure("teacher", kind, at_thresholds(args.teacher_thresholds))

    if args.report:
        write_report(args, points)


if __name__ == "__main__":
    main()
