# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Where masks stand and what is drafted: passes are those of a plain loop over one row, without a cache."""

from typing import NamedTuple

import pytest
import torch

from hf_dparallel.exact.decoder import _LEAST_CHANCE
from hf_dparallel.exact.gate import gate_adapters
from hf_dparallel.exact.gated_pass import acting_at

from .helpers import EOS, EVERYTHING, MASK, decode, make_model, make_ragged, one_at_a_time


class Speculation(NamedTuple):
    answer: list[int]
    num_passes: int
    # Of each pass: the drafts, how many of them the window was behind, and how many were accepted.
    passes: list[tuple[list[int], int, int]]


def predict(model, ids, drafts, window, size):
    """The model's own tokens after `ids` and each draft, and those that `size` masks draft, with probabilities."""
    num_known = len(ids) + len(drafts)
    num_seen = len(ids) + window
    length = num_known + size

    visible = torch.ones(length, length, dtype=torch.bool).tril()
    visible[num_known:, num_seen:num_known] = False
    visible[num_known:, num_known:] = True
    positions = [*range(num_known), *range(num_seen, num_seen + size)]
    is_mask = torch.arange(length) >= num_known

    with torch.no_grad(), acting_at(is_mask[None]):
        hidden = model.model(
            input_ids=torch.tensor([[*ids, *drafts, *[MASK] * size]]),
            position_ids=torch.tensor([positions]),
            attention_mask={"full_attention": visible[None, None]},
        ).last_hidden_state[0, len(ids) - 1 :]
        logits = model.lm_head(hidden)
    likely = logits.clone()
    likely[:, MASK] = -torch.inf
    tokens = likely.argmax(-1)
    of_tokens = logits.softmax(-1).gather(1, tokens[:, None])[:, 0]
    count = len(drafts) + 1
    return tokens[:count].tolist(), tokens[count:].tolist(), of_tokens[count:].tolist()


def leading(values) -> int:
    """How many are true before the first that is not."""
    return [*map(bool, values), False].index(False)


def speculate(model, prompt, limit, threshold, masks_leave=True) -> Speculation:
    size = model.config.block_length - 1
    ids, answer, drafts, window, passes = list(prompt), [], [], 0, []
    while True:
        if masks_leave:
            # Not more than there are tokens to draft.
            size = min(size, max(limit - 2 - len(answer), 0))
        window = min(window, len(drafts))
        own, tokens, chances = predict(model, ids, drafts, window, size)
        accepted = leading(draft == token for draft, token in zip(drafts, own, strict=False))
        passes.append((drafts, window, accepted))
        for token in own[: accepted + 1]:
            answer.append(token)
            if token == EOS or len(answer) == limit:
                return Speculation(answer, len(passes), passes)
        ids = [*prompt, *answer]

        if not size:
            drafts = []
        elif accepted < window:
            drafts, window = drafts[accepted + 1 :], 0
        else:
            # The rule takes at least one of the tokens that the masks draft, decided ones among them.
            is_sure = [chance >= threshold or chance == max(chances) for chance in chances]
            is_sure = is_sure[accepted - window :]
            chances = chances[accepted - window :]
            tokens = tokens[accepted - window :]
            product = [torch.tensor(chances[: place + 1]).prod() for place in range(len(chances))]
            window = leading(is_sure)
            drafts = tokens[: max(window, leading(each >= _LEAST_CHANCE for each in product))]
        drafts = drafts[: min(size, limit - len(answer) - 1)]


@pytest.mark.parametrize("threshold", [EVERYTHING, 0.5])
@pytest.mark.parametrize("settings", [{}, {"cache_implementation": "none"}])
def test_passes_are_those_of_a_plain_loop(threshold, settings):
    model, prompts = make_model(seed=3), make_ragged(12, seed=7)
    gate_adapters(model)
    out, answers = decode(model, prompts, confidence_threshold=threshold, **settings)
    kinds = set()
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = speculate(model, prompt, 30, threshold, masks_leave=not settings)
        assert answer == expected.answer == one_at_a_time(model, prompt, 30)
        assert out.nfe[row] == expected.num_passes
        proposed = [sum(place < len(drafts) for drafts, _, _ in expected.passes) for place in range(4)]
        accepted = [sum(place < right for _, _, right in expected.passes) for place in range(4)]
        assert out.drafts_accepted[row].tolist() == accepted
        assert out.drafts_proposed[row].tolist() == proposed
        for drafts, window, right in expected.passes:
            kinds.add("valid" if window <= right else "stale")
            kinds.add("all right" if right == len(drafts) else "rejected")
            kinds.add("behind all" if window == len(drafts) else "between")
    assert kinds == {"valid", "stale", "all right", "rejected", "behind all", "between"}
