# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The slow, obvious sampler that the fast one is held against: one row, whole canvas, float64, one token at a time."""

import torch


@torch.no_grad()
def naive_generate(
    model,
    prompt: list[int],
    max_new_tokens: int,
    block_length: int,
    denoising_steps: int | None = None,
    confidence_threshold: float | None = None,
    entropy_threshold: float | None = None,
    eos_token_id: int | None = None,
) -> tuple[list[int], int]:
    """Returns the new tokens (up to the first EOS, if one is given) and the number of forward passes."""
    mask_token_id = model.config.mask_token_id
    sequence = torch.tensor(prompt + [mask_token_id] * max_new_tokens)
    undecided = [False] * len(prompt) + [True] * max_new_tokens
    nfe = 0
    for start in range(len(prompt), len(sequence), block_length):
        block = range(start, start + block_length)
        steps = (denoising_steps or max_new_tokens) * block_length // max_new_tokens
        step = 0
        while any(undecided[i] for i in block):
            logits = model(sequence[None]).logits[0].double()
            nfe += 1
            guesses = {}
            for i in block:
                if undecided[i]:
                    p = logits[i].softmax(-1)
                    token = max((v for v in range(len(p)) if v != mask_token_id), key=lambda v: p[v].item())
                    entropy = -(p * (p + 1e-30).log()).sum().item()
                    if p[mask_token_id] > p[token]:
                        entropy = float("inf")
                    guesses[i] = (token, p[token].item(), entropy)
            for i in _chosen(guesses, confidence_threshold, entropy_threshold, block_length, steps, step):
                sequence[i] = guesses[i][0]
                undecided[i] = False
            step += 1
            new = sequence[len(prompt) :].tolist()
            if eos_token_id is not None:
                decided = new[
                    : next((k for k, i in enumerate(range(len(prompt), len(sequence))) if undecided[i]), None)
                ]
                if eos_token_id in decided:
                    return new[: decided.index(eos_token_id) + 1], nfe
    return sequence[len(prompt) :].tolist(), nfe


def _chosen(guesses, confidence_threshold, entropy_threshold, block_length, steps, step):
    if entropy_threshold is not None:
        best = min(guesses, key=lambda i: guesses[i][2])
        return {best} | {i for i, (_, _, entropy) in guesses.items() if entropy <= entropy_threshold}
    by_confidence = sorted(guesses, key=lambda i: -guesses[i][1])
    if confidence_threshold is not None:
        return {by_confidence[0]} | {i for i, (_, p, _) in guesses.items() if p >= confidence_threshold}
    count = block_length // steps + (1 if step < block_length % steps else 0)
    return set(by_confidence[:count])
