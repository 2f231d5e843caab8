# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The output head: a linear layer that is made for few positions and a large vocabulary."""

import math

import torch
from torch import nn


# For more positions, or for weights that the processor's cache holds, one product is as fast as one for each group.
_MOST_POSITIONS = 64
_FEWEST_WEIGHTS = 2**24
# Tokens of a group.
_MOST_TOKENS = 256
_FEWEST_TOKENS = 64


class VocabularyHead(nn.Linear):
    """The scores of all tokens, as [`~torch.nn.Linear`] computes them, without a bias.

    On a CPU the tokens are scored in groups. For the few positions of a decoding pass, one product with all weights
    takes half as long again, up to twice as long (measured with MKL), and gives the same numbers.
    """

    def __init__(self, hidden_size: int, vocab_size: int):
        super().__init__(hidden_size, vocab_size, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Logits, `(..., vocab_size)`, of hidden states, `(..., hidden_size)`."""
        group = math.gcd(len(self.weight), _MOST_TOKENS)
        if group < _FEWEST_TOKENS or not self._is_slow_as_a_whole(input):
            return super().forward(input)
        states = input.flatten(0, -2)
        logits = states @ self.weight.view(-1, group, self.in_features).transpose(1, 2)
        # (groups, positions, tokens of a group)
        return logits.transpose(0, 1).reshape(*input.shape[:-1], len(self.weight))

    def _is_slow_as_a_whole(self, input: torch.Tensor) -> bool:
        weight = self.weight
        return (
            # Quantized weights and those that several devices share are of other classes.
            type(weight) is nn.Parameter
            and weight.device.type == "cpu"
            and input.dtype == weight.dtype == torch.float32
            and input.numel() <= _MOST_POSITIONS * self.in_features
            and weight.numel() >= _FEWEST_WEIGHTS
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )
