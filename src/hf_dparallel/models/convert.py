# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Converts autoregressive checkpoints to masked diffusion models with the same weights, to train as teachers."""

import os
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME

from hf_dparallel_rules.settings import SETTINGS, SettingError

from ..exact.recipe import recipe_of_checkpoint
from ..generation.configuration import DiffusionGenerationConfig, special_token_id
from .a2d.modeling_a2d import FROM_CAUSAL
from .base import MaskedDiffusionModel
from .family import PublishedConfigMixin


# Names of unused tokens in the tokenizers of Llama 3 and Mistral.
_RESERVED = re.compile(r"reserved|unused|control_\d")
# A2D's name. Behind the vocabulary of Qwen3 it has the published id, 151669.
_MASK_TOKEN = "<|mask|>"
# That of a causal past, by a name that no text has.
_TOKEN_AFTER = "<|mask of hf-dparallel|>"


def convert_to_diffusion(
    name: str, *, block_length: int | None = None, attention: str | None = None, **kwargs: Any
) -> tuple[MaskedDiffusionModel, PreTrainedTokenizerBase]:
    r"""
    Loads an autoregressive checkpoint as a masked diffusion model of the A2D family, with its weights bit for bit.

    Only the attention changes. With a causal mask the model computes what it did before; with its own attention it
    answers with noise until it is trained (docs/make_a_teacher.md).

    With `attention="causal_past"` nothing changes for decided tokens: the model answers as before, and mask tokens
    after the row, which an adapter learns to read, propose several tokens in a pass (docs/exact.md).

    The mask token is the tokenizer's own; else a token that it has reserved; else a new one, which takes an unused row
    of the embeddings, or a new row, which begins as their mean. With a causal past it is always a new one, the number
    after the vocabulary: the weights stay as they are, and no token of the model is taken.

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
        ValueError: for another architecture, a sliding window, a diffusion model, or a causal past where answers
            would change: with positions that depend on the length, or a setting of generation_config.json that chooses
            tokens and that exact decoding lacks; or for special tokens without a row of the embeddings.
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

    _check_name(name)
    where = {"revision": kwargs.get("revision", "main"), "trust_remote_code": False}
    config = AutoConfig.from_pretrained(name, **where)
    original = _read_recipe(name, where)
    _check_source(name, config)
    _check_special_tokens(name, config.vocab_size, config)
    # A teacher's recipe: blocks, and one token in each pass. The original's means nothing with other attention.
    recipe = {"block_length": block_length or SETTINGS["block_length"].default}
    if is_autoregressive:
        _check_positions(config)
        recipe |= recipe_of_checkpoint(original)

    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left", **where)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model_class = FROM_CAUSAL[type(config)]
    own = {
        "model_type": model_class.config_class.model_type,
        "block_length": block_length,
        "causal_past": is_autoregressive,
        "shift_logits": is_autoregressive,
        "mask_token_id": None,
    }
    config = model_class.config_class(**config.to_dict() | own)
    model = model_class.from_pretrained(name, config=config, **{"dtype": "auto"} | kwargs)

    add_token = _add_token_after_vocabulary if is_autoregressive else _add_mask_token
    model.config.mask_token_id = add_token(tokenizer, model)
    _check_special_tokens(name, model.config.vocab_size, original, tokenizer)
    for each in ("mask_token_id", "eos_token_id", "pad_token_id"):
        recipe[each] = special_token_id(each, model.generation_config, model.config, tokenizer)
    model.generation_config = DiffusionGenerationConfig(**recipe)
    return model, tokenizer


def _check_name(name: Any) -> None:
    if not isinstance(name, str | os.PathLike):
        raise SettingError(
            "name", type(name).__name__, rule="is no folder and no name on the Hub", remedy="Save the model first."
        )
    if Path(name, ADAPTER_CONFIG_NAME).is_file():
        raise SettingError(
            "name", str(name), rule="is an adapter", remedy="Convert its base model, or save the merged model first."
        )


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


def _check_positions(config: PreTrainedConfig) -> None:
    rope = config.rope_parameters["rope_type"]
    if rope in ("dynamic", "longrope"):
        raise SettingError(
            "attention",
            "causal_past",
            rule=f"does not go with rope_type={rope!r}, whose frequencies change with the length",
            remedy="Use a model without it.",
        )


def _read_recipe(name: str, where: dict[str, Any]) -> GenerationConfig:
    """Returns how transformers would decode a checkpoint."""
    try:
        return GenerationConfig.from_pretrained(name, **where)
    except OSError:
        # Older checkpoints have these settings there.
        return GenerationConfig.from_pretrained(name, config_file_name=CONFIG_NAME, **where)


def _add_mask_token(tokenizer: PreTrainedTokenizerBase, model: MaskedDiffusionModel) -> int:
    """Adds a mask token to tokenizer and model where they lack it, and returns its id."""
    if tokenizer.mask_token in (None, tokenizer.pad_token):
        added = [str(token) for _, token in sorted(tokenizer.added_tokens_decoder.items())]
        reserved = [token for token in added if _RESERVED.search(token) and token != tokenizer.pad_token]
        tokenizer.add_special_tokens({"mask_token": reserved[0] if reserved else _MASK_TOKEN})
    if tokenizer.mask_token_id >= model.config.vocab_size:
        model.resize_token_embeddings(tokenizer.mask_token_id + 1)
    return tokenizer.mask_token_id


def _add_token_after_vocabulary(tokenizer: PreTrainedTokenizerBase, model: MaskedDiffusionModel) -> int:
    """Gives the tokenizer of an autoregressive model a mask token after the vocabulary, and returns its id.

    No token of the model would do, not even a reserved one or an unused row: the model can write each, and is never
    asked to write masks. The new one needs no row of the embeddings ([`~backbones.DiffusionBackbone`]), so that
    adapters fit the original checkpoint. Rows that no token has get names, because tokenizers count on.
    """
    num_rows = model.config.vocab_size
    ids = {token_id for token, token_id in tokenizer.get_vocab().items() if token != _TOKEN_AFTER}
    unnamed = [f"<|unused_{row}|>" for row in range(max(ids) + 1, num_rows)]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in unnamed])
    tokenizer.add_special_tokens({"mask_token": _TOKEN_AFTER})
    if tokenizer.mask_token_id != num_rows:
        raise SettingError(
            "attention",
            "causal_past",
            rule=f"needs a row for each token, and {model.name_or_path!r} has {num_rows} rows for {len(ids)} tokens",
            remedy="Call `resize_token_embeddings(len(tokenizer))` of the original, and save both.",
        )
    return num_rows


def _check_special_tokens(name: str, num_rows: int, *sources: Any) -> None:
    """Raises a [`SettingError`] for a special token that has no row of the embeddings."""
    for source in sources:
        for kind in ("bos_token_id", "eos_token_id", "pad_token_id"):
            token_id = getattr(source, kind, None)
            largest = max(token_id) if isinstance(token_id, list) else token_id
            if largest is not None and largest >= num_rows:
                raise SettingError(
                    kind,
                    token_id,
                    rule=f"is beyond the {num_rows} rows of the embeddings of {name!r}",
                    remedy="Correct it there, or call `resize_token_embeddings` of the original and save both.",
                )
