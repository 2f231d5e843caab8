# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Models, prompts and settings by the names that users give them. Imported by commands when they run."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import datasets
from accelerate import PartialState
from peft import PeftConfig
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ADAPTER_CONFIG_NAME, cached_file, find_adapter_config_file

from hf_dparallel.data.chats import encode_messages, encode_text
from hf_dparallel.data.prompts import CHAT_COLUMNS, has_texts
from hf_dparallel.data.rewards import REFERENCE_COLUMNS
from hf_dparallel.data.sources import has_one_split, load_rows
from hf_dparallel.demo import path_of, word_problem_dataset
from hf_dparallel.environment import require
from hf_dparallel.generation.answerer import Answerer
from hf_dparallel.generation.configuration import DiffusionGenerationConfig, special_token_id
from hf_dparallel.generation.mixin import DiffusionGenerationMixin
from hf_dparallel.models.adapters import merge_unrounded
from hf_dparallel.models.convert import convert_to_diffusion
from hf_dparallel.models.foreign import enable_diffusion_generation
from hf_dparallel_rules.settings import SETTINGS


# The dataset name of the bundled word problems.
DEMO = "demo"


def load_model(options: Mapping[str, Any]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model, on this process's device and with its adapter, and the tokenizer."""
    adapter = options.get("adapter")
    if adapter is not None:
        adapter = path_of(adapter)
        with checked_name("adapter", adapter):  # before a large model is loaded
            cached_file(adapter, ADAPTER_CONFIG_NAME)

    how: dict[str, Any] = {key: options[key] for key in ("dtype", "attn_implementation")}
    if options["load_in_4bit"]:
        require("load_in_4bit", "bitsandbytes")
        compute = options["dtype"]
        if compute == "auto":
            compute = "bfloat16"
        how["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
        )
    how["device_map"] = options["device"] or PartialState().device

    name = path_of(options["model"])
    model, tokenizer = load_base(name, options["causal_past"], revision=options["revision"] or "main", **how)
    if not isinstance(model, DiffusionGenerationMixin):
        mask_token_id = special_token_id("mask_token_id", model.config, tokenizer)
        enable_diffusion_generation(model, mask_token_id)
    if adapter is not None:
        model.load_adapter(adapter)
    return model.eval(), tokenizer


def merge_adapter(model: PreTrainedModel) -> None:
    """Merges the active adapter, if there is one and that changes no answer, and says so."""
    if merge_unrounded(model):
        click.echo("The adapter is merged: passes cost what they cost without it.", err=True)


def load_base(
    name: str, causal_past: bool, revision: str = "main", **how: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns a model and its tokenizer; with `causal_past`, an autoregressive model for exact decoding."""
    with checked_name("model", name):
        if causal_past:
            return convert_to_diffusion(name, attention="causal_past", revision=revision, **how)
        model = AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=False, revision=revision, **how)
    return model, load_tokenizer(name, revision)


def load_tokenizer(name: str, revision: str = "main") -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a model or an adapter. An adapter without a tokenizer uses its base model's."""
    where = {"revision": revision}
    with checked_name("model", name):
        file = cached_file(name, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False, **where)
        if not file and find_adapter_config_file(name, **where):
            name = PeftConfig.from_pretrained(name, **where).base_model_name_or_path
            # The revision belongs to the adapter.
            where = {}
        return AutoTokenizer.from_pretrained(name, padding_side="left", trust_remote_code=False, **where)


def read_settings(options: Mapping[str, Any]) -> DiffusionGenerationConfig:
    """Returns the decoding settings among the options. The model's recipe has the others."""
    given = {name: options[name] for name in SETTINGS if options.get(name) not in (None, ())}
    return DiffusionGenerationConfig(**given)


def load_answerer(options: Mapping[str, Any]) -> Answerer:
    """Returns the model with its tokenizer, its resolved settings, batch size and seed."""
    given = read_settings(options)
    model, tokenizer = load_model(options)
    return Answerer(model, tokenizer, given, options.get("batch_size", 16), options["seed"])


def read_prompt(options: Mapping[str, Any]) -> str:
    """Returns the prompt, given as an argument or read from stdin."""
    text = options["prompt"]
    if text is None:
        text = "" if sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise click.UsageError("`prompt` is empty. Give it after the model, in quotes, or pipe it into stdin.")
    return text.rstrip("\n")


def encode_question(answerer: Answerer, text: str, raw: bool) -> list[int]:
    """Returns the token ids of a user's message, or of plain text with `raw` or without a chat template."""
    if answerer.tokenizer.chat_template is None or raw:
        return encode_text(answerer.tokenizer, text)
    return encode_messages(answerer, [{"role": "user", "content": text}])


def load_prompts(options: Mapping[str, Any], reward: str, default_split: str) -> datasets.Dataset:
    """Returns the rows of the dataset, with a column of prompts and one of answers for the reward.

    The chat template of the model decides how prompts are to be given.
    """
    name = options["dataset"]
    num_samples = options["num_samples"]
    asked = options["prompt_column"]
    right = options["answer_column"]

    split = options["dataset_split"] or default_split
    if has_one_split(name) and not options["dataset_split"]:
        split = "train"
    dataset = load_split(name, options["dataset_config"], split, num_samples)
    if num_samples is not None:
        dataset = dataset.select(range(min(num_samples, len(dataset))))

    reference = REFERENCE_COLUMNS.get(reward)
    if right is not None and reference is None:
        raise ValueError(f"`answer_column={right}` needs a `reward` that reads it. Remove it.")

    prompt_columns = [asked] if asked else ["prompt", *CHAT_COLUMNS]
    for option, columns in (("prompt_column", prompt_columns), ("answer_column", [right or reference])):
        if not {None, *dataset.column_names} & {*columns}:
            names = " or ".join(f"`{column}`" for column in columns)
            raise ValueError(f"`dataset={name}` has no {names}, only {dataset.column_names}. Give its --{option}.")

    if right is not None:
        dataset = dataset.map(lambda answer: {reference: answer}, input_columns=right)
    if asked is not None:
        others = [column for column in CHAT_COLUMNS if column in dataset.column_names]
        return dataset.map(
            lambda text: {"prompt": [{"role": "user", "content": text}]}, input_columns=asked, remove_columns=others
        )
    is_clear = options["raw"] or not has_texts(dataset)
    if (
        not is_clear
        and load_tokenizer(path_of(options["model"]), options["revision"] or "main").chat_template is not None
    ):
        raise ValueError(
            f"The column `prompt` of `dataset={name}` has texts, but `model={options['model']}` has a chat template. "
            "Add --prompt_column prompt to send each text as a user's message, or --raw to continue it."
        )
    return dataset


def load_split(
    name: str, config: str | None = None, split: str = "train", num_rows: int | None = None
) -> datasets.Dataset:
    """Returns a split of a dataset (see [`load_rows`]), or of the bundled word problems."""
    if name == DEMO:
        return word_problem_dataset(num_rows or 512, seed=0, split=split)
    with checked_name("dataset", name):
        return load_rows(name, config, split)


@contextmanager
def checked_name(argument: str, name: str) -> Iterator[None]:
    """Adds a name, a path or a possible name on the Hub, to errors while something is loaded by it."""
    try:
        yield
    except (OSError, ValueError) as error:
        # After this, transformers lists all classes.
        problem = str(error).partition(" for this kind of AutoModel")[0]
        raise OSError(f"`{argument}={name}` cannot be loaded: {problem}") from error
