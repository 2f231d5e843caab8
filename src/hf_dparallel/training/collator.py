# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Semi-autoregressive forward masking: from clean trajectories to masked views and their labels."""

import hashlib
import inspect
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback

from hf_dparallel_rules.settings import SettingError

from ..data.dataset import read_ids
from .objective import IGNORE_INDEX, RowTerms, TokenTerms, mean_by_row


# The settings of masks that a configuration and a collator both have.
MASK_SETTINGS = ("block_length", "mask_ratio", "masking", "complementary_masking", "max_length")
MASKINGS = ("semi_autoregressive", "random", "trajectory")


class Views(NamedTuple):
    """The masked views of a batch, each `(num_views * sequences, length)`: all first views, then all second ones.

    `noisy` has masks in the active blocks and after the last of them, and `labels` the clean tokens where they are
    scored, -100 elsewhere. `answer_start`, `(num_views * sequences, 1)`, is the column of the first answer token.
    """

    clean: torch.LongTensor
    noisy: torch.LongTensor
    labels: torch.LongTensor
    answer_start: torch.LongTensor


class RowScoring:
    """Scores and averages the rows of a batch. A collator that makes other rows overrides what these need."""

    def score(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Scores a batch without its labels by `model.score`, whose further arguments these are."""
        return model.score(inputs, *args, **kwargs)

    def average(self, terms: TokenTerms, batch: dict[str, Any]) -> RowTerms:
        """Returns the terms of each row of a batch from those of all its scored tokens, in row-major order."""
        return mean_by_row(terms, batch["labels"])


class ForeignRows(RowScoring):
    """Scores and averages the rows of a collator that does not say how."""

    def score(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Scores a batch by `model.score`, or raises a [`SettingError`] for what a native model would not read."""
        unread = inputs.keys() - inspect.signature(model.forward).parameters.keys()
        if model.is_native and unread:
            raise SettingError(
                "data_collator",
                None,
                rule=f"makes `{min(unread)}`, which the forward pass of {type(model).__name__} does not take",
                remedy="A collator that wraps one of this package has to be a subclass of it.",
            )
        return super().score(model, inputs, *args, **kwargs)


class DrawsByRow:
    """Draws for the rows of a collator, which depend on the tokens of the row, on `seed` and on the epoch alone."""

    seed: int

    def __post_init__(self):
        # In shared memory, so that workers that are already running (persistent ones) see a new epoch.
        self._epoch = torch.tensor(0).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch (from 0) whose draws come next, in worker processes, too."""
        self._epoch.fill_(epoch)

    def generator_of(self, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Generator:
        """Returns a generator seeded by the content of a row, the seed and the epoch."""
        header = torch.tensor([self.seed, int(self._epoch), len(prompt)])
        content = torch.cat([header, prompt, completion]).numpy().tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        # 63 bits, which are a seed of any device.
        seed = int.from_bytes(digest, "little") >> 1
        return torch.Generator().manual_seed(seed)


@dataclass
class DataCollatorForSemiAutoregressiveMasking(DrawsByRow, RowScoring):
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

    The masks depend only on the tokens of the row, on `seed` and on the epoch (see [`set_epoch`]), not on the batch,
    the order or the number of workers. A resumed run therefore sees the masks of an uninterrupted one, and copies of a
    row have the same masks in an epoch: for more masks, train for more epochs instead of repeating rows.

    Args:
        mask_token_id (`int`):
            Id of the mask token.
        eos_token_id (`int`):
            Id of the end-of-text token, with which sequences are padded.
        block_length, mask_ratio, masking, complementary_masking, max_length:
            As in [`CertaintyForcingConfig`].
        seed (`int`, *optional*, defaults to 0):
            Seed of the masks.
        vocab_size (`int`, *optional*):
            Number of token ids that the model knows. If set, larger ids are refused.

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
    block_length: int = 32
    mask_ratio: float | str = 0.5
    masking: str = "semi_autoregressive"
    complementary_masking: bool = True
    max_length: int = 384
    seed: int = 0
    vocab_size: int | None = None

    def __post_init__(self):
        check_masks(self)
        super().__post_init__()

    @property
    def num_views(self) -> int:
        """Number of rows per sequence."""
        return 2 if self.complementary_masking else 1

    @property
    def padded_length(self) -> int:
        """Length of all sequences."""
        return self.max_length

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        r"""
        Masks and batches `examples`.

        Returns:
            `dict` of `torch.LongTensor`s of shape `(num_views * len(examples), max_length)`: `input_ids`;
            `attention_mask`, all ones; `labels`, the clean tokens where they are scored and -100 elsewhere.
        """
        views = self.mask(examples)
        attention_mask = torch.ones_like(views.noisy)
        return {"input_ids": views.noisy, "attention_mask": attention_mask, "labels": views.labels}

    def mask(self, examples: list[dict[str, Any]]) -> Views:
        """Returns the masked views of `examples`, each padded to `padded_length`."""
        rows = [self._mask_row(example) for example in examples]

        def batched(of_rows: Sequence[torch.Tensor]) -> torch.Tensor:
            # All first views, then all second ones.
            return torch.stack(of_rows, dim=1).flatten(0, 1)

        clean, noisy, labels, answer_start = map(batched, zip(*rows, strict=True))
        return Views(clean=clean, noisy=noisy, labels=labels, answer_start=answer_start)

    def _mask_row(self, example: dict[str, Any]) -> Views:
        """Returns the views of one sequence, each `(num_views, length)`."""
        prompt, completion, steps = self.read_row(example)
        answer_start = len(prompt)
        clean = torch.full((self.padded_length,), self.eos_token_id)
        clean[: answer_start + len(completion)] = torch.cat([prompt, completion])

        generator = self.generator_of(prompt, completion)
        spans = self.active_spans(answer_start, len(completion), generator)
        is_scored = torch.zeros(self.num_views, len(clean), dtype=torch.bool)
        for start, end in spans:
            of_first_view = self._draw_masked(steps[start - answer_start : end - answer_start], generator)
            is_scored[0, start:end] = of_first_view
            if self.complementary_masking:
                is_scored[1, start:end] = ~of_first_view

        _, last_end = spans[-1]
        # Masked, and not scored.
        is_after = torch.arange(len(clean)) >= last_end
        clean = clean.expand(self.num_views, -1)
        return Views(
            clean=clean,
            noisy=clean.masked_fill(is_scored | is_after, self.mask_token_id),
            labels=clean.masked_fill(~is_scored, IGNORE_INDEX),
            answer_start=torch.full((self.num_views, 1), answer_start),
        )

    def active_spans(
        self, prompt_length: int, completion_length: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """Returns the first column of each active block, and the first one after it. Here one block is active."""
        if self.masking == "random":
            return [(prompt_length, self.padded_length)]

        # The published code draws from one more block, which may hold nothing at all.
        num_blocks = -(-completion_length // self.block_length)
        block = int(torch.randint(num_blocks, (), generator=generator))
        start = prompt_length + block * self.block_length
        return [(start, min(start + self.block_length, self.padded_length))]

    def _draw_masked(self, commit_step: torch.Tensor, generator: torch.Generator) -> torch.BoolTensor:
        """Returns which tokens of an active block are masked in the first view."""
        ratio: Any = self.mask_ratio
        if ratio == "random":
            ratio = 1 - float(torch.rand((), generator=generator))

        noise = torch.rand(len(commit_step), generator=generator)
        if self.masking != "trajectory":
            return noise < ratio

        # In the order in which the teacher committed them; in a random one within a step.
        shuffled = noise.argsort()
        in_order = shuffled[commit_step[shuffled].argsort(stable=True)]
        num_masked = math.ceil(ratio * len(in_order))
        committed_last = in_order[len(in_order) - num_masked :]
        return torch.zeros_like(noise, dtype=torch.bool).index_fill(0, committed_last, True)

    def read_row(self, example: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the prompt, the completion, and the commit steps of its tokens and padding (0 if not used).

        The padding is committed with the last token; its steps are more than any row needs. Raises a `ValueError` if
        the row cannot be trained on.
        """
        prompt = read_ids(example, "prompt_ids")
        completion = read_ids(example, "completion_ids")

        ids = torch.cat([prompt, completion])
        if len(ids) > self.max_length:
            raise SettingError(
                "max_length",
                self.max_length,
                rule=f"must be at least {len(ids)} for {len(prompt)} `prompt_ids` and {len(completion)} "
                "`completion_ids`",
                remedy="Or drop the row.",
            )

        if self.mask_token_id in ids.tolist():
            raise SettingError(
                "mask_token_id",
                self.mask_token_id,
                rule="is in a row, and is what the model learns to replace",
                remedy="Drop such rows.",
            )

        if self.vocab_size is not None and ids.max() >= self.vocab_size:
            raise SettingError(
                "vocab_size",
                self.vocab_size,
                rule=f"is too small for the token id {ids.max()} of a row",
                remedy="Make the data with the tokenizer of the model.",
            )

        steps = torch.zeros_like(completion)
        if self.masking == "trajectory":
            remedy = "Make the data with `generate_trajectories`, or leave out `masking`."
            steps = read_ids(example, "commit_step", remedy)
        if len(steps) != len(completion):
            raise ValueError(f"`commit_step` must have a step for each token, got {len(steps)} for {len(completion)}.")
        of_padding = steps[-1:].expand(self.padded_length)
        return prompt, completion, torch.cat([steps, of_padding])


class MaskingCallback(TrainerCallback):
    """Tells the collator the epoch, so that every epoch has its own masks and a resumed one has them again."""

    def __init__(self, data_collator: Any):
        self.data_collator = data_collator

    def on_epoch_begin(self, args, state, control, **kwargs):
        # A run that is resumed within an epoch begins at, say, 1.5.
        self.data_collator.set_epoch(int(state.epoch))


def check_masks(settings: Any) -> None:
    """Raises a [`SettingError`] if a setting of the masks is out of range, of a configuration or a collator."""
    for name in ("block_length", "max_length"):
        value = getattr(settings, name)
        if not isinstance(value, int) or value < 1:
            raise SettingError(name, value, rule="must be a positive integer")

    ratio = settings.mask_ratio
    if ratio != "random" and not (isinstance(ratio, int | float) and 0 < ratio <= 1):
        raise SettingError(
            "mask_ratio",
            ratio,
            rule='must be a number in (0, 1] or "random" (drawn anew for every row)',
            remedy="The paper uses mask_ratio=0.5.",
        )

    if settings.masking not in MASKINGS:
        raise SettingError(
            "masking",
            settings.masking,
            rule='must be "semi_autoregressive" (one active block, as for LLaDA), "random" (the whole answer, as for '
            'Dream) or "trajectory" (what the teacher committed last in a block)',
        )
