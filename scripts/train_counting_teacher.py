# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trains the bundled teacher: a tiny LLaDA for conversations about counting things.

    python scripts/train_counting_teacher.py --output_dir counting_teacher

The loss is the mean cross-entropy over the scored masked tokens (Eq. 3 of https://huggingface.co/papers/2509.26488
without its 1/t weight, which only adds variance at this size). The rows of a step are in one of five states:

- masked uniformly, as in LLaDA's fine-tuning;
- as semi-autoregressive decoding leaves them: context, a block masked in part or as a whole, then only masks;
- as left-to-right decoding leaves them: masked from some token on, mostly a number or the start of a sentence, of
  which the next eight are scored;
- problems whose operands are masked;
- rows of bare sums, later of questions with the worked answer to another one, whose results are masked: a result
  follows from its sum, even where the sum is not what the question asks for.

Where a result is masked, so is its copy in the next sum: else the model would read it there and learn to copy and not
to add. The copy alone may be masked: else it would be added up again. Rows end with the open block and a random number
of masked blocks, up to the full length, because that is all that decoding shows the model; rows of about the same
length are computed together.

Forward and backward passes are in bf16, on a copy of the float32 weights, and so is what Muon computes: CPUs with
instructions for bf16 (AVX512_BF16, AMX) are four times faster in it, others are much slower.

Each step draws its rows from the seed and its number.
"""

import argparse
import copy
import random
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from teacher.conversations import Conversation, draw_change, generate_conversations
from teacher.solutions import LARGEST_GIVEN, LARGEST_RESULT
from teacher.tokenizer import MEMORY, build_tokenizer
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig, LLaDAConfig, LLaDAForMaskedDiffusion


BLOCK_LENGTH = 32
# A reply to eight steps has at most 152 tokens where decoding writes it.
NUM_BLOCKS = 5
CANVAS = NUM_BLOCKS * BLOCK_LENGTH
CONVERSATIONS, TOKENS_AT_ONCE = 20, 2000
# Rows of bare sums before a third of the steps, and of exchanged answers after it.
DRILLS, EXCHANGES, SUMS_PER_DRILL = 8, 4, 10
# The embedding of a number starts as its place on circles of these circumferences, and so does its row of the head:
# sums are rotations there. After 350 steps of sums alone, 37 % of held-out sums were right with a token for each
# digit, 75 % with tokens for numbers, and 99.8 % on circles (81 % with a tenth of the size).
CIRCLES = (1, 2, 2.5, 5, 10, 20, 25, 50, 100, 200)
NUMBER_STD = 0.25
KINDS = {"problem": 0.55, "follow-up": 0.13, "later": 0.05, "sum": 0.10, "small talk": 0.04, "other": 0.13}
# In the second cycle. After the first, three tenths of the problems out of reach were answered with a number, and a
# fifth of the problems in a chat that had begun were wrong.
LATER_KINDS = KINDS | {"limit": 0.06, "later": 0.0, "chat": 0.2}
# By length, the share of the training after which it occurs. The first problems have one step: to find the right
# number of a question is learned on them in a hundred training steps, and was not on a mixture of all lengths in a
# thousand.
BEGINNINGS = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.1, 4: 0.2, 5: 0.2, 6: 0.3, 7: 0.3, 8: 0.3}
WEIGHTS = {0: 0.2, 1: 3.0, 2: 3.0, 3: 2.0, 4: 0.8, 5: 0.8, 6: 0.8, 7: 0.8, 8: 1.2}
WARMUP_STEPS = 50
# With 0.012 and 2e-3, and a decay of 0.01, the weights grew until gradients in bf16 were noise: a third of the answers
# were right after 14,000 steps.
LEARNING_RATES, WEIGHT_DECAY = {"muon": 0.005, "adamw": 8e-4}, 0.1
# The learning rate falls with the root of the steps after so many, and linearly to zero over this last share of each
# of two cycles, of which the first ends after so many steps.
HOT_STEPS, DECAY_SHARE, FIRST_CYCLE = 6000, 0.4, 24000
# The weights that are saved are a moving average over about a hundred steps, which are good before the decay too.
AVERAGE_DECAY = 0.99
STEPS_PER_SAVE = 100


class Row(NamedTuple):
    """One row of a batch, prompt and reply: its tokens, the same with masks, and which of them are scored."""

    ids: torch.LongTensor
    noisy_ids: torch.LongTensor
    scored: torch.BoolTensor


def build_model(tokenizer: PreTrainedTokenizerFast) -> LLaDAForMaskedDiffusion:
    """Builds a LLaDA of 2.9 million parameters."""
    config = LLaDAConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        n_layers=6,
        n_heads=4,
        mlp_hidden_size=384,
        max_sequence_length=768,
        rope_theta=10000.0,
        mask_token_id=tokenizer.mask_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LLaDAForMaskedDiffusion(config)
    model.generation_config = DiffusionGenerationConfig(max_new_tokens=CANVAS, block_length=BLOCK_LENGTH)
    return model


@torch.no_grad()
def place_numbers(model: LLaDAForMaskedDiffusion, tokenizer: PreTrainedTokenizerFast) -> None:
    """Gives numbers that are near each other, or end alike, similar embeddings."""
    first = tokenizer.convert_tokens_to_ids("0")
    angles = 2 * torch.pi * torch.arange(LARGEST_RESULT + 1)[:, None] / torch.tensor(CIRCLES)
    places = torch.cat([angles.cos(), angles.sin()], dim=1)
    for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
        axes = torch.randn(places.shape[1], embedding.weight.shape[1]) * NUMBER_STD / len(CIRCLES) ** 0.5
        embedding.weight[first : first + len(places)] = places @ axes


def draw_rows(seed: int, step: int, progress: float, tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """Draws a step's rows, the shortest first. `progress` is in the first cycle, and above 1 after it."""
    rng = random.Random(f"{seed} {step}")
    lengths = [length for length, beginning in BEGINNINGS.items() if beginning <= progress]
    steps = rng.choices(lengths, [WEIGHTS[length] for length in lengths], k=2 * CONVERSATIONS)
    kinds = KINDS if progress < 1 else LATER_KINDS
    conversations = generate_conversations(rng.getrandbits(32), kinds=kinds, steps=steps)
    rows = [make_row(conversation, tokenizer, rng) for conversation in islice(conversations, CONVERSATIONS)]
    drills = (
        [exchange(rng) for _ in range(EXCHANGES)] if progress > 1 / 3 else [make_drill(rng) for _ in range(DRILLS)]
    )
    rows += [make_row(drill, tokenizer, rng) for drill in drills]
    return sorted((row for row in rows if row), key=lambda row: len(row.ids))


def make_drill(rng: random.Random) -> Conversation:
    """Draws ten sums as the answer to an empty question."""
    reply = ""
    for _ in range(SUMS_PER_DRILL):
        start = rng.randint(0, rng.choice((20, LARGEST_GIVEN, LARGEST_RESULT)))
        sign, change, total = draw_change(rng, start)
        reply += f"{start} {sign} {change} = {total} . "
    return Conversation(({"role": "user", "content": ""},), reply, "drill")


def exchange(rng: random.Random) -> Conversation:
    """Pairs a problem with another's worked answer, which stops where the numbers end about every fourth time."""
    asked, *others = islice(generate_conversations(rng.getrandbits(32), steps=range(1, 5)), 8)
    stops = [other for other in others if other.answer is None]
    answered = stops[0] if stops and rng.random() < 0.5 else others[0]
    return Conversation(asked.messages, answered.reply, "exchange")


def make_row(conversation: Conversation, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row | None:
    """Draws the state in which decoding, or uniform masking, shows a conversation; none if its reply is too long."""
    prompt = tokenizer.apply_chat_template(
        list(conversation.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"][0]
    words = tokenizer(conversation.reply, return_tensors="pt")["input_ids"][0]
    if len(words) >= CANVAS:
        return None
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
    """Draws which tokens of a reply are masked, which of those are scored, and how many blocks the row has."""
    position = torch.arange(CANVAS)
    num_blocks = num_words // BLOCK_LENGTH + 1
    numbers = find_numbers(reply, tokenizer)
    num_steps = int((reply == tokenizer.convert_tokens_to_ids("=")).sum())
    if kind == "drill":
        masked = at([result for *_, result in zip(*[iter(numbers)] * 3, strict=True)])
        return masked, masked, num_blocks
    # A worked answer tells its start, then four numbers a step (6 more: 14 + 6 = 20), and the last result once more.
    steps = [numbers[1 + 4 * step : 5 + 4 * step] for step in range(num_steps)]
    copies = [*(step[1] for step in steps[1:]), *(numbers[-1:] if len(numbers) == 4 * num_steps + 2 else [])]
    copies = copies[: len(steps)]
    if kind == "exchange":
        is_stop = len(numbers) > 4 * num_steps + 2
        colons = (reply == tokenizer.convert_tokens_to_ids(":")).nonzero()[:, 0].tolist()
        # The sums decide the results, and the token with which an answer goes on or stops.
        cuts = [colons[-1] + 1] if is_stop else [step[place] for step in steps for place in (1, 3)]
        results = at([*(step[3] for step in steps), *copies])
        # The cut alone is scored, or less often the results are.
        if rng.random() >= 0.7:
            return results, results, num_blocks
        cut = rng.choice(cuts)
        return position >= cut, at([cut]), min(cut // BLOCK_LENGTH + 1 + draw_masked_blocks(rng), NUM_BLOCKS)
    draws = torch.rand(CANVAS, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
    for step, copied in zip(steps, copies, strict=False):
        draws[copied] = torch.minimum(draws[copied], draws[step[3]])
    state = rng.random()
    if state < 0.15 and steps:
        share = rng.choice((0.5, 1.0))
        chosen = [index for index in range(len(steps)) if rng.random() < share] or [rng.randrange(len(steps))]
        scored = at([steps[index][place] for index in chosen for place in (0, 2)])
        hidden = at([steps[index][3] for index in chosen] + [copies[index] for index in chosen if index < len(copies)])
        if rng.random() < 0.5:
            scored, hidden = scored | at(numbers[:1]), hidden | at([steps[0][1]])
        return scored | hidden, scored, num_blocks
    if state < 0.25:
        masked = draws < rng.uniform(0.02, 1.0)
        return masked, masked, num_blocks
    if state < 0.75:
        block = rng.randrange(num_blocks)
        start, end = block * BLOCK_LENGTH, (block + 1) * BLOCK_LENGTH
        # In a block of masks only, decoding decides what kind of reply it is, and how many steps are left.
        ratio = torch.where(position < start, rng.choice((0.0, 0.0, 0.15)), rng.choice((1.0, rng.uniform(0.02, 1.0))))
        scored = (position < end) & (draws < ratio)
        return scored | (position >= end), scored, min(block + 1 + draw_masked_blocks(rng), NUM_BLOCKS)
    sentences = ((reply == tokenizer.convert_tokens_to_ids(".")).nonzero()[:, 0] + 1).tolist()
    firsts = [[step[place] for step in steps] for place in (0, 3)]
    cuts = rng.choice([numbers[:1], *firsts, sentences] if steps else [sentences])
    cut = rng.choice(cuts) if cuts and rng.random() < 0.8 else rng.randint(0, num_words)
    masked = position >= cut
    num_blocks = (cut + 7) // BLOCK_LENGTH + 1 + draw_masked_blocks(rng)
    return masked, masked & (position < cut + 8), min(num_blocks, NUM_BLOCKS)


def find_numbers(reply: torch.LongTensor, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Returns the numbers' places."""
    return (reply >= tokenizer.convert_tokens_to_ids("0")).nonzero()[:, 0].tolist()


def at(places: list[int]) -> torch.BoolTensor:
    """Makes a mask of places."""
    mask = torch.zeros(CANVAS, dtype=torch.bool)
    mask[places] = True
    return mask


def draw_masked_blocks(rng: random.Random) -> int:
    """Draws how many masked blocks follow the open one: mostly few, as each costs as much as a block of text."""
    kind = rng.random()
    return rng.randint(0, 1) if kind < 0.8 else rng.randint(0, 3) if kind < 0.97 else NUM_BLOCKS


def split_rows(rows: list[Row]) -> list[list[Row]]:
    """Batches sorted rows, so that each batch has at most about `TOKENS_AT_ONCE` tokens with padding."""
    batches: list[list[Row]] = [[]]
    for row in rows:
        if batches[-1] and (len(batches[-1]) + 1) * len(row.ids) > TOKENS_AT_ONCE:
            batches.append([])
        batches[-1].append(row)
    return batches


def left_pad(tensors: list[torch.Tensor], value: int | bool) -> torch.Tensor:
    """Stacks tensors of different lengths."""
    width = max(map(len, tensors))
    return torch.stack([pad(tensor, (width - len(tensor), 0), value=value) for tensor in tensors])


def training_loss(model: LLaDAForMaskedDiffusion, rows: list[Row]) -> torch.Tensor:
    """Sums the cross-entropies of the scored tokens."""
    ids, noisy_ids, scored = (left_pad(list(column), 0) for column in zip(*rows, strict=True))
    attention_mask = left_pad([torch.ones_like(row.ids) for row in rows], 0)
    logits = model(input_ids=noisy_ids, attention_mask=attention_mask, logits_to_keep=scored).logits
    return cross_entropy(logits.float(), ids[scored], reduction="sum")


class Training:
    """Model, average and optimizers."""

    def __init__(self, num_steps: int, seed: int):
        self.num_steps, self.seed, self.step = num_steps, seed, 0
        self.first_cycle = min(FIRST_CYCLE, num_steps)
        torch.manual_seed(seed)
        self.tokenizer = build_tokenizer()
        self.model = build_model(self.tokenizer)
        place_numbers(self.model, self.tokenizer)
        self.average = copy.deepcopy(self.model)
        self.fast = copy.deepcopy(self.model).bfloat16()
        # The backward pass of the default takes half of all time here.
        self.fast.set_attn_implementation("eager")
        # Muon trains the blocks' matrices, AdamW embedding, head and norms.
        matrices = [parameter for parameter in self.model.model.layers.parameters() if parameter.ndim == 2]
        ids = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in ids]
        self.optimizers = {
            "muon": torch.optim.Muon(matrices, lr=LEARNING_RATES["muon"], weight_decay=WEIGHT_DECAY),
            "adamw": torch.optim.AdamW(others, lr=LEARNING_RATES["adamw"], betas=(0.9, 0.98), weight_decay=0.0),
        }

    def save(self, folder: Path) -> None:
        """Writes the averaged model in bf16 with its tokenizer."""
        copy.deepcopy(self.average).to(torch.bfloat16).save_pretrained(folder)
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.chat_template = f"{MEMORY}{tokenizer.chat_template}"
        tokenizer.save_pretrained(folder)

    def train_step(self) -> float:
        """Returns the mean loss of the scored tokens."""
        rows = draw_rows(self.seed, self.step, self.step / self.first_cycle, self.tokenizer)
        num_scored = sum(int(row.scored.sum()) for row in rows)
        total = 0.0
        for batch in split_rows(rows):
            loss = training_loss(self.fast, batch) / num_scored
            loss.backward()
            total += loss.item()
        for parameter, fast in zip(self.model.parameters(), self.fast.parameters(), strict=True):
            parameter.grad, fast.grad = fast.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = LEARNING_RATES[name] * self._scale()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            models = (model.parameters() for model in (self.average, self.model, self.fast))
            for average, parameter, fast in zip(*models, strict=True):
                average.lerp_(parameter, 1 - AVERAGE_DECAY)
                fast.copy_(parameter)
        self.step += 1
        return total

    def _scale(self) -> float:
        """Scales by warm-up, a constant, decay with the root of the steps, and to zero at the end of each cycle."""
        is_first = self.step < self.first_cycle
        start, end = (0, self.first_cycle) if is_first else (self.first_cycle, self.num_steps)
        rising = min((self.step - start + 1) / WARMUP_STEPS, 1.0)
        left = (end - self.step) / (end - start)
        return min(rising, (HOT_STEPS / (self.step + 1)) ** 0.5) * min(left / DECAY_SHARE, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_steps", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    training = Training(args.num_steps, args.seed)
    # A third faster, after two minutes.
    training.fast.compile(dynamic=True)
    losses = []
    while training.step < args.num_steps:
        losses.append(training.train_step())
        if training.step % STEPS_PER_SAVE == 0 or training.step == args.num_steps:
            print(f"step {training.step}: loss {sum(losses) / len(losses):.4f}", flush=True)
            losses.clear()
            training.save(args.output_dir / "model")


if __name__ == "__main__":
    main()
