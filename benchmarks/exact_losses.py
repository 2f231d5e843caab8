# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Four weightings of the masks in the loss of exact decoding: same answers, same steps, several seeds.

    python benchmarks/exact_losses.py --output_dir exact_losses

A Llama of 1.4 M random weights, taught to write requests as JSON, answers the training prompts. Adapters learn from
these answers, each chooses its threshold on tuning prompts, and test prompts of other wordings tell in how many passes
its answers come, and whether they are the Llama's. Every pass has all masks, so no figure depends on the machine. Each
adapter writes a file of its own and is not repeated; `summary.json` has them all, and compares them by wording.
"""

import itertools
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser

import exact
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import write_json
from hf_dparallel.training.objective import IGNORE_INDEX, RowTerms, TokenTerms, mean_by_row
from hf_dparallel.training.window_collator import WindowCollator


THRESHOLDS = (0.02, 0.05, 0.1, 0.2)
LOSSES = ("uniform", "decay-0.8", "dpace-0.1", "auf")


@dataclass
class Arguments(exact.Arguments):
    """What is measured."""

    losses: list[str] = field(default_factory=lambda: list(LOSSES), metadata={"help": "Weightings of the masks."})
    adapter_rates: list[float] = field(default_factory=lambda: [3e-3], metadata={"help": "Of the adapters."})
    certainty_weights: list[float] = field(default_factory=lambda: [2.0, 0.0])
    tasks: list[str] = field(default_factory=lambda: ["requests"])
    rates: list[float] = field(default_factory=lambda: [1e-3], metadata={"help": "Of the fine-tuning."})
    bf16: bool = False
    teach_steps: int = 600
    teach_rows: int = 16
    prompts: int = 1600
    tuning_prompts: int = 40
    test_prompts: int = 320
    steps: int = 250
    decode_batch: int = 80


def weights_of(loss: str, terms: TokenTerms, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the weights of a batch of windows, of the shape of its labels, by the name of a weighting.

    "uniform"; "decay-0.8", that of the collator: 0.8 of the mask before; "dpace-0.1": the expected number of accepted
    drafts from a mask on, by probabilities smoothed by 0.1 (https://huggingface.co/papers/2605.18810); "auf": 1 up to
    the first wrong prediction, and 0 behind it (https://huggingface.co/papers/2607.01893).
    """
    labels = batch["labels"]
    places = batch["position_ids"] - batch["window_start"]
    size = int(places.max()) + 1
    name, _, number = loss.partition("-")

    def in_windows(values: torch.Tensor) -> torch.Tensor:
        every_mask = torch.zeros(labels.shape).masked_scatter(labels != IGNORE_INDEX, values)
        return every_mask.unflatten(1, (-1, size))

    if name == "uniform":
        return torch.ones(labels.shape)
    if name == "decay":
        return float(number) ** places
    if name == "dpace":
        probabilities = (-terms.losses[:, 0].detach()).exp()
        smoothed = (1 - float(number)) * probabilities + float(number)
        is_accepted = in_windows(smoothed).cumprod(dim=-1)
        return is_accepted.flip(-1).cumsum(dim=-1).flip(-1).flatten(1)
    if name == "auf":
        is_accepted = in_windows(terms.counted[:, 1].float()).cumprod(dim=-1)
        first = torch.ones_like(is_accepted[..., :1])
        return torch.cat([first, is_accepted[..., :-1]], dim=-1).flatten(1)
    raise ValueError(f"loss is {loss!r}, but must be uniform, decay-X, dpace-X or auf.")


class Bench(exact.Bench):
    """Trains and checks an adapter of each weighting."""

    args: Arguments

    def check_loss(self, loss: str, seed: int, certainty_weight: float, rate: float) -> dict[str, Any]:
        """Trains an adapter, and counts the passes of its answers to the test prompts."""
        args = self.args
        (task,) = args.tasks
        run = exact.Run(task, args.block_lengths[0], certainty_weight, seed, args.ranks[0], args.steps)

        def average(collator: WindowCollator, terms: TokenTerms, batch: dict[str, Any]) -> RowTerms:
            return mean_by_row(terms, batch["labels"], weights_of(loss, terms, batch))

        def make() -> dict[str, Any]:
            WindowCollator.average = average
            self.adapter_rate = rate
            trained = self._train(run)
            student = self.student(run, torch.float32)

            prompts, _ = self.prompts(task, "tune", args.tuning_prompts)
            tuning = {t: exact.ratio(self._decode(student, prompts, t)) for t in THRESHOLDS}
            threshold = max(tuning, key=lambda t: tuning[t])

            prompts, references = self.prompts(task, "test", args.test_prompts)
            expected = self.answers(task, "test", args.test_prompts)["answers"]
            rows = self._decode(student, prompts, threshold)
            outcomes = []
            for reference, answer, row in zip(references, expected, rows, strict=True):
                outcome = {"wording": reference["wording"], "passes": row.nfe, "tokens": row.num_tokens}
                outcome["equal"] = row.tokens[: row.num_tokens].tolist() == answer
                outcomes.append(outcome)

            result = {"loss": loss, "seed": seed, "certainty_weight": certainty_weight, "rate": rate}
            result |= {"steps": args.steps, "history": trained["history"][-1:]}
            result |= {"tuning": tuning, "threshold": threshold}
            result |= {"prompts": len(prompts), "equal": sum(outcome["equal"] for outcome in outcomes)}
            return result | {"tokens_per_pass": exact.ratio(rows), "outcomes": outcomes}

        return self.once(f"loss-{loss}-s{seed}-b{certainty_weight:g}-l{rate:g}-n{args.steps}", make)

    def _decode(self, student: Any, prompts: list[list[int]], threshold: float) -> list:
        limit = exact.LENGTHS[self.args.tasks[0]]
        with exact.drafting_all():
            return exact.decode(student, prompts, limit, threshold, self.args.decode_batch)


def paired(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how many times the tokens a pass of others some adapters have, by the same seeds and prompts.

    With the 95 % bootstrap interval over wordings, drawn again 1,000 times, and the ratio of each seed.
    """
    passes: dict[int, list[int]] = {}
    by_seed = []
    for mine, other in zip(ours, theirs, strict=True):
        sums = [0, 0]
        for a, b in zip(mine["outcomes"], other["outcomes"], strict=True):
            of_wording = passes.setdefault(a["wording"], [0, 0])
            for index, outcome in enumerate((a, b)):
                of_wording[index] += outcome["passes"]
                sums[index] += outcome["passes"]
        # The answers are the same, and so are the tokens.
        by_seed.append(sums[1] / sums[0])

    def ratio(groups: list[list[int]]) -> float:
        return sum(theirs for _, theirs in groups) / sum(mine for mine, _ in groups)

    groups = list(passes.values())
    draws = sorted(ratio(random.Random(seed).choices(groups, k=len(groups))) for seed in range(1000))
    return {"ratio": ratio(groups), "interval": [draws[25], draws[974]], "by_seed": by_seed}


def compare(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares each weighting with that of the collator, and certainty weights with 0, at the seeds that both have."""
    by_key: dict[tuple, dict[int, dict[str, Any]]] = {}
    for result in results:
        key = (result["loss"], result["certainty_weight"], result["rate"], result["steps"])
        by_key.setdefault(key, {})[result["seed"]] = result

    comparisons = {}
    for first, second in itertools.permutations(by_key, 2):
        is_of_losses = second[0] == "decay-0.8" and first[1:] == second[1:]
        is_of_certainty = second[1] == 0 and first == (second[0], first[1], *second[2:])
        seeds = sorted(by_key[first].keys() & by_key[second].keys())
        if (is_of_losses or is_of_certainty) and seeds:
            name = " against ".join("{}, certainty {:g}, rate {:g}, {} steps".format(*key) for key in (first, second))
            pair = paired([by_key[first][s] for s in seeds], [by_key[second][s] for s in seeds])
            comparisons[name] = {"seeds": seeds} | pair
    return comparisons


def summarize(folder: Path, command: str) -> dict[str, Any]:
    """Writes the results of a folder as one file; the outcomes of each prompt are numbers in a text."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("loss-*.json"))]
    for result in results:
        result["interval"] = exact.interval(result["outcomes"])
    comparisons = compare(results)
    for result in results:
        outcomes = result["outcomes"]
        result["outcomes"] = {key: " ".join(str(int(row[key])) for row in outcomes) for key in outcomes[0]}

    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    summary = {"command": command, "machine": machine, "comparisons": comparisons, "rows": results}
    write_json(summary, folder / "summary.json")
    return summary


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    bench = Bench(args)
    bench.prepare()
    bench.once("machine", describe_environment)
    grid = itertools.product(args.adapter_rates, args.certainty_weights, range(args.seeds), args.losses)
    for rate, certainty_weight, seed, loss in grid:
        bench.check_loss(loss, seed, certainty_weight, rate)

    for name, pair in summarize(args.output_dir, " ".join(sys.argv))["comparisons"].items():
        print("{}: {:.3f} ({:.3f} to {:.3f})".format(name, pair["ratio"], *pair["interval"]), pair["by_seed"])


if __name__ == "__main__":
    main()
