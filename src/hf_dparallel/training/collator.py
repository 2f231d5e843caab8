# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Semi-autoregressive forward masking: from clean trajectories to what the student sees and is scored on."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import nn

from ..data.dataset import TOKENIZED_COLUMNS, read_ids
from ..generation.compatibility import moves_blocks
from .masking import Masking, Views
from .objective import IGNORE_INDEX
from .student import base_model


@dataclass
class DataCollatorForSemiAutoregressiveMasking(Masking):
    r"""
    Data collator that masks trajectories the way semi-autoregressive decoding meets them.

    Each example needs `prompt_ids` and `completion_ids` (the completion normally ends with its first EOS). The two are
    joined and padded with EOS to `max_length`; the padding is masked and scored like text, which teaches the model to
    stop. From the end of the prompt on, the sequence is cut into blocks of `block_length` tokens, one of which is
    drawn as the active block, uniformly among those that hold completion tokens. Blocks before it stay visible, its
    own tokens are masked with probability `mask_ratio` and scored, and everything after it is masked but not scored
    (Eq. 4 of https://huggingface.co/papers/2509.26488).

    With `complementary_masking`, every sequence gives a second row in which exactly the other tokens of the active
    block are masked, so that each of them is learned once. Rows `0..B-1` are the first views and rows `B..2B-1` the
    second. A view whose draw masks no token is a row without labels; its loss is zero.

    With `masking="trajectory"` the student meets the states of the teacher's own decoding (the pseudo-trajectories of
    d3LLM, https://github.com/hao-ai-lab/d3LLM). Tokens of one pass are put in a random order, and the padding counts
    as committed with the last token.

    If `attention` is not "full", for models that never see what follows a block, all blocks of the answer are
    active at once, each masked with a draw of its own. Blocks are counted from the first token of the prompt, or of
    the answer (`block_origin`), as those models decode. A row then is two copies of the sequence: a noisy one, and a
    clean one in which each noisy block finds the blocks before it. Both have the same positions, and only the noisy
    one has labels. Blocks from which no row of the batch learns anything are left out. The attention mask is left to
    the trainer (section B.6 of https://huggingface.co/papers/2503.09573). `max_length` is rounded up to whole blocks.


    The masks depend only on the tokens of the row, on `seed` and on the epoch (see [`set_epoch`]), not on the batch,
    the order or the number of workers. A resumed run therefore sees the masks of an uninterrupted one, and copies of a
    row have the same masks in an epoch: for more masks, train for more epochs instead of repeating rows.

    Args:
        mask_token_id (`int`):
            Id of the mask token.
        eos_token_id (`int`):
            Id of the end-of-text token, with which sequences are padded.
        seed (`int`, *optional*, defaults to 0):
            Seed of the masks.
        vocab_size (`int`, *optional*):
            Number of token ids that the model knows. If set, larger ids are refused.
        attention (`str`, *optional*, defaults to `"full"`):
            The attention of the model: "full", "block_causal" or "causal_past". [`CertaintyForcingTrainer`] takes it
            from the model.
        settings:
            The settings of [`Masking`].

    Raises:
        ValueError: if a setting is out of range; or a row lacks a column, has an empty prompt or completion, mask
            tokens or tokens outside the vocabulary, or is longer than `max_length`.

    Example:

    The prompt `1, 2` stays; the blocks are `[11, 12], [13, 99], [99, 99]`. The third holds no token of the completion
    and is never active. Here the second block is drawn, and its two tokens fall on different views:

    ```python
    >>> from hf_dparallel.training.collator import DataCollatorForSemiAutoregressiveMasking

    >>> collator = DataCollatorForSemiAutoregressiveMasking(
    ...     mask_token_id=0, eos_token_id=99, block_length=2, max_length=8, seed=6
    ... )
    >>> collator([{"prompt_ids": [1, 2], "completion_ids": [11, 12, 13, 99]}])
    {'input_ids': tensor([[ 1,  2, 11, 12,  0, 99,  0,  0],
            [ 1,  2, 11, 12, 13,  0,  0,  0]]),
     'attention_mask': tensor([[1, 1, 1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 1, 1, 1, 1]]),
     'labels': tensor([[-100, -100, -100, -100,   13, -100, -100, -100],
            [-100, -100, -100, -100, -100,   99, -100, -100]])}

    ```
    """

    mask_token_id: int
    eos_token_id: int
    _: KW_ONLY
    seed: int = 0
    vocab_size: int | None = None
    attention: str = "full"
    _epoch: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        self.check()
        # In shared memory, so that workers that are already running (persistent ones) see a new epoch.
        self._epoch = torch.tensor(0).share_memory_()

    def check_model(self, model: nn.Module) -> None:
        """Raises a `ValueError` if the rows do not suit the model's attention."""
        base = base_model(model)
        if self.attention == "full":
            self.refuse("block_origin", "for full attention, where blocks follow the prompt")
            return
        rule = f"is not the attention of {type(base).__name__}, which is {base.attention!r}"
        self.require("attention", base.attention == self.attention, rule, "Leave it out.")
        rule = f"needs rows that only classes of this package read, and {type(base).__name__} is none"
        self.require("attention", base.is_native, rule, "Load the model by the class of its family.")
        rule = f"would move the blocks that {type(base).__name__} chooses experts for"
        is_free = self.block_origin != "answer" or moves_blocks(base)
        self.require("block_origin", is_free, rule, "Leave it out.")
        length = base.block_length
        rule = f"is another than the model's: blocks of {type(base).__name__} have {length} tokens"
        self.require("block_length", self.block_length == length, rule, "Or set `model.config.block_length`.")

    @property
    def num_views(self) -> int:
        """Number of rows per sequence."""
        return 2 if self.complementary_masking else 1

    @property
    def padded_length(self) -> int:
        """Length of all sequences: `max_length`, for block-causal models with room for a whole last block."""
        if self.attention == "full":
            return self.max_length
        if self.block_origin == "answer":
            return self.max_length + self.block_length - 1
        return -(-self.max_length // self.block_length) * self.block_length

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch (from 0) whose masks are drawn next, in worker processes, too."""
        self._epoch.fill_(epoch)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s of shape `(num_views * len(examples), max_length)`: `input_ids`; `labels`,
            the clean tokens where they are scored and -100 elsewhere; `attention_mask`, all ones. With another
            `attention`, `labels` of shape `(num_views * len(examples), num_noisy)`, and `input_ids` and `position_ids`
            (instead of `attention_mask`) of shape `(num_views * len(examples), num_noisy + num_clean)`: the blocks
            that the batch needs of the noisy copies, then of the clean ones; with `block_origin="answer"`, the
            position at which each token's block begins as `block_start`, too.
        """
        sequences = [self._mask(example) for example in examples]

        def by_row(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
            """Stacks the first views of all sequences, then the second views."""
            return torch.stack(list(tensors), dim=1).flatten(0, 1)

        names = ("clean", "masked", "scored")
        clean, masked, scored = (by_row(getattr(views, name) for views in sequences) for name in names)
        noisy = clean.masked_fill(masked, self.mask_token_id)
        batch = {"labels": clean.masked_fill(~scored, IGNORE_INDEX)}
        if self.attention != "full":
            is_from_answer = self.block_origin == "answer"
            # The first span begins where the answer does.
            origins = [views.spans[0][0] if is_from_answer else 0 for views in sequences]
            origin = torch.tensor(origins).repeat(self.num_views)[:, None]
            noisy_part, clean_part = self._needed_parts(scored, origin)
            positions = torch.arange(self.padded_length)
            batch = {name: tensor[:, noisy_part] for name, tensor in batch.items()}
            batch["input_ids"] = torch.cat([noisy[:, noisy_part], clean[:, clean_part]], dim=1)
            batch["position_ids"] = torch.cat([positions[noisy_part], positions[clean_part]]).repeat(len(clean), 1)
            if is_from_answer:
                positions = batch["position_ids"]
                batch["block_start"] = (positions - (positions - origin) % self.block_length).clamp(min=0)
        else:
            batch = {"input_ids": noisy, "attention_mask": torch.ones_like(noisy), **batch}
        return batch

    def _needed_parts(self, scored: torch.BoolTensor, origin: torch.LongTensor) -> tuple[slice, slice]:
        """Returns the columns of the noisy and of the clean copies that a batch needs. Blocks start at `origin`.

        Noisy blocks before and after the scored ones have no loss, and no scored block sees the clean copy of the last
        scored block or of later ones.
        """
        rows, columns = scored.nonzero(as_tuple=True)
        starts = columns - (columns - origin[rows, 0]) % self.block_length
        # There is nothing scored where a draw masks nothing; one block keeps the loss connected to the weights.
        first, last = (int(starts.min()), int(starts.max())) if len(starts) else (0, 0)
        return slice(first, last + self.block_length), slice(0, last)

    def _mask(self, example: dict[str, Any]) -> Views:
        """Returns the views of a sequence."""
        prompt, completion, steps = self.read_row(example)
        clean = torch.full((self.padded_length,), self.eos_token_id)
        clean[: len(prompt)] = prompt
        clean[len(prompt) : len(prompt) + len(completion)] = completion
        steps = torch.cat([torch.zeros_like(prompt), steps])[: len(clean)]

        generator = self._generator(prompt, completion)
        spans = self._draw_active_spans(len(prompt), len(completion), generator)
        masked = torch.zeros(self.num_views, len(clean), dtype=torch.bool)
        for start, end in spans:
            of_first_view = self._draw_masked(steps[start:end], generator)
            masked[:, start:end] = torch.stack((of_first_view, ~of_first_view)[: self.num_views])
        end, columns = spans[-1][1], torch.arange(len(clean))
        clean = clean.expand_as(masked)
        return Views(clean, masked | (columns >= end), masked, spans)

    def _draw_active_spans(
        self, prompt_length: int, completion_length: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """Returns the first position of each active block, and the first position after it."""
        if self.masking == "random":
            return [(prompt_length, self.padded_length)]
        if self.attention != "full":
            origin = prompt_length if self.block_origin == "answer" else 0
            edges = range(origin, prompt_length + completion_length, self.block_length)
            spans = [(max(edge, prompt_length), min(edge + self.block_length, self.padded_length)) for edge in edges]
            return [(start, end) for start, end in spans if start < end]
        num_blocks = -(-completion_length // self.block_length)
        block = int(torch.randint(num_blocks, (), generator=generator))
        start = prompt_length + block * self.block_length
        return [(start, min(start + self.block_length, self.padded_length))]

    def _draw_masked(self, commit_step: torch.Tensor, generator: torch.Generator) -> torch.BoolTensor:
        """Returns which tokens of the active block are masked in the first view."""
        ratio: Any = self.mask_ratio
        if ratio == "random":
            ratio = 1 - float(torch.rand((), generator=generator))
        noise = torch.rand(len(commit_step), generator=generator)
        if self.masking != "trajectory":
            return noise < ratio
        # Tokens of the last steps, in the order of the noise within a step.
        by_noise = noise.argsort()
        order = by_noise[commit_step[by_noise].argsort(stable=True)]
        num_masked = math.ceil(ratio * len(order))
        return torch.zeros_like(noise, dtype=torch.bool).index_fill(0, order[len(order) - num_masked :], True)

    def _generator(self, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Generator:
        """Returns a generator seeded by the content of the row, the seed and the epoch."""
        header = torch.tensor([self.seed, int(self._epoch), len(prompt)])
        digest = hashlib.blake2b(torch.cat([header, prompt, completion]).numpy().tobytes(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)

    def read_row(self, example: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the prompt, the completion, and the commit step of its tokens and padding (0 if not used).

        Raises a `ValueError` if the row cannot be trained on.
        """
        prompt, completion = (read_ids(example, column) for column in TOKENIZED_COLUMNS)
        ids = torch.cat([prompt, completion])
        rule = f"must be at least {len(ids)} for {len(prompt)} `prompt_ids` and {len(completion)} `completion_ids`"
        self.require("max_length", len(ids) <= self.max_length, rule, "Or drop the row.")
        rule = "is in a row, and is what the model learns to replace"
        self.require("mask_token_id", self.mask_token_id not in ids.tolist(), rule, "Drop such rows.")
        is_known = self.vocab_size is None or bool(ids.max() < self.vocab_size)
        rule = f"is too small for the token id {ids.max()} of a row"
        self.require("vocab_size", is_known, rule, "Make the data with the tokenizer of the model.")
        steps = torch.zeros_like(completion)
        if self.masking == "trajectory":
            steps = read_ids(
                example, "commit_step", "Make the data with `generate_trajectories`, or leave out `masking`."
            )
        if len(steps) != len(completion):
            raise ValueError(f"`commit_step` must have a step for each token, got {len(steps)} for {len(completion)}.")
        return prompt, completion, torch.cat([steps, steps[-1:].expand(self.padded_length)])
