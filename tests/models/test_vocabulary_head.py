# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The output head scores as a linear layer does, in groups of tokens or at once."""

import pytest
import torch
from torch import nn

from hf_dparallel.models.vocabulary_head import VocabularyHead


# The smallest vocabulary of this hidden size that is scored in groups.
HIDDEN_SIZE, VOCAB_SIZE = 1024, 2**14


@pytest.fixture(scope="module")
def head() -> VocabularyHead:
    torch.manual_seed(0)
    return VocabularyHead(HIDDEN_SIZE, VOCAB_SIZE)


@pytest.fixture
def calls(monkeypatch) -> list:
    """Calls of the linear layer, which scores all tokens at once."""
    calls: list = []
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, states: calls.append(self) or forward(self, states))
    return calls


@pytest.mark.parametrize("shape", [(20,), (1, 1), (2, 32), (3, 0)])
def test_scores_are_those_of_a_linear_layer(head, calls, shape):
    states = torch.randn(*shape, HIDDEN_SIZE)
    with torch.no_grad():
        logits = head(states)
    assert not calls and logits.is_contiguous()
    torch.testing.assert_close(logits, nn.functional.linear(states, head.weight), rtol=0, atol=1e-5)


def test_everything_else_is_computed_at_once(head, calls):
    states = torch.randn(4, HIDDEN_SIZE)
    assert head(states).grad_fn is not None
    with torch.no_grad():
        head(torch.randn(65, HIDDEN_SIZE))
        head.bfloat16()(states.bfloat16())
        head.float()
        with torch.autocast("cpu"):
            assert head(states).dtype == torch.bfloat16
        VocabularyHead(HIDDEN_SIZE, VOCAB_SIZE + 1)(states)
    assert len(calls) == 4
