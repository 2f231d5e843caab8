# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What certainty-forcing distillation gains for a model that denoises canvases of random tokens.

    python benchmarks/uniform_noise.py --seeds 0 1 2 --folder /tmp/uniform_noise

A tiny DiffusionGemma, the teacher, is trained with the published loss on short sums in sentences of several phrasings.
Students go on from it, on its own answers in good form. Teacher and students answer held-out sums with the published
sampler and with bolder entropy bounds. An answer is in good form if it is made of whole phrasings, copies the numbers
of the prompt, and carries each result on. Whether results are right is counted apart: a model this small adds badly.

A run that was broken off goes on: models are kept in the folder, and a figure is a line of the output.
"""

import argparse
import itertools
import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from datasets import Dataset
from transformers import DiffusionGemmaConfig

from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DataCollatorForSemiAutoregressiveMasking,
    DiffusionGemmaForBlockDiffusion,
)
from hf_dparallel.demo.word_problems import END, START, STEP_ACTION, STEP_OPENING, STEP_RESULT, add
from hf_dparallel.reports import markdown_table


LARGEST, CANVAS, LONGEST = 20, 32, 96
PAD, EOS, BOS = 0, 1, 2
TEXTS = [text for part in (START, STEP_OPENING, *STEP_ACTION.values(), STEP_RESULT, END) for _, text in part]
WORDS = ["<pad>", "<eos>", "<bos>", *map(str, range(LARGEST + 1))]
WORDS += sorted({word for text in TEXTS for word in text.split() if "{" not in word} | {"+", "-", "?"})
IDS = {word: number for number, word in enumerate(WORDS)}

# Entropy bounds of the sampler; 0.1 is the published one.
BOUNDS = (0.1, 0.3, 1.0, 2.0)
# Of a student: settings of its training. `corrupted` scores the random tokens alone instead of all of the canvas.
STUDENTS = {
    "consistency": {"certainty_weight": 0.0},
    "certainty 2": {"certainty_weight": 2.0},
    "certainty 0.5": {"certainty_weight": 0.5},
    "certainty 2, temperature 0.8": {"certainty_weight": 2.0, "certainty_temperature": 0.8},
    "corrupted, consistency": {"certainty_weight": 0.0, "corrupted": True},
    "corrupted, certainty 2": {"certainty_weight": 2.0, "corrupted": True},
}


def problems(seed: int, most: int, held_out: bool) -> Iterator[dict]:
    """Yields prompts, answers and results of sums of up to `most` operations. One prompt in ten is held out."""
    rng = random.Random(seed)

    def drawn(options: tuple) -> str:
        weights, texts = zip(*options, strict=True)
        return rng.choices(texts, weights)[0]

    while True:
        total = rng.randint(1, LARGEST)
        prompt, answer = f"<bos> {total}", drawn(START).format(a=total)
        for _ in range(rng.randint(1, most)):
            sign = {0: "+", LARGEST: "-"}.get(total) or rng.choice("+-")
            number = rng.randint(1, min(9, LARGEST - total if sign == "+" else total))
            result = add(total, sign, number)
            step = "".join(map(drawn, (STEP_OPENING, STEP_ACTION[sign], STEP_RESULT)))
            prompt += f" {sign} {number}"
            answer += " " + step.format(a=total, sign=sign, b=number, c=result)
            total = result
        answer += " " + drawn(END).format(c=total)
        prompt += " ?"
        if (zlib.crc32(prompt.encode()) % 10 == 0) == held_out:
            ids = {"prompt_ids": prompt, "completion_ids": f"{answer} <eos>"}
            yield {name: [IDS[word] for word in text.split()] for name, text in ids.items()} | {"result": total}


def take(number: int, seed: int, most: int, held_out: bool) -> list[dict]:
    return list(itertools.islice(problems(seed, most, held_out), number))


def is_well_formed(prompt_ids: list[int], answer_ids: list[int]) -> bool:
    """Whether an answer is made of whole phrasings that say what the prompt says, whatever its results."""
    total, *steps = [WORDS[token] for token in prompt_ids][1:-1]
    rest = " ".join(WORDS[token] for token in answer_ids) + " "

    def eat(options: tuple, **numbers: str) -> re.Match | None:
        nonlocal rest
        for _, text in options:
            pattern = re.escape(text.strip().format(**({"c": "RESULT"} | numbers))).replace("RESULT", r"(\d+)")
            if match := re.match(f"{pattern} ", rest):
                rest = rest[match.end() :]
                return match
        return None

    if not eat(START, a=total):
        return False
    for sign, number in zip(steps[::2], steps[1::2], strict=True):
        if not (eat(STEP_OPENING) and eat(STEP_ACTION[sign], b=number)):
            return False
        result = eat(STEP_RESULT, a=total, sign=sign, b=number)
        if not result:
            return False
        total = result[1]
    return bool(eat(END, c=total)) and not rest


def make_model(seed: int, hidden: int, layers: int) -> DiffusionGemmaForBlockDiffusion:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = {
        "vocab_size": len(WORDS),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": hidden // 4,
        "global_head_dim": hidden // 4,
        "num_global_key_value_heads": 4,
        "num_experts": 1,
        "top_k_experts": 1,
        "moe_intermediate_size": hidden,
        "layer_types": ["full_attention"] * layers,
        "rope_parameters": {"sliding_attention": rope, "full_attention": rope},
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "max_position_embeddings": 512,
    }
    sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
    vision = dict.fromkeys([*sizes, "position_embedding_size"], 4) | {"num_hidden_layers": 1}
    tokens = {"image_token_id": len(WORDS), "boi_token_id": len(WORDS) + 1, "eoi_token_id": len(WORDS) + 2}
    torch.manual_seed(seed)
    return DiffusionGemmaForBlockDiffusion(
        DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=CANVAS, **tokens)
    )


class Canvases(DataCollatorForSemiAutoregressiveMasking):
    """Rows of which all tokens of the canvases are scored, or the random ones alone."""

    corrupted = False

    def _mask(self, example: dict):
        views = super()._mask(example)
        return views._replace(scored=views.scored & views.masked) if self.corrupted else views


def train(model, rows: list[dict], folder: Path, *, steps: int, lr: float, seed: int, corrupted=False, **settings):
    """Trains a model, and keeps it in a folder."""
    collator = Canvases(
        None, EOS, vocab_size=len(WORDS), attention="causal_past", has_encoder=True, block_origin="answer",
        block_length=CANVAS, max_length=LONGEST, mask_ratio="random", complementary_masking=False, seed=seed,
    )  # fmt: skip
    collator.corrupted = corrupted
    arguments = CertaintyForcingConfig(
        str(folder), max_steps=steps, per_device_train_batch_size=16, learning_rate=lr, warmup_steps=steps // 10,
        lr_scheduler_type="linear", adam_beta2=0.98, seed=seed, save_strategy="no", logging_steps=max(1, steps // 15),
        activation_checkpointing=False, use_cpu=True, report_to="none", disable_tqdm=True, **settings,
    )  # fmt: skip
    rows = Dataset.from_list(rows)
    trainer = CertaintyForcingTrainer(model.train(), arguments, rows, data_collator=collator)
    trainer.train()
    trainer.save_model()
    return model.eval()


def decode(model, rows: list[dict], seed: int, bound: float) -> list:
    """Answers the prompts of rows, with the published sampler and a bound of the entropy."""
    return list(
        model.eval().generate_many(
            [row["prompt_ids"] for row in rows], batch_size=64, max_new_tokens=2 * CANVAS, entropy_bound=bound,
            generator_for=lambda number: torch.Generator().manual_seed(seed * 10**6 + number),
        )
    )  # fmt: skip


def without_end(answer) -> list[int]:
    tokens = answer.tokens[: answer.num_tokens].tolist()
    return tokens[:-1] if tokens[-1:] == [EOS] else tokens


def measure(model, rows: list[dict], seed: int, bound: float) -> dict[str, float]:
    """Returns passes of the decoder and quality of the answers to the prompts of rows."""
    answers = decode(model, rows, seed, bound)
    tokens = list(map(without_end, answers))
    well_formed = [is_well_formed(row["prompt_ids"], ids) for row, ids in zip(rows, tokens, strict=True)]
    right = [ids[-2:-1] == [IDS[str(row["result"])]] for row, ids in zip(rows, tokens, strict=True)]
    return {
        "passes": sum(answer.nfe for answer in answers) / len(rows),
        "well_formed": sum(well_formed) / len(rows),
        "right": sum(right) / len(rows),
        "openings": len({tuple(ids[:3]) for ids in tokens}),
    }


def run_seed(seed: int, arguments: argparse.Namespace) -> None:
    folder = arguments.folder / str(seed)
    done = {(line["seed"], line["model"], line["bound"]) for line in read(arguments.output)}
    most = arguments.num_operations
    held_out = take(arguments.num_problems, 999, most, held_out=True)

    def note(model, name: str, bounds: list[float]) -> None:
        for bound in bounds:
            if (seed, name, bound) not in done:
                figures = {"seed": seed, "model": name, "bound": bound, **measure(model, held_out, seed, bound)}
                with arguments.output.open("a") as file:
                    file.write(json.dumps(figures) + "\n")
                print(figures, flush=True)

    def load(name: str):
        return DiffusionGemmaForBlockDiffusion.from_pretrained(folder / name).eval()

    teacher = make_model(seed, arguments.hidden, arguments.layers)
    for number, steps in enumerate(arguments.teacher_steps):
        name = f"teacher {number}"
        if not (folder / name / "model.safetensors").exists():
            rows = take(16 * steps, seed + 10 * number, most, held_out=False)
            lr = 2e-3 if number else 3e-3
            train(teacher, rows, folder / name, steps=steps, lr=lr, seed=seed, certainty_weight=0.0)
        teacher = load(name)
    note(teacher, "teacher", arguments.bounds)
    path = folder / "trajectories.json"
    if not path.exists():
        rows = take(arguments.num_trajectories, seed + 100, most, held_out=False)
        answers = decode(teacher, rows, seed + 1, BOUNDS[0])
        kept = [
            {"prompt_ids": row["prompt_ids"], "completion_ids": [*without_end(answer), EOS]}
            for row, answer in zip(rows, answers, strict=True)
            if arguments.keep_all or is_well_formed(row["prompt_ids"], without_end(answer))
        ]
        path.write_text(json.dumps(kept))
    rows = json.loads(path.read_text())
    print(f"seed {seed}: {len(rows)} trajectories", flush=True)
    for name in arguments.students:
        if not (folder / name / "model.safetensors").exists():
            steps = arguments.student_steps
            train(
                load(f"teacher {len(arguments.teacher_steps) - 1}"),
                rows,
                folder / name,
                steps=steps,
                lr=5e-4,
                seed=seed,
                **STUDENTS[name],
            )
        note(load(name), name, arguments.bounds)


def read(output: Path) -> list[dict]:
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def table(lines: list[dict]) -> str:
    """Returns the means over seeds, a row for each model and bound."""
    groups: dict[tuple, list[dict]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["bound"]), []).append(line)
    rows = []
    for (model, bound), group in groups.items():
        mean = {name: sum(line[name] for line in group) / len(group) for name in group[0] if name != "model"}
        quality = [f"{mean['well_formed']:.1%}", f"{mean['right']:.0%}", f"{mean['openings']:.0f}"]
        rows.append([model, bound, f"{mean['passes']:.1f}", *quality, len(group)])
    return markdown_table(["Model", "Bound", "Passes", "Good form", "Right", "Openings", "Seeds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    results = Path(__file__).parent / "results" / "uniform_noise.jsonl"
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, required=True, help="for models and trajectories")
    parser.add_argument("--output", type=Path, default=results, help="JSON lines, which are added to")
    parser.add_argument("--students", nargs="+", default=list(STUDENTS), choices=list(STUDENTS))
    parser.add_argument("--bounds", type=float, nargs="+", default=list(BOUNDS))
    parser.add_argument("--num_problems", type=int, default=200, help="held-out problems")
    parser.add_argument("--num_trajectories", type=int, default=320)
    parser.add_argument("--keep_all", action="store_true", help="keep trajectories in any form")
    parser.add_argument("--teacher_steps", type=int, nargs="+", default=[1200, 1600], help="of each round")
    parser.add_argument("--student_steps", type=int, default=160)
    parser.add_argument("--num_operations", type=int, default=1, help="the most of a sum")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        (arguments.folder / str(seed)).mkdir(parents=True, exist_ok=True)
        run_seed(seed, arguments)
    print(table(read(arguments.output)))


if __name__ == "__main__":
    main()
