# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Small models whose masks draft tokens, some of them right, and what one token at a time gives."""

import functools
import random

import torch
from peft import LoraConfig

from hf_dparallel.models.a2d.modeling_a2d import (
    A2DLlamaForMaskedDiffusion,
    A2DQwen2ForMaskedDiffusion,
    A2DQwen3ForMaskedDiffusion,
    A2DQwen3MoeForMaskedDiffusion,
)
from hf_dparallel.training.window_collator import WindowCollator

from ..helpers import left_padded


VOCABULARY, MASK, EOS = 24, 23, 1
FAMILIES = [
    A2DLlamaForMaskedDiffusion,
    A2DQwen2ForMaskedDiffusion,
    A2DQwen3ForMaskedDiffusion,
    A2DQwen3MoeForMaskedDiffusion,
]
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
EVERYTHING = 1e-9
LORA = {"r": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]}
LORA |= {"alora_invocation_tokens": [MASK], "lora_alpha": 16}


def make_model(of=A2DLlamaForMaskedDiffusion, seed=0, adapter=True):
    """A model in float64 whose adapter proposes the last token again, which is right from 15 on only.

    3 follows 2 and so on up to 8, which the end token follows; 15 follows 14, and so on back to 9.
    """
    torch.manual_seed(seed)
    config = of.config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
        mask_token_id=MASK,
        block_length=5,
        causal_past=True,
        shift_logits=True,
        **(EXPERTS if of is A2DQwen3MoeForMaskedDiffusion else {}),
    )
    model = of(config).double().eval()
    if of is A2DQwen3MoeForMaskedDiffusion:
        # torch._grouped_mm takes no float64.
        model.set_experts_implementation("eager")
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        after = {token: [token] for token in range(15, MASK)}
        for token in (*range(3, 9), *range(10, 16)):
            after[token] = [*after.get(token, []), token - 1]
        after[EOS] = [8]
        model.lm_head.weight.zero_()
        for token, before in after.items():
            model.lm_head.weight[token] = 8 * embeddings[before].sum(dim=0)
    if adapter:
        add_adapter(model)
    return model


@functools.cache
def trained_adapter(of, seed) -> dict[str, torch.Tensor]:
    """Returns the weights of an adapter that has learned some of a model's answers."""
    model = make_model(of, adapter=False).float()
    model.add_adapter(LoraConfig(**LORA))
    prompts = make_ragged(48, seed)
    rows = [
        {"prompt_ids": prompt, "completion_ids": row.tokens.tolist()}
        for prompt, row in zip(prompts, model.generate_many(prompts, max_new_tokens=24), strict=True)
    ]
    collator = WindowCollator(MASK, EOS, block_length=5, seed=seed)
    weights = [weight for name, weight in model.named_parameters() if "lora" in name]
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    for step in range(40):
        batch = collator(rows[16 * (step % 3) : 16 * (step % 3 + 1)])
        collator.set_epoch(step)
        labels = batch.pop("labels")
        logits = collator.score(model, batch, labels != -100)
        torch.nn.functional.cross_entropy(logits, labels[labels != -100]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: weight.detach().double() for name, weight in model.named_parameters() if "lora" in name}


def add_adapter(model, seed=0, name="default"):
    model.add_adapter(LoraConfig(**LORA), name)
    trained = trained_adapter(type(model), seed)
    for path, weight in model.named_parameters():
        if name in path.split(".") and "lora" in path:
            weight.data = trained[path.replace(name, "default")].clone()


def make_ragged(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(2, MASK) for _ in range(rng.randrange(1, 14))] for _ in range(count)]


def causal_logits(model, ids):
    """Returns the logits of the next token, as the autoregressive model computes them: a causal mask, no adapter."""
    length = len(ids)
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        hidden = model.model(input_ids=tokens, attention_mask={"full_attention": mask}).last_hidden_state[0, -1]
        return model.lm_head(hidden)


def one_at_a_time(model, prompt, count, warpers=(), generator=None):
    """Returns the answer of a plain loop."""
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        scores = causal_logits(model, ids).float()[None]
        scores[:, MASK] = -torch.inf
        for warper in warpers:
            scores = warper(torch.tensor([ids]), scores)
        if generator is None:
            token = int(scores.argmax())
        else:
            noise = torch.empty(VOCABULARY).exponential_(generator=generator)
            token = int((scores.softmax(-1)[0] / noise).argmax())
        ids.append(token)
        if token == EOS:
            break
    return ids[len(prompt) :]


def answers_of(out, width):
    answers = []
    for row in out.sequences[:, width:].tolist():
        answers.append(row[: row.index(EOS) + 1] if EOS in row else row)
    return answers


def decode(model, prompts, **settings):
    ids, attention_mask = left_padded(prompts)
    settings = {"max_new_tokens": 30, "confidence_threshold": EVERYTHING} | settings
    out = model.generate(ids, attention_mask=attention_mask, return_dict_in_generate=True, **settings)
    return out, answers_of(out, ids.shape[1])
