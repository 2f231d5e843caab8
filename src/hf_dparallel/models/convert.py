# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Converts autoregressive checkpoints to masked diffusion models with the same weights, to train as teachers."""

import os
import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ADAPTER_CONFIG_NAME

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..generation.configuration import DiffusionGenerationConfig, special_token_id
from .a2d.modeling_a2d import FROM_CAUSAL
from .base import MaskedDiffusionModel
from .family import PublishedConfigMixin


# Names of unused tokens in the tokenizers of Llama 3 and Mistral.
_RESERVED = re.compile(r"reserved|unused|control_\d")
# A2D's name. Behind the vocabulary of Qwen3 it has the published id, 151669.
_MASK_TOKEN = "<|mask|>"


def convert_to_diffusion(
    name: str, *, block_length: int | None = None, attention: str | None = None, **kwargs: Any
) -> tuple[MaskedDiffusionModel, PreTrainedTokenizerBase]:
    r"""
    Loads an autoregressive checkpoint as a masked diffusion model of the A2D family, with its weights bit for bit.

    Only the attention changes. With a causal mask the model computes what it did before; with its own attention it
    answers with noise until it is trained (docs/make_a_teacher.md).

    With `attention="causal_past"` nothing changes for decided tokens: the model answers as before, and mask tokens
    after the row, which an adapter learns to read, propose several tokens in a pass (docs/exact.md).

    The mask token is the tokenizer's own; else a token that it has reserved (with a causal past also a special token
    that neither texts nor the chat template have); else a new one. A new one takes an unused row of the embeddings, or
    a new row, which begins as their mean. (With a causal past it does not: adapters fit the original checkpoint.)

    Args:
        name (`str`):
            A Llama, Mistral, Qwen2 or Qwen3: a folder, or a name on the Hub.
        block_length (`int`, *optional*):
            Tokens of a block: attention is then bidirectional inside a block and causal across blocks, and the block
            cache exact. By default every token sees every other one. With a causal past, the most tokens that a pass
            decides, 16 by default.
        attention (`str`, *optional*):
            `"causal_past"`, by default as `block_length` says.
        kwargs:
            Further arguments of `from_pretrained`, such as `dtype` (by default as in the checkpoint), `device_map` and
            `revision`.

    Returns:
        `tuple` of the model and the tokenizer, both to be saved with `save_pretrained`.

    Raises:
        ValueError: for another architecture, a sliding window, a diffusion model, or a causal past where masks
            would change the tokens: without a row for them, or with positions that depend on the length.
    """
    block_length = SETTINGS["block_length"].read(block_length)
    is_autoregressive = attention == "causal_past"
    if attention is not None and not is_autoregressive:
        raise SettingError(
            "attention",
            attention,
            rule='must be "causal_past" or None',
            remedy="Leave it out: with `block_length` it is block-causal, else full.",
        )
    if is_autoregressive and block_length is None:
        block_length = 16
    if not isinstance(name, str | os.PathLike):
        raise SettingError(
            "name", type(name).__name__, rule="is no folder and no name on the Hub", remedy="Save the model first."
        )
    if Path(name, ADAPTER_CONFIG_NAME).is_file():
        raise SettingError(
            "name", str(name), rule="is an adapter", remedy="Convert its base model, or save the merged model first."
        )
    where = {"revision": kwargs.get("revision", "main"), "trust_remote_code": False}
    config = AutoConfig.from_pretrained(name, **where)
    _check_source(name, config)
    rope = config.rope_parameters["rope_type"]
    if is_autoregressive and rope in ("dynamic", "longrope"):
        raise SettingError(
            "attention",
            attention,
            rule=f"does not go with rope_type={rope!r}, whose frequencies change with the length",
            remedy="Use a model without it.",
        )
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **where)
    model_class = FROM_CAUSAL[type(config)]
    config_class = model_class.config_class
    own = {"model_type": config_class.model_type, "block_length": block_length, "mask_token_id": None}
    own |= dict.fromkeys(("causal_past", "shift_logits"), is_autoregressive)
    config = config_class(**config.to_dict() | own)
    model = model_class.from_pretrained(name, config=config, **{"dtype": "auto"} | kwargs)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model.config.mask_token_id = _add_mask_token(tokenizer, model)
    names = ("mask_token_id", "eos_token_id", "pad_token_id")
    tokens = {each: special_token_id(each, model.generation_config, model.config, tokenizer) for each in names}
    # A teacher's recipe: blocks, and one token in each pass. The original's sampling means nothing here.
    length = block_length or SETTINGS["block_length"].default
    model.generation_config = DiffusionGenerationConfig(block_length=length, **tokens)
    return model, tokenizer


def _check_source(name: str, config: PreTrainedConfig) -> None:
    remedy = "Give a Llama, Mistral, Qwen2 or Qwen3."
    if isinstance(config, PublishedConfigMixin):
        raise SettingError(
            "model", name, rule="is a diffusion model already", remedy="Load it with `AutoModelForMaskedLM`."
        )
    if type(config) not in FROM_CAUSAL:
        raise SettingError(
            "model",
            name,
            rule=f"is of the type {config.model_type!r}, whose weights no diffusion model takes",
            remedy=remedy,
        )
    if getattr(config, "quantization_config", None) is not None:
        raise SettingError(
            "model", name, rule="is quantized, and its weights are trained", remedy="Give one that is not."
        )
    if getattr(config, "sliding_window", None) is not None:
        raise SettingError(
            "model",
            name,
            rule=f"has a sliding window of {config.sliding_window} tokens, which no diffusion model has",
            remedy=f"{remedy[:-1]} without one.",
        )


def _add_mask_token(tokenizer: PreTrainedTokenizerBase, model: MaskedDiffusionModel) -> int:
    """Adds a mask token to tokenizer and model where they lack it, and returns its id."""
    if tokenizer.mask_token in (None, tokenizer.pad_token):
        reserved = [str(token) for _, token in sorted(tokenizer.added_tokens_decoder.items())]
        free = [token for token in reserved if _RESERVED.search(token) and token != tokenizer.pad_token]
        if not free and model.is_autoregressive:
            # Without a new row of the embeddings, so that an adapter fits the original checkpoint.
            used = {tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token}
            free = [token for token in reserved if token not in used and token not in str(tokenizer.chat_template)][
                -1:
            ]
        unused = free[0] if free else _MASK_TOKEN
        tokenizer.add_special_tokens({"mask_token": unused})
    if tokenizer.mask_token_id >= model.config.vocab_size:
        if model.is_autoregressive:
            raise SettingError(
                "attention",
                "causal_past",
                rule=f"needs a mask token, and the tokenizer of {model.name_or_path!r} has no special token to spare",
                remedy="Add one to tokenizer and model (`add_special_tokens`, `resize_token_embeddings`), and save "
                "both.",
            )
        model.resize_token_embeddings(tokenizer.mask_token_id + 1)
    return tokenizer.mask_token_id
