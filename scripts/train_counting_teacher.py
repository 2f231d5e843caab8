# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trains the bundled teacher: a tiny LLaDA for conversations about counting things.

    python scripts/train_demo_teacher.py --output_dir short_teacher
    python scripts/train_counting_teacher.py --output_dir counting_teacher --init_from short_teacher

The loss is the mean cross-entropy over the scored masked tokens (Eq. 3 of https://huggingface.co/papers/2509.26488
without its 1/t weight, which only adds variance at this size). The 21 rows of a step are in one of five states:

- masked uniformly, as in LLaDA's fine-tuning;
- as semi-autoregressive decoding leaves them: context, a block masked in part or as a whole, then only masks;
- as left-to-right decoding leaves them: masked from some token on, mostly a number or the start of a sentence, of
  which the next eight are scored;
- problems whose operands are masked;
- rows of bare sums, whose results are masked.

Where a result is masked, so is its copy in the next sum: else the model would read it there and learn to copy and not
to add. Rows end with the open block and a random number of masked blocks, up to the full length, because that is all
that decoding shows the model; rows of about the same length are computed together.

A run that was stopped goes on where it was when the same command is given again. Each step draws its rows from the
seed and its number, so the result is the same. `before_decay.pt` is the state before the learning rate falls: copied
over `state.pt`, it lets a run with more steps go on from there.
"""

import argparse
import copy
import json
import random
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from teacher.conversations import Conversation, generate_conversations
from teacher.tokenizer import build_conversation_tokenizer
from torch.nn.functional import cross_entropy, pad
from train_demo_teacher import BLOCK_LENGTH, SUMS_PER_DRILL, split_parameters
from train_demo_teacher import build_model as build_llada
from transformers import PreTrainedTokenizerFast

from hf_dparallel import LLaDAForMaskedDiffusion
from hf_dparallel.demo.word_problems import draw_equation


NUM_BLOCKS = 8
CANVAS = NUM_BLOCKS * BLOCK_LENGTH
CONVERSATIONS, DRILLS, ROWS_AT_ONCE = 18, 3, 3
KINDS = {"problem": 0.57, "follow-up": 0.15, "later": 0.06, "sum": 0.03, "small talk": 0.05, "other": 0.14}
# Most problems have six steps or more, once all lengths occur. The first ones have one step: to find the right
# number of a question is learned on them in a hundred training steps, and was not on a mixture of all lengths in a
# thousand.
STEPS = [0, *(1, 2, 3, 4, 5) * 3, *(6, 7) * 5, *(8,) * 12]
TRAINING_STEPS_PER_LENGTH = 150
WARMUP_STEPS = 50
LEARNING_RATES = {"muon": 0.006, "adamw": 1e-3}
# The weights that are saved are a moving average over about a hundred steps, which are good before the decay too.
AVERAGE_DECAY = 0.99
STEPS_PER_LOG, STEPS_PER_SAVE = 20, 100


class Row(NamedTuple):
    """One row of a batch, prompt and reply: its tokens, the same with masks, and which of them are scored."""

    ids: torch.LongTensor
    noisy_ids: torch.LongTensor
    scored: torch.BoolTensor


def build_model(tokenizer: PreTrainedTokenizerFast) -> LLaDAForMaskedDiffusion:
    """A LLaDA of 1.4 million parameters, of the shape of the demo's teacher."""
    return build_llada(tokenizer, max_sequence_length=768, max_new_tokens=CANVAS)


def copy_weights(model: LLaDAForMaskedDiffusion, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Starts from a teacher of the same shape; words that it does not know keep their random embeddings."""
    weights = LLaDAForMaskedDiffusion.from_pretrained(folder, dtype=torch.float32).state_dict()
    old_ids = PreTrainedTokenizerFast.from_pretrained(folder).get_vocab()
    pairs = [(index, old_ids[word]) for word, index in tokenizer.get_vocab().items() if word in old_ids]
    new_rows, old_rows = torch.tensor(pairs).T
    for name, parameter in model.state_dict().items():
        if parameter.shape == weights[name].shape:
            parameter.copy_(weights[name])
        else:
            parameter[new_rows] = weights[name][old_rows]


def draw_rows(seed: int, step: int, tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """The rows of one step, the shortest first."""
    rng = random.Random(f"{seed} {step}")
    steps = [length for length in STEPS if length <= 1 + step // TRAINING_STEPS_PER_LENGTH]
    conversations = generate_conversations(rng.getrandbits(32), kinds=KINDS, steps=steps)
    rows = [make_row(conversation, tokenizer, rng) for conversation in islice(conversations, CONVERSATIONS)]
    rows += [make_row(make_drill(rng), tokenizer, rng) for _ in range(DRILLS)]
    return sorted(rows, key=lambda row: len(row.ids))


def make_drill(rng: random.Random) -> Conversation:
    """Ten sums as the answer to an empty question."""
    equations = [draw_equation(rng, largest=rng.choice((9, 9, 20))) for _ in range(SUMS_PER_DRILL)]
    reply = " ".join(f"{a} {sign} {b} = {c} ." for a, sign, b, c in equations)
    return Conversation(({"role": "user", "content": ""},), reply, "drill")


def make_row(conversation: Conversation, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Draws the state in which decoding, or uniform masking, shows a conversation."""
    prompt = tokenizer.apply_chat_template(
        list(conversation.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"][0]
    words = tokenizer(conversation.reply, return_tensors="pt")["input_ids"][0]
    reply = pad(words, (0, CANVAS - len(words)), value=tokenizer.eos_token_id)
    masked, scored, num_blocks = draw_masked(reply, len(words), conversation.kind, tokenizer, rng)
    columns = slice(0, num_blocks * BLOCK_LENGTH)
    noisy_ids = reply.masked_fill(masked, tokenizer.mask_token_id)[columns]
    return Row(
        torch.cat([prompt, reply[columns]]),
        torch.cat([prompt, noisy_ids]),
        pad(scored[columns], (len(prompt), 0), value=False),
    )


def draw_masked(
    reply: torch.LongTensor, num_words: int, kind: str, tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> tuple[torch.BoolTensor, torch.BoolTensor, int]:
    """Which tokens of a reply are masked, which of those are scored, and how many blocks the row has."""
    position = torch.arange(CANVAS)
    num_blocks = num_words // BLOCK_LENGTH + 1
    # A worked answer tells its start, then four numbers a step (6 more: 14 + 6 = 20), and the last result once more.
    numbers = (reply >= tokenizer.convert_tokens_to_ids("0")).nonzero()[:, 0]
    if kind == "drill":
        masked = torch.isin(position, numbers[2::3])
        return masked, masked, num_blocks
    steps = numbers[1:-1].view(-1, 4) if kind in ("problem", "follow-up") else numbers.new_empty(0, 4)
    copies = torch.cat([steps[1:, 1], numbers[-1:]])[: len(steps)]
    draws = torch.rand(CANVAS, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
    draws[copies] = draws[steps[:, 3]]
    state = rng.random()
    if state < 0.2 and len(steps):
        chosen = draws[steps[:, 0]] < rng.choice((0.5, 1.0))
        chosen[rng.randrange(len(steps))] = True
        scored = torch.isin(position, steps[chosen][:, [0, 2]])
        hidden = torch.isin(position, torch.cat([steps[chosen][:, 3], copies[chosen]]))
        if rng.random() < 0.5:
            scored[numbers[0]] = hidden[steps[0, 1]] = True
        return scored | hidden, scored, num_blocks
    if state < 0.3:
        masked = draws < rng.uniform(0.02, 1.0)
        return masked, masked, num_blocks
    if state < 0.8:
        block = rng.randrange(num_blocks)
        start, end = block * BLOCK_LENGTH, (block + 1) * BLOCK_LENGTH
        # A block that is all masks is where decoding decides what kind of reply it is, and how many steps are left.
        ratio = torch.where(position < start, rng.choice((0.0, 0.15)), rng.choice((1.0, rng.uniform(0.02, 1.0))))
        scored = (position < end) & (draws < ratio)
        return scored | (position >= end), scored, min(block + 1 + draw_masked_blocks(rng), NUM_BLOCKS)
    sentences = (reply == tokenizer.convert_tokens_to_ids(".")).nonzero()[:, 0] + 1
    cuts = rng.choice([numbers[:1], *steps[:, [0, 3]].T, sentences] if len(steps) else [sentences])
    cut = int(cuts[rng.randrange(len(cuts))]) if len(cuts) and rng.random() < 0.8 else rng.randint(0, num_words)
    masked = position >= cut
    num_blocks = (cut + 7) // BLOCK_LENGTH + 1 + draw_masked_blocks(rng)
    return masked, masked & (position < cut + 8), min(num_blocks, NUM_BLOCKS)


def draw_masked_blocks(rng: random.Random) -> int:
    """How many masked blocks follow the open one: few most of the time, as each costs as much as a block of text."""
    kind = rng.random()
    return rng.randint(0, 1) if kind < 0.75 else rng.randint(0, 3) if kind < 0.96 else NUM_BLOCKS


def left_pad(tensors: list[torch.Tensor], value: int | bool) -> torch.Tensor:
    """Stacks tensors of different lengths."""
    width = max(map(len, tensors))
    return torch.stack([pad(tensor, (width - len(tensor), 0), value=value) for tensor in tensors])


def training_loss(model: LLaDAForMaskedDiffusion, rows: list[Row]) -> torch.Tensor:
    """The sum of the cross-entropies of the scored tokens."""
    ids, noisy_ids, scored = (left_pad(list(column), 0) for column in zip(*rows, strict=True))
    attention_mask = left_pad([torch.ones_like(row.ids) for row in rows], 0)
    logits = model(input_ids=noisy_ids, attention_mask=attention_mask, logits_to_keep=scored).logits
    return cross_entropy(logits, ids[scored], reduction="sum")


class Muon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon/) in float32, all matrices of one shape together.

    `torch.optim.Muon` works in bf16, one matrix after the other: on a CPU without instructions for bf16 fifty times
    slower than this.
    """

    def __init__(
        self, matrices: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Moves each matrix along its orthogonalized momentum."""
        (group,) = self.param_groups
        by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in group["params"]:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        for (rows, columns), matrices in by_shape.items():
            updates = orthogonalize(torch.stack([self._nesterov(matrix, group["momentum"]) for matrix in matrices]))
            updates *= max(1.0, rows / columns) ** 0.5
            for matrix, update in zip(matrices, updates, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])

    def _nesterov(self, matrix: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        average = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
        average.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(average, momentum)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices of the same singular vectors, all singular values near 1, by five Newton-Schulz steps."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.mT
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide.mT if is_tall else wide


class Training:
    """Model, average and optimizers, with their checkpoints."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.step, self.log = args, 0, []
        torch.manual_seed(args.seed)
        self.tokenizer = build_conversation_tokenizer()
        self.model = build_model(self.tokenizer)
        if args.init_from:
            copy_weights(self.model, self.tokenizer, args.init_from)
        self.average = copy.deepcopy(self.model)
        matrices, others = split_parameters(self.model)
        self.optimizers = {
            "muon": Muon(matrices, lr=LEARNING_RATES["muon"]),
            "adamw": torch.optim.AdamW(others, lr=LEARNING_RATES["adamw"], betas=(0.9, 0.98), weight_decay=0.0),
        }

    def load(self) -> None:
        """Goes on from the last checkpoint, if there is one."""
        path = self.args.output_dir / "state.pt"
        if path.exists():
            state = torch.load(path)
            self.step, self.log = state["step"], state["log"]
            self.model.load_state_dict(state["model"])
            self.average.load_state_dict(state["average"])
            for optimizer, saved in zip(self.optimizers.values(), state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)

    def save(self) -> None:
        """Writes a checkpoint, and the averaged model in bf16 with its tokenizer and the loss curve."""
        folder = self.args.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers.values()],
            "step": self.step,
            "log": self.log,
        }
        is_before_decay = self.step <= self.args.num_steps - self.args.decay_steps
        for name in ("state.pt", "before_decay.pt") if is_before_decay else ("state.pt",):
            # An interruption leaves the former checkpoint whole.
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(folder / name)
        copy.deepcopy(self.average).to(torch.bfloat16).save_pretrained(folder / "model")
        self.tokenizer.save_pretrained(folder / "model")
        (folder / "model" / "training_log.json").write_text("".join(json.dumps(entry) + "\n" for entry in self.log))

    def train_step(self) -> tuple[float, int]:
        """Returns the mean loss of the scored tokens, and the number of all tokens."""
        rows = draw_rows(self.args.seed, self.step, self.tokenizer)
        num_scored = sum(int(row.scored.sum()) for row in rows)
        total = 0.0
        for start in range(0, len(rows), ROWS_AT_ONCE):
            loss = training_loss(self.model, rows[start : start + ROWS_AT_ONCE]) / num_scored
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = LEARNING_RATES[name] * self._scale()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for average, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.lerp_(parameter, 1 - AVERAGE_DECAY)
        self.step += 1
        return total, sum(len(row.ids) for row in rows)

    def _scale(self) -> float:
        """Warm-up, a constant, then a linear decay to zero."""
        left = self.args.num_steps - self.step
        return min((self.step + 1) / WARMUP_STEPS, 1.0, left / self.args.decay_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--init_from", type=Path, help="A teacher of the same shape to start from.")
    parser.add_argument("--num_steps", type=int, default=12000)
    parser.add_argument("--decay_steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    training = Training(parser.parse_args())
    training.load()
    print(f"{training.model.num_parameters():,} parameters, from step {training.step}", flush=True)
    losses, num_tokens, start = [], 0, time.time()
    while training.step < training.args.num_steps:
        loss, tokens = training.train_step()
        losses.append(loss)
        num_tokens += tokens
        if training.step % STEPS_PER_LOG == 0:
            training.log.append({"step": training.step, "loss": round(sum(losses) / len(losses), 4)})
            print(training.log[-1], f"{num_tokens / (time.time() - start):.0f} tokens/s", flush=True)
            losses.clear()
        if training.step % STEPS_PER_SAVE == 0 or training.step == training.args.num_steps:
            training.save()


if __name__ == "__main__":
    main()
