# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Trains a tiny autoregressive model that reads Roman numerals, and writes the data of docs/make_a_teacher.md.

    python examples/make_a_teacher/roman_numerals.py --output_dir runs/roman

The folder then has `base`, a Qwen3 (or a Llama: `--architecture llama`) of half a million parameters that transformers
loads, and three files of rows: `train.jsonl` with conversations, `prompts.jsonl` with questions for a teacher, and
`test.jsonl` with questions about numerals that neither of them has. One core takes about four minutes.

    What number is MCMXCIV?
    M is 1000, CM is 900, XC is 90, IV is 4. That is 1994.

As in natural text, every part of an answer has several wordings of different lengths. A model therefore cannot be sure
of later words before the earlier ones stand, though it may know what they will say.
"""

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils import clip_grad_norm_
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    get_cosine_schedule_with_warmup,
)


ARCHITECTURES = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
LARGEST = 3999
_DIGITS = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_PLACES = {1000: "M__", 100: "CDM", 10: "XLC", 1: "IVX"}
# The first wording outweighs each of the others, which together outweigh it.
QUESTIONS = ("What number is {numeral}?", "Read {numeral}, please.", "What do we write for {numeral} today?")
STEPS = (
    "{letters} is {value}",
    "for {letters} we write {value}",
    "we add {value} for {letters}",
    "the {letters} here makes {value}",
)
JOINTS = (", ", "; then ", " and next ")
ENDS = (". That is {number}.", ". Together we get {number}.", ", so the number is {number}.", ": {number}.")
WEIGHTS = (5, 3, 3, 3)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LEARNING_RATE, BATCH_SIZE = 3e-3, 32


def parts_of(number: int) -> list[tuple[str, int]]:
    """Returns the letters for each decimal place, with their values."""
    parts = []
    for place, (one, five, ten) in _PLACES.items():
        digit = number // place % 10
        letters = _DIGITS[digit].translate(str.maketrans("IVX", one + five + ten))
        parts += [(letters, digit * place)] if digit else []
    return parts


def draw_row(rng: random.Random, is_test: bool) -> dict[str, Any]:
    """Draws a question and an answer. Every eighth number, by a hash, is asked in tests only."""
    number = next(n for n in iter(lambda: rng.randint(1, LARGEST), 0) if (zlib.crc32(b"%d" % n) % 8 == 0) == is_test)
    parts = parts_of(number)

    def draw(wordings: tuple[str, ...], **words: Any) -> str:
        return rng.choices(wordings, WEIGHTS[: len(wordings)])[0].format(**words)

    question = rng.choice(QUESTIONS).format(numeral="".join(letters for letters, _ in parts))
    answer = ""
    for letters, value in parts:
        answer += (draw(JOINTS) if answer else "") + draw(STEPS, letters=letters, value=value)
    answer += draw(ENDS, number=number)
    prompt = {"role": "user", "content": question}
    return {"prompt": [prompt], "answer": str(number), "messages": [prompt, {"role": "assistant", "content": answer}]}


def draw_rows(seed: int, is_test: bool = False) -> Iterator[dict[str, Any]]:
    """Yields rows without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield draw_row(rng, is_test)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds a tokenizer of words, digits and numeral letters, without a mask token."""
    backend = Tokenizer(models.BPE())
    isolated = pre_tokenizers.Split(Regex(" ?[0-9CDILMVX]"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([isolated, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    names = ["<|end|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    texts = [message["content"] for row in islice(draw_rows(0), 500) for message in row["messages"]]
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=names[0], pad_token=names[0], chat_template=CHAT_TEMPLATE
    )


def build_model(architecture: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Builds a random model of 0.5M parameters."""
    config_class, model_class = ARCHITECTURES[architecture]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=24,
        intermediate_size=256,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model_class(config)


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, num_steps: int, seed: int) -> None:
    """Teaches the model to continue conversations from left to right."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_steps // 20, num_steps)
    rows = draw_rows(seed)
    for step in range(1, num_steps + 1):
        chats = [row["messages"] for row in islice(rows, BATCH_SIZE)]
        batch = tokenizer.apply_chat_template(chats, padding=True, return_tensors="pt", return_dict=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(**batch, labels=labels).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)


def write_rows(path: Path, rows: Iterator[dict[str, Any]], count: int, *columns: str) -> None:
    lines = [json.dumps({name: row[name] for name in columns}) for row in islice(rows, count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="qwen3")
    parser.add_argument("--num_steps", type=int, default=1000)
    parser.add_argument("--num_rows", type=int, default=16000, help="Conversations in train.jsonl.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(args.architecture, tokenizer)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_rows(args.output_dir / "train.jsonl", draw_rows(args.seed), args.num_rows, "messages")
    write_rows(args.output_dir / "prompts.jsonl", draw_rows(args.seed + 1), 1500, "prompt", "answer")
    write_rows(args.output_dir / "test.jsonl", draw_rows(args.seed, is_test=True), 800, "prompt", "answer")
    train(model, tokenizer, args.num_steps, args.seed)
    model.save_pretrained(args.output_dir / "base")
    tokenizer.save_pretrained(args.output_dir / "base")


if __name__ == "__main__":
    main()
