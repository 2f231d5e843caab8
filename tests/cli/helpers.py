# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the commands of these tests decode, and what they should answer."""

from functools import cache

from transformers import AutoModelForMaskedLM

from hf_dparallel import DiffusionGenerationMixin, enable_diffusion_generation

from ..helpers import make_tokenizer, write_jsonl


DECODING = ["--max_new_tokens", "8", "--block_length", "4", "--entropy_threshold", "1.0"]


@cache
def load(checkpoint: str):
    """Returns the model of a checkpoint, loaded once."""
    model = AutoModelForMaskedLM.from_pretrained(checkpoint)
    if not isinstance(model, DiffusionGenerationMixin):
        enable_diffusion_generation(model, make_tokenizer().mask_token_id)
    return model


def answer(checkpoint: str, *messages: str, **settings) -> tuple[str, int]:
    """Returns the answer of `generate` to a conversation, and the number of passes."""
    tokenizer, model = make_tokenizer(), load(checkpoint)
    chat = [{"role": "user", "content": message} for message in messages]
    ids = tokenizer.apply_chat_template(chat, return_dict=True, return_tensors="pt")["input_ids"]
    settings = {"max_new_tokens": 8, "block_length": 4, "entropy_threshold": 1.0} | settings
    out = model.generate(ids, return_dict_in_generate=True, **settings)
    return tokenizer.decode(out.sequences[0, ids.shape[1] :], skip_special_tokens=True), out.nfe.item()


def write_questions(folder, checkpoint: str, texts: list[str], **settings) -> str:
    """Writes a file of questions, half of them with the answer that the model gives."""
    answers = [(answer(checkpoint, text, **settings)[0].split() or ["0"])[-1] for text in texts]
    answers[::2] = ["-1"] * len(answers[::2])
    rows = [{"question": text, "answer": last} for text, last in zip(texts, answers, strict=True)]
    return write_jsonl(folder / "questions.jsonl", rows)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
