# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Models, prompts and settings by the names that users give them. Imported by commands when they run."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import datasets
import torch
from accelerate import PartialState
from huggingface_hub import constants
from huggingface_hub.utils import HFValidationError, get_session, validate_repo_id
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, cached_file, find_adapter_config_file

from hf_dparallel.data.folder import MANIFEST_NAME
from hf_dparallel.data.prompts import CHAT_COLUMNS, encode_chat, encode_text, has_texts
from hf_dparallel.data.rewards import REFERENCE_COLUMNS
from hf_dparallel.data.sources import has_one_split, load_rows
from hf_dparallel.demo import path_of, word_problem_dataset
from hf_dparallel.environment import require
from hf_dparallel.evaluation.calibration import parse_sweep
from hf_dparallel.generation.configuration import DiffusionGenerationConfig, resolve, special_token_id
from hf_dparallel.generation.mixin import DiffusionGenerationMixin
from hf_dparallel.models.foreign import enable_diffusion_generation


# The dataset name of the bundled word problems.
DEMO = "demo"
_DEMO_ROWS = 512
# Parameters of a model that is as fast in one thread as in several.
_SMALL_MODEL = 10**7


def load_model(
    model: str,
    adapter: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    load_in_4bit: bool = False,
    attn_implementation: str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Returns the model, on this process's device and with its adapter, and the tokenizer."""
    chosen_device = choose_device(device)
    name = path_of(model)
    adapter = path_of(adapter) if adapter is not None else None
    if adapter is not None:
        with checked_name("adapter", adapter):  # before a large model is loaded
            cached_file(adapter, ADAPTER_CONFIG_NAME)
    weights: dict[str, Any] = {}
    if load_in_4bit:
        require("load_in_4bit", "bitsandbytes")
        compute = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
        weights["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
        )
    with checked_name("model", name):
        tokenizer = load_tokenizer(name, revision)
        loaded = AutoModelForMaskedLM.from_pretrained(
            name,
            device_map=chosen_device,
            dtype=dtype,
            attn_implementation=attn_implementation,
            revision=revision or "main",
            trust_remote_code=False,
            **weights,
        )
        if not isinstance(loaded, DiffusionGenerationMixin):
            enable_diffusion_generation(loaded, special_token_id("mask_token_id", loaded.config, tokenizer))
    if adapter is not None:
        with checked_name("adapter", adapter):
            loaded.load_adapter(adapter)
    _share_cores(loaded)
    return loaded.eval(), tokenizer


def choose_device(name: str | None) -> torch.device:
    """Returns the device `name`, by default the one that accelerate chooses."""
    if not name:
        return PartialState().device
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # depends on how torch was built
        raise ValueError(f"`device={name}` cannot be used: {error}. Leave it out to use the best one.") from error


def _share_cores(model: PreTrainedModel) -> None:
    """Runs a small model in one thread until the command ends, unless the user has set the number of threads.

    With several threads, synchronization dominates: 100 times slower on a busy machine.
    """
    context = click.get_current_context(silent=True)
    is_set = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if context is not None and not is_set and model.device.type == "cpu" and model.num_parameters() < _SMALL_MODEL:
        context.call_on_close(partial(torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(1)


@contextmanager
def as_wrong_usage() -> Iterator[None]:
    """Turns a `ValueError` into a `UsageError`."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@as_wrong_usage()
def read_settings(settings: Mapping[str, Any]) -> DiffusionGenerationConfig:
    """Returns the decoding settings that were given. The model's recipe has the others."""
    return DiffusionGenerationConfig(**settings)


@as_wrong_usage()
def read_sweep(text: str) -> tuple[str, list[Any]]:
    """Returns the name of the swept setting and its values."""
    return parse_sweep(text)


def resolve_settings(
    model: PreTrainedModel, given: DiffusionGenerationConfig, tokenizer: PreTrainedTokenizerBase
) -> DiffusionGenerationConfig:
    """Returns all decoding settings of a command. Errors in the options are usage errors."""
    with as_wrong_usage() if given.settings() else nullcontext():
        return resolve(model, given, tokenizer)


def default_batch_size() -> int:
    """Returns a number of prompts to decode together that suits the device."""
    return 16 if torch.cuda.is_available() else 8


def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a model or an adapter. An adapter without a tokenizer uses its base model's."""
    where = {"revision": revision or "main"}
    path = cached_file(name, "tokenizer_config.json", _raise_exceptions_for_missing_entries=False, **where)
    config = find_adapter_config_file(name, **where) if path is None else None
    if config is not None:
        try:
            # The revision belongs to the adapter.
            name, where = json.loads(Path(config).read_text(encoding="utf-8"))["base_model_name_or_path"], {}
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"`{config}` must name the base model of the adapter, got {error!r}.") from error
    elif path is None and Path(name).is_dir() and not Path(name, CONFIG_NAME).is_file():
        raise FileNotFoundError(f"it has neither {CONFIG_NAME} nor {ADAPTER_CONFIG_NAME}. Give another folder.")
    return AutoTokenizer.from_pretrained(name, padding_side="left", trust_remote_code=False, **where)


def read_prompt(word: str | None, text: str | None, prompt_file: str | None) -> str:
    """Returns the prompt, given as an argument, by name or as a file, or read from stdin."""
    given = [source for source in (word, text, prompt_file) if source is not None]
    if len(given) > 1:
        raise click.UsageError("The prompt is given twice: PROMPT, --prompt and --prompt_file are the same. Keep one.")
    if prompt_file is not None:
        given = [Path(prompt_file).read_text(encoding="utf-8")]
    elif not given and sys.stdin.isatty():
        raise click.UsageError("`prompt` is missing. Give it after the model, in quotes, or pipe it into stdin.")
    prompt = given[0] if given else sys.stdin.read()
    if not prompt.strip():
        raise click.UsageError("`prompt` is empty. Give a text with --prompt TEXT.")
    return prompt.rstrip("\n")


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str, raw: bool) -> list[int]:
    """Returns the token ids of a prompt: a user's message, or plain text with `raw` or without a chat template."""
    if tokenizer.chat_template is None or raw:
        return encode_text(tokenizer, text)
    return encode_chat(tokenizer, [{"role": "user", "content": text}])


def load_prompts(
    source: Mapping[str, Any], data: Mapping[str, Any], reward: str | None, default_split: str
) -> datasets.Dataset:
    """Returns the rows of the dataset, with a column `prompt` from `prompt_column` if it is given.

    Args:
        source (`dict`): the options of the model, whose chat template decides how prompts are to be given.
        data (`dict`): the options of the data.
        reward (`str`, *optional*): the reward, whose column the rows must have.
        default_split (`str`): the split of a dataset with several.
    """
    name, num_samples = data["dataset"], data["num_samples"]
    if name is None:
        raise click.UsageError("Missing option '--dataset'.")
    split = data["dataset_split"] or ("train" if has_one_split(name) else default_split)
    dataset = load_split(name, data["dataset_config"], split, num_samples)
    if num_samples is not None:
        dataset = dataset.select(range(min(num_samples, len(dataset))))
    _check_columns(dataset.column_names, data, reward)
    if data["answer_column"] is not None:
        column = REFERENCE_COLUMNS[str(reward)]
        dataset = dataset.map(lambda right: {column: right}, input_columns=data["answer_column"])
    if data["prompt_column"] is not None:
        others = [column for column in CHAT_COLUMNS if column in dataset.column_names]
        return dataset.map(_ask, input_columns=data["prompt_column"], remove_columns=others)
    if not data["raw"] and has_texts(dataset):
        path = path_of(source["model"])
        with checked_name("model", path):
            tokenizer = load_tokenizer(path, source["revision"])
        if tokenizer.chat_template is not None:
            raise ValueError(
                f"The column `prompt` of `dataset={name}` has texts, but `model={source['model']}` has a chat "
                "template. Add --prompt_column prompt to send each text as a user's message, or --raw to continue it."
            )
    return dataset


def _check_columns(columns: list[str], data: Mapping[str, Any], reward: str | None) -> None:
    """Raises a `ValueError` that names all missing columns, and before that an `ImportError` for a missing extra."""
    if reward == "math":
        require("reward=math", "math_verify")
    missing = []
    prompts, answers = data["prompt_column"], data["answer_column"]
    if prompts is None and not {"prompt", *CHAT_COLUMNS} & set(columns):
        missing.append("neither `prompt` nor `messages` (name the column of the texts with --prompt_column)")
    elif prompts not in (None, *columns):
        missing.append(f"no `{prompts}` (--prompt_column)")
    reference = REFERENCE_COLUMNS.get(reward or "")
    if answers is not None and reference is None:
        raise ValueError(f"`answer_column={answers}` needs a `reward` that reads it. Remove it.")
    reference = answers or reference
    if reference not in (None, *columns):
        missing.append(f"no `{reference}` for `reward={reward}` (name the column of the answers with --answer_column)")
    if missing:
        raise ValueError(f"`dataset={data['dataset']}` has {', and '.join(missing)}. Its columns are {columns}.")


def load_split(
    name: str, config: str | None = None, split: str = "train", num_rows: int | None = None
) -> datasets.Dataset:
    """Returns a split of a dataset (see [`load_rows`]), or of the bundled word problems."""
    if name == DEMO:
        return word_problem_dataset(num_rows or _DEMO_ROWS, seed=0, split=split)
    with nullcontext() if has_one_split(name) else checked_name("dataset", name):
        return load_rows(name, config, split)


@contextmanager
def checked_name(argument: str, name: str) -> Iterator[None]:
    """Checks that `name` is a path or a possible name on the Hub, and adds it to errors while it is loaded."""
    if not Path(name).exists():
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise FileNotFoundError(
                f"`{argument}={name}` does not exist, and is not a name on the Hub. Check the path, or give a name "
                "such as 'GSAI-ML/LLaDA-8B-Instruct'."
            ) from error
        _use_cache_if_offline()
    elif Path(name).is_file():
        raise ValueError(f"`{argument}={name}` is a file. Give its folder.")
    elif (Path(name) / MANIFEST_NAME).is_file():
        raise ValueError(f"`{argument}={name}` is a folder of trajectories.")
    try:
        yield
    except FileExistsError:  # of an output folder
        raise
    except OSError as error:
        where = "" if Path(name).exists() else "is not a local folder, and "
        raise OSError(f"`{argument}={name}` {where}cannot be loaded: {error}") from error
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"`{argument}={name}` needs code from its repository, which commands do not run. Load it in Python "
                "with `trust_remote_code=True`, and use `hf_dparallel.enable_diffusion_generation`."
            ) from error
        # The rest of the message lists all classes.
        found, is_other, _ = str(error).partition(" for this kind of AutoModel")
        if is_other:
            raise ValueError(
                f"`{argument}={name}` is not a masked language model ({found}). `hf-dparallel convert` turns a Llama, "
                "Mistral or Qwen into one. Stable-DiffCoder and Open-dCoder have to be loaded with an A2D class in "
                "Python and saved first: see docs/quickstart.md."
            ) from error
        raise


def _use_cache_if_offline() -> None:
    """Switches huggingface_hub to its cache until the command ends, if the Hub cannot be reached.

    Otherwise it would try six times for each file.
    """
    context = click.get_current_context(silent=True)
    if context is None or constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    # huggingface_hub uses httpx or httpx2, depending on its version, and their errors have no base class in common.
    except Exception:  # noqa: BLE001
        context.find_root().call_on_close(partial(setattr, constants, "HF_HUB_OFFLINE", False))
        constants.HF_HUB_OFFLINE = True


def _ask(prompt: Any) -> dict[str, Any]:
    if isinstance(prompt, str):
        # Blank questions are refused like missing ones.
        prompt = [{"role": "user", "content": prompt}] if prompt.strip() else None
    return {"prompt": prompt}
