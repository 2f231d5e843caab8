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
    eos_token_id: int | None = None,
    max_active_blocks: int = 1,
    block_add_threshold: float = 0.5,
    **threshold: float,
) -> tuple[list[int], int]:
    """Returns the new tokens (up to the first EOS, if one is given) and the number of forward passes.

    With `max_new_tokens=0` the mask tokens of the prompt are filled in, and the whole prompt is returned.
    """
    mask_token_id = model.config.mask_token_id
    sequence = torch.tensor(prompt + [mask_token_id] * max_new_tokens)
    undecided = [token == mask_token_id for token in sequence.tolist()]
    first_new = len(prompt) if max_new_tokens else 0
    steps = (denoising_steps or max_new_tokens) * block_length // max_new_tokens if max_new_tokens else block_length
    # Blocks are cut from the right end; where the prompt is filled in, the first may be shorter.
    edges = [max(end - block_length, 0) for end in range(len(sequence), first_new, -block_length)][::-1]
    blocks = [range(start, end) for start, end in zip(edges, [*edges[1:], len(sequence)], strict=True)]
    blocks = [block for block in blocks if any(undecided[i] for i in block)] if not max_new_tokens else blocks
    nfe = step = first = last = 0
    while any(undecided):
        logits = model(sequence[None]).logits[0].double()
        nfe += 1
        guesses = {}
        for i in (i for block in blocks[first : last + 1] for i in block if undecided[i]):
            p = logits[i].softmax(-1)
            entropy = -(p * (p + 1e-30).log()).sum().item()
            p = p.tolist()
            token = max((v for v in range(len(p)) if v != mask_token_id), key=p.__getitem__)
            guesses[i] = (token, p[token], float("inf") if p[mask_token_id] > p[token] else entropy)
        chosen = _chosen(guesses, block_length, steps, step, **threshold)
        of_first = [i for i in blocks[first] if undecided[i]]
        if not chosen & set(of_first):
            chosen |= {min(of_first, key=lambda i: guesses[i][2])}
        for i in chosen:
            sequence[i] = guesses[i][0]
            undecided[i] = False
        step += 1
        while first < len(blocks) and not any(undecided[i] for i in blocks[first]):
            first, step = first + 1, 0
        last = max(first, last)
        if max_active_blocks > 1 and last + 1 < len(blocks) and last - first + 1 < max_active_blocks:
            decided = sum(not undecided[i] for i in blocks[last])
            last += decided >= block_add_threshold * len(blocks[last])
        new = sequence[first_new:].tolist()
        if eos_token_id is not None and max_new_tokens:
            decided = new[: next((k for k, u in enumerate(undecided[first_new:]) if u), None)]
            if eos_token_id in decided:
                return new[: decided.index(eos_token_id) + 1], nfe
    return sequence[first_new:].tolist(), nfe


def _chosen(
    guesses,
    block_length,
    steps,
    step,
    entropy_threshold=None,
    confidence_threshold=None,
    entropy_bound=None,
    confidence_factor=None,
):
    by_entropy = sorted(guesses, key=lambda i: guesses[i][2])
    by_confidence = sorted(guesses, key=lambda i: -guesses[i][1])
    if entropy_threshold is not None:
        return {by_entropy[0]} | {i for i, (_, _, entropy) in guesses.items() if entropy <= entropy_threshold}
    if confidence_threshold is not None:
        return {by_confidence[0]} | {i for i, (_, p, _) in guesses.items() if p >= confidence_threshold}
    if entropy_bound is not None:
        entropies = [guesses[i][2] for i in by_entropy]
        return {i for n, i in enumerate(by_entropy) if n == 0 or sum(entropies[:n]) <= entropy_bound}
    if confidence_factor is not None:
        sizes = [n for n, i in enumerate(by_confidence, 1) if (n + 1) * (1 - guesses[i][1]) < confidence_factor]
        return set(by_confidence[: max(sizes, default=1)])
    count = block_length // steps + (1 if step < block_length % steps else 0)
    return set(by_confidence[:count])
