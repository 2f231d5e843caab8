# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Decodes the prompts of a dataset, each with its own random state."""

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from hf_dparallel_rules.settings import SETTINGS

from ..hashes import model_hash, stable_hash
from .configuration import DiffusionGenerationConfig, check_chat, resolve
from .output import DecodedRow, DiffusionGenerationOutput, collect_rows


Key = TypeVar("Key", int, str)


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Puts a model in evaluation mode, and every module back in its own mode, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def row_generator(device: torch.device, seed: int, row: int | str) -> torch.Generator:
    """Returns the random state of a row, which does not depend on the batch of the row."""
    return torch.Generator(device).manual_seed(stable_hash(seed, row))


@dataclass
class Answerer:
    r"""
    Decodes the prompts of a dataset with a model, its tokenizer and one recipe.

    Args:
        model ([`~transformers.PreTrainedModel`]): with `generate_many`. It is used in evaluation mode.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer.
        generation_config ([`DiffusionGenerationConfig`], *optional*): the recipe, by default the model's own.
        batch_size (`int`, *optional*, defaults to 16): prompts decoded together.
        seed (`int`, *optional*, defaults to 0): seed of the draws; each prompt draws from it and its number.

    Attributes:
        config ([`DiffusionGenerationConfig`]): the resolved settings, special tokens included.

    Example:

    ```python
    >>> answerer = Answerer(model, tokenizer).with_(entropy_threshold=0.5, max_new_tokens=64)
    >>> for number, answer in answerer.rows(enumerate(tokenizer(texts)["input_ids"])):
    ...     print(number, tokenizer.decode(answer.tokens, skip_special_tokens=True), answer.nfe)
    ```
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: GenerationConfig | None = None
    batch_size: int = 16
    seed: int = 0
    config: DiffusionGenerationConfig = field(init=False)

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {self.batch_size}.")
        check_chat(self.model, getattr(self.generation_config, "chat_template_kwargs", None))
        self.config = resolve(self.model, self.generation_config, self.tokenizer)

    def with_(self, **settings) -> "Answerer":
        """Returns a copy with other settings; `None` unsets one."""
        given = self.generation_config or DiffusionGenerationConfig()
        recipe = DiffusionGenerationConfig.from_generation_config(given).updated(**settings)
        return replace(self, generation_config=recipe)

    def rows(
        self,
        prompts: Iterable[tuple[Key, list[int]]],
        stopping_criteria: StoppingCriteriaList | None = None,
        raise_errors: bool = True,
    ) -> Generator[tuple[Key, DecodedRow], None, None]:
        """Yields the number (or name) of a prompt and the answer to it, when it is finished.

        Args:
            prompts (`Iterable[tuple[int, list[int]]]`): the number (or name) of each prompt, and its token ids.
                Neighbours of similar length need the least padding.
            stopping_criteria, raise_errors: as in `generate_many` and [`SlotDecoder.as_completed`].
        """
        numbered = list(prompts)
        with evaluation_mode(self.model):
            answers = self.model.generate_many(
                (token_ids for _, token_ids in numbered),
                self.config,
                self.batch_size,
                stopping_criteria=stopping_criteria,
                tokenizer=self.tokenizer,
                generator_for=lambda index: row_generator(self.model.device, self.seed, numbered[index][0]),
            )
            for answer in answers.as_completed(raise_errors):
                yield numbered[answer.index][0], answer

    def decode(
        self,
        prompts: Sequence[list[int]],
        description: str | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
    ) -> DiffusionGenerationOutput:
        """Decodes prompts of any lengths, and returns one output for all, as `generate` would with enough memory.

        With a `description` there is a progress bar of that title. `stopping_criteria` are those of `generate_many`.
        """
        # With a description, $TQDM_DISABLE decides.
        silent = {"disable": True} if description is None else {}
        decoded = tqdm(self.rows(enumerate(prompts), stopping_criteria), description, len(prompts), **silent)
        rows = [row for _, row in sorted(decoded, key=lambda answer: answer[0])]
        prompt_ids = [torch.tensor(ids, device=rows[0].tokens.device) for ids in prompts]
        padding = self.config.padding_token_id
        padded = pad_sequence(prompt_ids, batch_first=True, padding_value=padding, padding_side="left")
        return collect_rows(rows, padded, self.config.updated(return_dict_in_generate=True))

    def fingerprint(self) -> dict[str, Any]:
        """Returns everything that affects the answers (model, adapters, recipe, seed), as names and as hashes."""
        return {
            "seed": self.seed,
            "model name": self.model.config.name_or_path,
            "dtype": str(self.model.dtype),
            "weights and adapters": model_hash(self.model),
            **{
                f"generation_config.{name}": value
                for name, value in self.config.settings().items()
                if SETTINGS[name].group not in ("compile", "output")
            },
        }
