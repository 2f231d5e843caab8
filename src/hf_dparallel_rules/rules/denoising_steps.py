# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of LLaDA: a fixed number of tokens in each pass."""

from typing import Any

from ..commit_rules import Prediction, Tensor, commit_by_count, commit_rule


@commit_rule("denoising_steps", int, minimum=1, source="https://huggingface.co/papers/2502.09992",
    help="Spread the tokens of the canvas evenly over this many passes, the most confident first. Without any rule, "
    "one token in each pass. Block-causal models may take more or fewer passes if prompt or answer end inside a "
    "block, or if a block's first token is committed alone.")  # fmt: skip
class Schedule:
    """Commits a fixed number of tokens in each pass. Passes and tokens that do not divide go to the first ones."""

    def __init__(self, config: Any, canvas: Any):
        self.canvas = canvas
        self.order = config.commit_order
        length = config.max_new_tokens
        block_length = config.block_length
        steps = config.denoising_steps
        if canvas.layout.whole_blocks and length % block_length:
            # One schedule for all blocks: the last has masks after the answer.
            steps = round(steps * block_length / length)
            length = block_length

        self.counts = scheduled_counts(length, block_length, steps)
        self._table: Tensor | None = None

    def __call__(self, prediction: Prediction, masked: Tensor) -> Tensor:
        if self._table is None:
            longest = max(map(len, self.counts))
            rows = [count + count[-1:] * (longest - len(count)) for count in self.counts]
            self._table = masked.new_tensor(rows, dtype=self.canvas.nfe.dtype)

        block = self.canvas.open_from.clamp(max=len(self.counts) - 1)
        step = self.canvas.step_in_block.clamp(max=self._table.shape[1] - 1)
        order = prediction.confidence
        if self.order == "left_to_right":
            order = -prediction.columns.float()
        return commit_by_count(order, masked, self._table[block, step])


def scheduled_counts(max_new_tokens: int, block_length: int, denoising_steps: int) -> list[list[int]]:
    """Returns how many tokens to commit at each step of each block.

    Every block gets at least one of `denoising_steps`, the others in proportion to its further tokens; the tokens of a
    block are spread evenly over its steps (https://huggingface.co/papers/2502.09992).
    """
    lengths = [min(block_length, max_new_tokens - start) for start in range(0, max_new_tokens, block_length)]
    further_steps = denoising_steps - len(lengths)
    further_tokens = max_new_tokens - len(lengths)

    counts = []
    num_given = 0
    num_tokens = 0
    for length in lengths:
        num_tokens += length - 1
        num_until_here = -(-further_steps * num_tokens // max(further_tokens, 1))
        num_steps = 1 + num_until_here - num_given
        num_given = num_until_here
        counts.append([length // num_steps + (step < length % num_steps) for step in range(num_steps)])
    return counts
