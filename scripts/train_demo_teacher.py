# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trains a tiny LLaDA from scratch on arithmetic word problems: what the bundled teacher starts from.

    python scripts/train_demo_teacher.py --output_dir short_teacher

The loss is the mean cross-entropy over the scored masked tokens (Eq. 3 of https://huggingface.co/papers/2509.26488
without its 1/t weight, which only adds variance at this size). Each batch of 32 has

- 8 problems masked uniformly, as in LLaDA's fine-tuning;
- 8 as semi-autoregressive decoding leaves them: context, a partly masked block, then only masks;
- 12 as left-to-right decoding leaves them: masked from some token on, three times out of four a result, of which the
  next eight are scored;
- 4 rows of bare sums, whose results are masked.

The last two are there for the arithmetic. In the first two, a result is rarely masked while its operands are visible:
1,500 steps of them alone taught phrasing and copying but no sum. docs/research/bundled_model.md says how long it
takes.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from teacher.tokenizer import build_tokenizer
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig, LLaDAConfig, LLaDAForMaskedDiffusion
from hf_dparallel.demo.word_problems import WordProblem, draw_equation, generate_word_problems


MAX_NEW_TOKENS = 64
BLOCK_LENGTH = 32
WARMUP_STEPS = 100
SUMS_PER_DRILL = 10
# Uniform, semi-autoregressive, left-to-right, drills.
ROWS_BY_KIND = [8, 8, 12, 4]
STEPS_PER_LOG = 50
STEPS_PER_SAVE = 250


def build_model(
    tokenizer: PreTrainedTokenizerFast, max_sequence_length: int = 256, max_new_tokens: int = MAX_NEW_TOKENS
) -> LLaDAForMaskedDiffusion:
    """Builds a LLaDA of 1.3M parameters."""
    config = LLaDAConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        n_layers=6,
        n_heads=4,
        mlp_hidden_size=384,
        max_sequence_length=max_sequence_length,
        rope_theta=10000.0,
        mask_token_id=tokenizer.mask_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LLaDAForMaskedDiffusion(config)
    model.generation_config = DiffusionGenerationConfig(max_new_tokens=max_new_tokens, block_length=BLOCK_LENGTH)
    return model


def make_drill(rng: random.Random) -> WordProblem:
    """Draws ten sums as the answer to an empty question."""
    equations = [draw_equation(rng) for _ in range(SUMS_PER_DRILL)]
    return WordProblem("", " ".join(f"{a} {sign} {b} = {c} ." for a, sign, b, c in equations), 0)


def encode(problems: list[WordProblem], tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    """Left-pads the prompts and fills the answers with EOS up to `MAX_NEW_TOKENS`."""
    prompts = tokenizer.apply_chat_template(
        [[{"role": "user", "content": problem.question}] for problem in problems],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    completion_ids = torch.full((len(problems), MAX_NEW_TOKENS), tokenizer.eos_token_id)
    for row, problem in zip(completion_ids, problems, strict=True):
        answer = tokenizer(problem.solution, return_tensors="pt")["input_ids"][0]
        row[: len(answer)] = answer
    return {
        "prompt_ids": prompts["input_ids"],
        "completion_ids": completion_ids,
        "attention_mask": torch.cat([prompts["attention_mask"], torch.ones_like(completion_ids)], dim=1),
    }


def draw_masked(completion_ids: torch.Tensor, equals_id: int, generator: torch.Generator) -> list[torch.BoolTensor]:
    """Draws which completion tokens are masked and which of those are scored, both `(batch_size, MAX_NEW_TOKENS)`."""
    uniform, semi_autoregressive, left_to_right, drills = completion_ids.split(ROWS_BY_KIND)
    pairs = [
        mask_at_random(uniform, generator),
        _mask_block(semi_autoregressive, generator),
        mask_from_cut(left_to_right, equals_id, generator),
        mask_results(drills, equals_id),
    ]
    return [torch.cat(parts) for parts in zip(*pairs, strict=True)]


def mask_at_random(ids: torch.Tensor, generator: torch.Generator) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Masks a fraction of each row, drawn anew for each; what is masked is scored."""
    ratio = torch.rand(len(ids), 1, generator=generator) * 0.98 + 0.02
    masked = torch.rand(ids.shape, generator=generator) < ratio
    return masked, masked


def _mask_block(ids: torch.Tensor, generator: torch.Generator) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    drawn, _ = mask_at_random(ids, generator)
    active = torch.randint(MAX_NEW_TOKENS // BLOCK_LENGTH, (len(ids), 1), generator=generator)
    block = torch.arange(MAX_NEW_TOKENS)[None] // BLOCK_LENGTH
    masked = ((block == active) & drawn) | (block > active)
    return masked, masked


def mask_from_cut(
    ids: torch.Tensor, equals_id: int, generator: torch.Generator
) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Masks each row from some token on, three times out of four a result, and scores the next eight."""
    rows, length = ids.shape
    anywhere = torch.randint(length, (rows, 1), generator=generator)
    # A row without a result is cut anywhere.
    is_equals = (ids == equals_id).float() + 1e-9
    at_result = torch.multinomial(is_equals, 1, generator=generator) + 1
    cut = torch.where(torch.rand(rows, 1, generator=generator) < 0.75, at_result, anywhere)
    position = torch.arange(length)[None]
    return position >= cut, (position >= cut) & (position < cut + 8)


def mask_results(ids: torch.Tensor, equals_id: int) -> tuple[torch.BoolTensor, torch.BoolTensor]:
    """Masks all results of each row."""
    masked = (ids == equals_id).roll(1, dims=1)
    return masked, masked


def split_parameters(model: PreTrainedModel) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Returns the blocks' matrices, which Muon trains, and all other parameters: embedding, head and norms."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    ids = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in model.parameters() if id(parameter) not in ids]


def build_optimizers(
    model: PreTrainedModel, num_steps: int
) -> list[tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]]:
    """Builds Muon for the blocks' matrices, AdamW for embedding, head and norms; warm-up, then linear decay.

    After 900 steps the loss was 1.25 with Muon and 1.57 with AdamW alone (learning rate 2e-3).
    """
    matrices, others = split_parameters(model)
    optimizers = (
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    )

    def scale(step: int) -> float:
        return min((step + 1) / WARMUP_STEPS, (num_steps - step) / max(num_steps - WARMUP_STEPS, 1))

    return [(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, scale)) for optimizer in optimizers]


def training_loss(
    model: LLaDAForMaskedDiffusion,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[WordProblem],
    generator: torch.Generator,
) -> torch.Tensor:
    """Averages cross-entropy over scored tokens."""
    batch = encode(problems, tokenizer)
    masked, scored = draw_masked(batch["completion_ids"], tokenizer.convert_tokens_to_ids("="), generator)
    noisy_ids = batch["completion_ids"].masked_fill(masked, model.config.mask_token_id)
    logits = model(
        input_ids=torch.cat([batch["prompt_ids"], noisy_ids], dim=1),
        attention_mask=batch["attention_mask"],
        logits_to_keep=pad(scored, (batch["prompt_ids"].shape[1], 0), value=False),
    ).logits
    return cross_entropy(logits, batch["completion_ids"][scored])


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, log: list, output_dir: Path) -> None:
    """Writes the model in bf16, its tokenizer and the loss curve."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    (output_dir / "training_log.json").write_text("\n".join(json.dumps(entry) for entry in log) + "\n")


class TeacherTraining:
    """Trains a teacher from a seed; a run that was stopped goes on where it last saved.

    Args:
        args ([`~argparse.Namespace`]): `output_dir`, `num_steps` and `seed`.
        build_model (`Callable`): makes the model, given the tokenizer.
        rows_by_kind (`list[int]`): rows of a batch; the last kind are drills.
        batch_loss (`Callable`): the loss, given the model, the tokenizer, the problems of a batch and a generator.
        tokenizer ([`~transformers.PreTrainedTokenizerFast`], *optional*): by default a new one.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        build_model: Callable[[PreTrainedTokenizerFast], PreTrainedModel],
        rows_by_kind: list[int],
        batch_loss: Callable[..., torch.Tensor],
        tokenizer: PreTrainedTokenizerFast | None = None,
    ):
        torch.manual_seed(args.seed)
        self.args = args
        self.tokenizer = tokenizer or build_tokenizer()
        self.model = build_model(self.tokenizer)
        self.batch_loss = batch_loss
        *num_problems, self.num_drills = rows_by_kind
        self.num_problems = sum(num_problems)
        self.optimizers = build_optimizers(self.model, args.num_steps)
        self.generator = torch.Generator().manual_seed(args.seed)
        self.rng = random.Random(args.seed)
        self.step, self.seconds, self.log = 0, 0.0, []
        self.state_path = args.output_dir / "training_state.pt"
        if self.state_path.exists():
            self._load()
        self.problems = generate_word_problems(args.seed, split="train")
        for _ in islice(self.problems, self.step * self.num_problems):
            pass

    def run(self) -> None:
        """Trains up to the last step, and saves every 250 steps."""
        print(f"{self.model.num_parameters():,} parameters, from step {self.step}", flush=True)
        recent_losses, start = [], time.time() - self.seconds
        while self.step < self.args.num_steps:
            recent_losses.append(self._train_step())
            self.step, self.seconds = self.step + 1, time.time() - start
            if self.step % STEPS_PER_LOG == 0:
                mean_loss = sum(recent_losses) / len(recent_losses)
                self.log.append({"step": self.step, "loss": round(mean_loss, 4), "seconds": round(self.seconds)})
                recent_losses.clear()
                print(json.dumps(self.log[-1]), flush=True)
            if self.step % STEPS_PER_SAVE == 0:
                self._save()
        save(self.model, self.tokenizer, self.log, self.args.output_dir)
        self.state_path.unlink(missing_ok=True)

    def _train_step(self) -> float:
        examples = [*islice(self.problems, self.num_problems), *(make_drill(self.rng) for _ in range(self.num_drills))]
        loss = self.batch_loss(self.model, self.tokenizer, examples, self.generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, scheduler in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return loss.item()

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [[part.state_dict() for part in pair] for pair in self.optimizers],
            "generator": self.generator.get_state(),
            "rng": self.rng.getstate(),
            "progress": (self.step, self.seconds, self.log),
        }
        self.args.output_dir.mkdir(parents=True, exist_ok=True)
        temporary = self.state_path.with_suffix(".new")
        torch.save(state, temporary)
        temporary.replace(self.state_path)

    def _load(self) -> None:
        state = torch.load(self.state_path)
        self.model.load_state_dict(state["model"])
        for pair, saved in zip(self.optimizers, state["optimizers"], strict=True):
            for part, part_state in zip(pair, saved, strict=True):
                part.load_state_dict(part_state)
        self.generator.set_state(state["generator"])
        self.rng.setstate(state["rng"])
        self.step, self.seconds, self.log = state["progress"]


def make_parser(description: str, num_steps: int) -> argparse.ArgumentParser:
    """Makes the parser of a script that trains a teacher."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_steps", type=int, default=num_steps)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    arguments = make_parser(__doc__.splitlines()[0], num_steps=4800).parse_args()
    TeacherTraining(arguments, build_model, ROWS_BY_KIND, training_loss).run()
