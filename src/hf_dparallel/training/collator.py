# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Semi-autoregressive forward masking: from clean trajectories to what the student sees and is scored on."""

import hashlib
import math
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..data.dataset import TOKENIZED_COLUMNS, read_ids
from .losses import IGNORE_INDEX


MASKING_SETTINGS = (
    "block_length",
    "mask_ratio",
    "masking",
    "complementary_masking",
    "initial_block_length",
    "initial_mask_ratio",
    "padding_blocks",
    "suffix_length",
    "on_policy_ratio",
    "near_steps",
    "max_length",
)
MASKINGS = ("semi_autoregressive", "random", "trajectory")


def check_masking_settings(settings: Any) -> None:
    """Raises a `ValueError` that names the first of `MASKING_SETTINGS`, all attributes of `settings`, out of range."""
    for name in ("block_length", "max_length", "initial_block_length"):
        value = getattr(settings, name)
        if not (isinstance(value, int) and value >= 1) and not (value is None and name.startswith("initial")):
            raise ValueError(f"`{name}` must be a positive number of tokens, got {value!r}.")
    ratio, initial_ratio = settings.mask_ratio, settings.initial_mask_ratio
    if ratio != "random" and not _is_ratio(ratio):
        raise ValueError(
            f'`mask_ratio` must be a number in (0, 1] or "random" (drawn anew for every row), got {ratio!r}. '
            "The paper uses mask_ratio=0.5."
        )
    if initial_ratio is not None and not (_is_ratio(initial_ratio) and _is_ratio(ratio)):
        raise ValueError(
            "`initial_mask_ratio` must be a number in (0, 1], from which the ratio goes to the number `mask_ratio`, "
            f"got initial_mask_ratio={initial_ratio!r} and mask_ratio={ratio!r}."
        )
    for name in ("suffix_length", "near_steps"):
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, int) and value >= 0):
            raise ValueError(f"`{name}` must be 0 or a positive integer, got {value!r}.")
    if not (isinstance(settings.on_policy_ratio, int | float) and 0 <= settings.on_policy_ratio <= 1):
        raise ValueError(f"`on_policy_ratio` must be a number from 0 to 1, got {settings.on_policy_ratio!r}.")
    for name in ("initial_block_length", "suffix_length"):
        if settings.masking == "random" and getattr(settings, name) is not None:
            raise ValueError(
                f"`{name}={getattr(settings, name)}` has no meaning with `masking='random'`, which has no blocks. "
                "Leave it out."
            )
    if settings.masking == "random" and settings.padding_blocks:
        raise ValueError(
            "`padding_blocks=True` has no meaning with `masking='random'`, which masks all padding anyway."
        )
    if settings.masking not in MASKINGS:
        raise ValueError(
            '`masking` must be "semi_autoregressive" (one active block, as for LLaDA), "random" (the whole response, '
            f'as for Dream) or "trajectory" (what the teacher committed last in a block), got {settings.masking!r}.'
        )


class _Row(NamedTuple):
    """A view of a sequence: its tokens; which are masked, scored, visible, late, each `(length,)`; if on policy."""

    sequence: torch.LongTensor
    masked: torch.BoolTensor
    scored: torch.BoolTensor
    visible: torch.BoolTensor
    late: torch.BoolTensor
    on_policy: bool


def _is_ratio(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value <= 1


@dataclass
class DataCollatorForSemiAutoregressiveMasking:
    r"""
    Data collator that masks trajectories the way semi-autoregressive decoding meets them.

    Each example needs `prompt_ids` and `completion_ids` (the completion normally ends with its first EOS). The two are
    joined and padded with EOS to `max_length`; the padding is masked and scored like text, which is what teaches the
    model to end. From the end of the prompt on, the sequence is cut into blocks of `block_length` tokens, one of which
    is drawn as the active block, uniformly among those that hold completion tokens (or, with `padding_blocks`, among
    all). Blocks before it stay visible, its
    own tokens are masked with probability `mask_ratio` and scored, and everything after it is masked but not scored
    (Eq. 4 of https://huggingface.co/papers/2509.26488).

    With `complementary_masking`, every sequence gives a second row in which exactly the other tokens of the active
    block are masked, so that each of them is learned once. Rows `0..B-1` are the first views and rows `B..2B-1` the
    second. A view whose draw masks no token is a row without labels; its loss is zero.

    With `masking="trajectory"` the draw is not random: masked is what the teacher committed last in the block, read
    from the column `commit_step`, so that the student meets the states of the teacher's own decoding. Tokens of one
    pass are put in a random order, and the padding counts as committed with the last token. (The pseudo-trajectories
    of d3LLM, https://github.com/hao-ai-lab/d3LLM.)

    With `block_causal`, for models whose attention is causal across blocks, all blocks of the answer are active at
    once, each masked with a draw of its own. Blocks are counted from the first token of the prompt, as those models
    decode. A row then is two copies of the sequence: a noisy one, and a clean one in which each noisy block finds the
    blocks before it. Both have the same positions, and only the noisy one has labels. Blocks of which no row of the
    batch learns anything are left out. The attention mask is left to the trainer (section B.6 of
    https://huggingface.co/papers/2503.09573). `max_length` is rounded up to whole blocks.

    Three more settings change what a row sees or what it is scored on:

    - `suffix_length`: a row has only so many masked tokens behind its active block, as decoding with the same setting
      has. The others are cut off, or hidden by `attention_mask`.
    - `on_policy_ratio`: this share of the rows is marked in `on_policy`. The trainer replaces their masked tokens by
      the guesses of the student, and all tokens of their active block are scored, masked or not.
    - `near_steps`: marks in `late` the masked tokens that the teacher has committed this many steps, or more, after
      the first masked one of the block, read from `commit_step`. 0 marks all. The trainer gives them soft targets.

    The masks depend only on the tokens of the row, on `seed` and on the epoch (see [`set_epoch`]), not on the batch,
    the order or the number of workers. A resumed run therefore sees the masks of an uninterrupted one, and copies of a
    row have the same masks in an epoch: for more masks, train for more epochs instead of repeating rows.

    Args:
        mask_token_id (`int`):
            Id of the mask token.
        eos_token_id (`int`):
            Id of the end-of-text token, with which sequences are padded.
        block_length (`int`, *optional*, defaults to 32):
            Number of tokens in a block. Unused with `masking="random"`.
        mask_ratio (`float` or `str`, *optional*, defaults to 0.5):
            Probability of masking a token of the active block, in (0, 1] (with `masking="trajectory"` the fraction
            that is masked); or `"random"`, drawn uniformly from (0, 1] for every row (with `block_causal` for every
            block).
        masking (`str`, *optional*, defaults to `"semi_autoregressive"`):
            `"semi_autoregressive"`; `"random"`: the whole response, EOS padding included, is active (as the published
            code trains Dream); or `"trajectory"`: one block, masked in the order in which the teacher decoded it.
        complementary_masking (`bool`, *optional*, defaults to `True`):
            Whether to add the complementary view of every sequence.
        initial_block_length (`int`, *optional*), initial_mask_ratio (`float`, *optional*):
            Values in the first epoch, from which they go evenly to `block_length` and `mask_ratio` in the last one.
        padding_blocks (`bool`, *optional*, defaults to `False`):
            Whether blocks of nothing but padding, of which there are more the shorter the answer is, can be active
            too, as in the paper. Needed for decoding with `stop_at_eos=False` only.
        suffix_length (`int`, *optional*):
            How many masked tokens behind the active block a row sees; by default all.
        on_policy_ratio (`float`, *optional*, defaults to 0.0):
            Share of the rows that the student learns on its own guesses.
        near_steps (`int`, *optional*):
            From which step after the first masked token on tokens have soft targets; by default none has.
        max_length (`int`, *optional*, defaults to 384):
            Length of all sequences, prompt included.
        seed (`int`, *optional*, defaults to 0):
            Seed of the masks.
        vocab_size (`int`, *optional*):
            Number of token ids that the model knows. With it, ids outside are refused.
        block_causal (`bool`, *optional*, defaults to `False`):
            Whether to make rows for a block-causal model. [`CertaintyForcingTrainer`] knows it from the model.

    Raises:
        ValueError: if a setting is out of range; or a row lacks a column, has an empty prompt or completion, mask
            tokens or tokens outside the vocabulary, or is longer than `max_length`.

    Example:

    The prompt `1, 2` stays; the blocks are `[11, 12], [13, 99], [99, 99]`, of which the third holds no token of the
    completion and is never active. Here the second block is drawn, and its two tokens fall on different views:

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
    block_length: int = 32
    mask_ratio: float | str = 0.5
    masking: str = "semi_autoregressive"
    complementary_masking: bool = True
    initial_block_length: int | None = None
    initial_mask_ratio: float | None = None
    padding_blocks: bool = False
    suffix_length: int | None = None
    on_policy_ratio: float = 0.0
    near_steps: int | None = None
    max_length: int = 384
    seed: int = 0
    vocab_size: int | None = None
    block_causal: bool = False
    _epoch: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        check_masking_settings(self)
        reasons = {
            "initial_block_length": "whose blocks are those of its attention",
            "suffix_length": "which never sees what follows a block",
        }
        for name, reason in reasons.items():
            if self.block_causal and getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}={getattr(self, name)}` has no meaning for a block-causal model, {reason}. Leave it out."
                )
        # The epoch and the number of epochs, in shared memory, so that workers that are already running (persistent
        # ones) see a new epoch.
        self._epoch = torch.tensor([0, 1]).share_memory_()

    @property
    def num_views(self) -> int:
        """Number of rows that a sequence gives."""
        return 2 if self.complementary_masking else 1

    @property
    def padded_length(self) -> int:
        """Length of all sequences: `max_length`, for block-causal models rounded up to whole blocks."""
        return -(-self.max_length // self.block_length) * self.block_length if self.block_causal else self.max_length

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*TOKENIZED_COLUMNS, "commit_step") if self._needs_steps else TOKENIZED_COLUMNS

    @property
    def _needs_steps(self) -> bool:
        return self.masking == "trajectory" or bool(self.near_steps)

    def check_epochs(self, num_epochs: int) -> None:
        """Raises a `ValueError` if a setting is to change over the epochs, and there are not several."""
        initial = {name: getattr(self, name) for name in ("initial_block_length", "initial_mask_ratio")}
        initial = {name: value for name, value in initial.items() if value is not None}
        if initial and not 1 < num_epochs < sys.maxsize:
            name, value = next(iter(initial.items()))
            raise ValueError(
                f"`{name}={value}` is the value of the first of several epochs, and this training has one, or its "
                "data are streamed and their epochs not known. Set `num_train_epochs`, or leave it out."
            )

    def set_epoch(self, epoch: int, num_epochs: int = 1) -> None:
        """Draws other masks from now on, in worker processes too.

        Args:
            epoch (`int`): counted from 0.
            num_epochs (`int`, *optional*, defaults to 1): of the whole training: how far `epoch` is on the way from
                the initial mask ratio and block length to the final ones.
        """
        self._epoch.copy_(torch.tensor([epoch, num_epochs]))

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s of shape `(num_views * len(examples), max_length)`: `input_ids`; `labels`,
            the clean tokens where they are scored and -100 elsewhere; `attention_mask`, all ones. With `block_causal`
            `labels` of shape `(num_views * len(examples), num_noisy)`, and `input_ids` and `position_ids` (instead of
            `attention_mask`) of shape `(num_views * len(examples), num_noisy + num_clean)`: the blocks that the batch
            needs of the noisy copies, then those of the clean ones. With `suffix_length`, fewer columns, and
            `attention_mask` hides what a row does not see. With `on_policy_ratio`, `on_policy` of shape
            `(num_views * len(examples),)`; with `near_steps`, `late` of the shape of `labels`.
        """
        rows = [row for example in examples for row in self._mask(example)]
        # First views, then second views, of all sequences.
        rows = [row for view in range(self.num_views) for row in rows[view :: self.num_views]]
        clean, masked, scored, visible, late = (torch.stack(field) for field in list(zip(*rows, strict=True))[:5])
        noisy = clean.masked_fill(masked, self.mask_token_id)
        labels = clean.masked_fill(~scored, IGNORE_INDEX)
        batch = {"labels": labels} | ({"late": late} if self.near_steps is not None else {})
        if self.block_causal:
            noisy_part, clean_part = self._needed_parts(scored)
            positions = torch.arange(self.padded_length)
            batch = {name: tensor[:, noisy_part] for name, tensor in batch.items()}
            batch["input_ids"] = torch.cat([noisy[:, noisy_part], clean[:, clean_part]], dim=1)
            batch["position_ids"] = torch.cat([positions[noisy_part], positions[clean_part]]).repeat(len(clean), 1)
        else:
            batch = {"input_ids": noisy, "attention_mask": visible.long(), **batch}
            batch = {name: tensor[:, : visible.sum(dim=1).max()] for name, tensor in batch.items()}
        if self.on_policy_ratio:
            batch["on_policy"] = torch.tensor([row.on_policy for row in rows])
        return batch

    def _needed_parts(self, scored: torch.BoolTensor) -> tuple[slice, slice]:
        """The blocks that a batch needs of the noisy copies and of the clean ones.

        No loss comes from noisy blocks before and behind the scored ones, nor does a scored block see the clean copy
        of the last one or of later blocks.
        """
        blocks = scored.any(dim=0).nonzero() // self.block_length
        # There is nothing scored where a draw masks nothing; one block keeps the loss connected to the weights.
        first, last = (int(blocks.min()), int(blocks.max())) if len(blocks) else (0, 0)
        return slice(first * self.block_length, (last + 1) * self.block_length), slice(0, last * self.block_length)

    def _mask(self, example: dict[str, Any]) -> list[_Row]:
        """The views of a sequence."""
        prompt, completion, commit_step = self.read_row(example)
        sequence = torch.full((self.padded_length,), self.eos_token_id)
        sequence[: len(prompt)] = prompt
        sequence[len(prompt) : len(prompt) + len(completion)] = completion

        generator = self._generator(prompt, completion)
        nothing = torch.zeros(self.num_views, len(sequence), dtype=torch.bool)
        drawn, active, late = nothing, nothing[0].clone(), nothing.clone()
        for start, end in self._draw_active_spans(len(prompt), len(completion), generator):
            steps = commit_step[start - len(prompt) : end - len(prompt)]
            of_first_view = self._draw_masked(steps, generator)
            for view, span in enumerate((of_first_view, ~of_first_view)[: self.num_views]):
                drawn[view, start:end] = span
                late[view, start:end] = self._late(span, steps)
            active[start:end] = True
        # Drawn last, so that the masks are those without it.
        on_policy = torch.rand(self.num_views, generator=generator) < self.on_policy_ratio
        behind, width = torch.arange(len(sequence)) >= end, len(sequence)
        if self.suffix_length is not None:
            width = min(end + self.suffix_length, width)
        visible = torch.arange(len(sequence)) < width
        return [
            _Row(sequence, drawn[view] | behind, active if guessed else drawn[view], visible, late[view], guessed)
            for view, guessed in enumerate(on_policy.tolist())
        ]

    def _late(self, masked: torch.BoolTensor, steps: torch.Tensor) -> torch.BoolTensor:
        """Which masked tokens of a block the teacher has committed `near_steps` after the first of them, or later."""
        if self.near_steps is None or not masked.any():
            return torch.zeros_like(masked)
        return masked & (steps - steps[masked].min() >= self.near_steps)

    def _draw_active_spans(
        self, prompt_length: int, completion_length: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """First position of each active block, and the first one after it."""
        if self.masking == "random":
            return [(prompt_length, self.padded_length)]
        # The published code draws from one block more, which may hold nothing at all.
        if self.padding_blocks:
            completion_length = self.padded_length - prompt_length
        if self.block_causal:
            edges = range(0, prompt_length + completion_length, self.block_length)
            spans = [(max(edge, prompt_length), edge + self.block_length) for edge in edges]
            return [(start, end) for start, end in spans if start < end]
        block_length = round(self._on_the_way(self.initial_block_length, self.block_length))
        num_blocks = -(-completion_length // block_length)
        block = int(torch.randint(num_blocks, (), generator=generator))
        start = prompt_length + block * block_length
        return [(start, min(start + block_length, self.padded_length))]

    def _draw_masked(self, commit_step: torch.Tensor, generator: torch.Generator) -> torch.BoolTensor:
        """Which tokens of the active block are masked in the first view."""
        if self.mask_ratio == "random":
            ratio = 1 - float(torch.rand((), generator=generator))
        else:
            ratio = self._on_the_way(self.initial_mask_ratio, self.mask_ratio)
        noise = torch.rand(len(commit_step), generator=generator)
        if self.masking != "trajectory":
            return noise < ratio
        # Tokens of the last steps, in the order of the noise within a step.
        by_noise = noise.argsort()
        order = by_noise[commit_step[by_noise].argsort(stable=True)]
        num_masked = math.ceil(ratio * len(order))
        return torch.zeros_like(noise, dtype=torch.bool).index_fill(0, order[len(order) - num_masked :], True)

    def _on_the_way(self, first: float | None, last: Any) -> float:
        """The value in this epoch of a setting that goes from `first` to `last`, if it starts elsewhere."""
        epoch, num_epochs = self._epoch.tolist()
        if first is None or num_epochs <= 1:
            return last
        return first + (last - first) * min(epoch / (num_epochs - 1), 1.0)

    def _generator(self, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Generator:
        """A generator seeded by the content of the row, the seed and the epoch."""
        header = torch.tensor([self.seed, int(self._epoch[0]), len(prompt)])
        digest = hashlib.blake2b(torch.cat([header, prompt, completion]).numpy().tobytes(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)

    def read_row(self, example: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns prompt, completion, and the step of each token of the completion and its padding (0 if not used).

        Raises:
            ValueError: if the row cannot be trained on.
        """
        missing = [column for column in self.columns if column not in example]
        if missing:
            raise ValueError(
                f"Rows must have the columns {list(self.columns)}; {missing} missing, got {sorted(example)}. Make "
                "them with `generate_trajectories`, or pass `prompt` and `completion` columns to "
                "`CertaintyForcingTrainer`, which tokenizes them."
            )
        prompt, completion = (read_ids(example, column) for column in TOKENIZED_COLUMNS)
        length = len(prompt) + len(completion)
        if length > self.max_length:
            raise ValueError(
                f"A row must fit in `max_length`, got prompt_ids of length {len(prompt)} and completion_ids of length "
                f"{len(completion)} with max_length={self.max_length}. `max_length` must be at least {length}; or "
                "drop the row."
            )
        self._check_tokens(torch.cat([prompt, completion]))
        return prompt, completion, self._read_steps(example)

    def _check_tokens(self, ids: torch.LongTensor) -> None:
        if (ids == self.mask_token_id).any():
            raise ValueError(
                f"A row must not hold the mask token ({self.mask_token_id}), which the model learns to replace. Drop "
                "such rows."
            )
        if ids.min() < 0 or (self.vocab_size is not None and ids.max() >= self.vocab_size):
            raise ValueError(
                f"Token ids must be in the vocabulary of {self.vocab_size} tokens, got {ids.min()} to {ids.max()}. "
                "Make the data with the tokenizer of the model."
            )

    def _read_steps(self, example: dict[str, Any]) -> torch.Tensor:
        if not self._needs_steps:
            return torch.zeros(self.padded_length)
        steps = torch.as_tensor(example["commit_step"], dtype=torch.long)
        if len(steps) != len(example["completion_ids"]):
            raise ValueError(
                f"`commit_step` must have one entry for each of `completion_ids`, got {len(steps)} for "
                f"{len(example['completion_ids'])}."
            )
        return torch.cat([steps, steps[-1:].expand(self.padded_length)])


__all__ = ["DataCollatorForSemiAutoregressiveMasking", "check_masking_settings"]
