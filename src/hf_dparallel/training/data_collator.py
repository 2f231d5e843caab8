# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Semi-autoregressive forward masking: from clean trajectories to what the student sees and is scored on."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch


_IGNORED = -100
_COLUMNS = ("prompt_ids", "completion_ids")


def check_masking_settings(block_length: int, mask_ratio: float | str | None, masking: str, max_length: int) -> None:
    """Raises a `ValueError` that names the first setting of the masking that makes no sense."""
    for name, value in (("block_length", block_length), ("max_length", max_length)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a positive number of tokens, got {value!r}.")
    if mask_ratio != "random" and not (isinstance(mask_ratio, int | float) and 0 < mask_ratio <= 1):
        raise ValueError(
            f'`mask_ratio` must be a number in (0, 1] or "random" (drawn anew for every row), got {mask_ratio!r}. '
            "The paper uses mask_ratio=0.5."
        )
    if masking not in ("semi_autoregressive", "random"):
        raise ValueError(
            f'`masking` must be "semi_autoregressive" (one active block, as for LLaDA) or "random" (the whole '
            f"response, as for Dream), got {masking!r}."
        )


@dataclass
class DataCollatorForSemiAutoregressiveMasking:
    r"""
    Data collator that masks trajectories the way semi-autoregressive decoding meets them.

    Each example needs `prompt_ids` and `completion_ids` (the completion normally ends with its first EOS). The two are
    joined and padded with EOS to `max_length`; the padding is masked and scored like text, which is what teaches the
    model to end. From the end of the prompt on, the sequence is cut into blocks of `block_length` tokens, one of which
    is drawn as the active block, uniformly among those that hold completion tokens. Blocks before it stay visible, its
    own tokens are masked with probability `mask_ratio` and scored, and everything after it is masked but not scored
    (Eq. 4 of https://huggingface.co/papers/2509.26488).

    With `complementary_masking`, every sequence gives a second row in which exactly the other tokens of the active
    block are masked, so that each of them is learned once. Rows `0..B-1` are the first views and rows `B..2B-1` the
    second. A view whose draw masks no token is a row without labels; its loss is zero.

    The masks depend only on the tokens of the row, on `seed` and on the epoch (see [`set_epoch`]), not on the batch,
    the order or the number of workers. A resumed run therefore sees the masks of an uninterrupted one.

    Args:
        mask_token_id (`int`):
            Id of the mask token.
        eos_token_id (`int`):
            Id of the end-of-text token, with which sequences are padded.
        block_length (`int`, *optional*, defaults to 32):
            Number of tokens in a block. Unused with `masking="random"`.
        mask_ratio (`float` or `str`, *optional*, defaults to 0.5):
            Probability of masking a token of the active block, in (0, 1]; or `"random"`, drawn uniformly from (0, 1]
            for every row.
        masking (`str`, *optional*, defaults to `"semi_autoregressive"`):
            `"semi_autoregressive"`, or `"random"`: the whole response, EOS padding included, is active (as the
            published code trains Dream).
        complementary_masking (`bool`, *optional*, defaults to `True`):
            Whether to add the complementary view of every sequence.
        max_length (`int`, *optional*, defaults to 384):
            Length of all sequences, prompt included.
        seed (`int`, *optional*, defaults to 0):
            Seed of the masks.

    Raises:
        ValueError: if a setting is out of range, a row lacks a column, has an empty completion, or is longer than
            `max_length`.

    Example:

    The prompt `1, 2` stays; the blocks are `[11, 12], [13, 99], [99, 99]`, of which the third holds no token of the
    completion and is never active. Here the second block is drawn, and its two tokens fall on different views:

    ```python
    >>> from hf_dparallel.training.data_collator import DataCollatorForSemiAutoregressiveMasking

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
    block_length: int = 32
    mask_ratio: float | str = 0.5
    masking: str = "semi_autoregressive"
    complementary_masking: bool = True
    max_length: int = 384
    seed: int = 0
    _epoch: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        check_masking_settings(self.block_length, self.mask_ratio, self.masking, self.max_length)
        # In shared memory, so that workers that are already running (persistent ones) see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def num_views(self) -> int:
        """Number of rows that a sequence gives."""
        return 2 if self.complementary_masking else 1

    def set_epoch(self, epoch: int) -> None:
        """Draws other masks from now on, in worker processes too."""
        self._epoch.fill_(epoch)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s of shape `(num_views * len(examples), max_length)`: `input_ids`; `labels`,
            the clean tokens where they are scored and -100 elsewhere; `attention_mask`, all ones.
        """
        sequences, masked, scored = zip(*(self._mask(example) for example in examples), strict=True)
        clean = torch.stack(sequences).repeat(self.num_views, 1)
        # (sequences, views, length) -> all first views, then all second views
        masked = torch.stack(masked).transpose(0, 1).flatten(0, 1)
        scored = torch.stack(scored).transpose(0, 1).flatten(0, 1)
        return {
            "input_ids": clean.masked_fill(masked, self.mask_token_id),
            "attention_mask": torch.ones_like(clean),
            "labels": clean.masked_fill(~scored, _IGNORED),
        }

    def _mask(self, example: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The padded sequence `(length,)`, and for each view what is masked and what is scored `(views, length)`."""
        prompt, completion = self._read(example)
        sequence = torch.full((self.max_length,), self.eos_token_id)
        sequence[: len(prompt)] = prompt
        sequence[len(prompt) : len(prompt) + len(completion)] = completion

        generator = self._generator(prompt, completion)
        start, end = self._draw_active_span(len(prompt), len(completion), generator)
        ratio = 1 - torch.rand((), generator=generator) if self.mask_ratio == "random" else self.mask_ratio
        drawn = torch.rand(end - start, generator=generator) < ratio

        scored = torch.zeros(self.num_views, self.max_length, dtype=torch.bool)
        scored[0, start:end] = drawn
        if self.complementary_masking:
            scored[1, start:end] = ~drawn
        masked = scored.clone()
        masked[:, end:] = True
        return sequence, masked, scored

    def _draw_active_span(self, prompt_length: int, completion_length: int, generator: torch.Generator):
        """First position of the active block, and the first one after it."""
        if self.masking == "random":
            return prompt_length, self.max_length
        # Unlike in the published code, a block that holds nothing but padding (or nothing at all) is never drawn.
        num_blocks = -(-completion_length // self.block_length)
        block = int(torch.randint(num_blocks, (), generator=generator))
        start = prompt_length + block * self.block_length
        return start, min(start + self.block_length, self.max_length)

    def _generator(self, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Generator:
        """A generator seeded by the content of the row, the seed and the epoch."""
        header = torch.tensor([self.seed, int(self._epoch), len(prompt)])
        digest = hashlib.blake2b(torch.cat([header, prompt, completion]).numpy().tobytes(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)

    def _read(self, example: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        missing = [column for column in _COLUMNS if column not in example]
        if missing:
            raise ValueError(
                f"Rows must have the columns `prompt_ids` and `completion_ids`; {missing} missing, got "
                f"{sorted(example)}. Make them with `generate_trajectories`, or pass `prompt` and `completion` "
                "columns to `CertaintyForcingTrainer`, which tokenizes them."
            )
        prompt, completion = (torch.as_tensor(example[column], dtype=torch.long) for column in _COLUMNS)
        length = len(prompt) + len(completion)
        if len(completion) == 0:
            raise ValueError("`completion_ids` must not be empty: there is nothing to learn. Drop such rows.")
        if length > self.max_length:
            raise ValueError(
                f"A row must fit in `max_length`, got prompt_ids of length {len(prompt)} and completion_ids of length "
                f"{len(completion)} with max_length={self.max_length}. `max_length` must be at least {length}; or "
                "drop the row."
            )
        return prompt, completion


__all__ = ["DataCollatorForSemiAutoregressiveMasking", "check_masking_settings"]
