# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Servers of the bundled teacher, on a free port of this machine."""

import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.demo.pipeline import load_teacher
from hf_dparallel.serving.api import ServedModel
from hf_dparallel.serving.json import TAGS

from ..helpers import make_llada
from .helpers import make, running


@pytest.fixture(scope="session")
def served() -> ServedModel:
    """The bundled teacher. In float64, as in exact arithmetic, no answer depends on what else is in the batch."""
    model, tokenizer = load_teacher(torch.float64)
    return ServedModel("demo", model, tokenizer, DiffusionGenerationConfig(entropy_threshold=0.5, max_new_tokens=64))


@pytest.fixture(scope="session")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that a character may need several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with tokens such as `",` that end a value and begin what follows, and with Qwen's tags as tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<eos>", "<mask>"],
        show_progress=False,
    )
    backend.train_from_iterator([json.dumps({"what": "café", "how many": n, "b": True}) for n in range(40)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<eos>",
        mask_token="<mask>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return tokenizer


@pytest.fixture(scope="session")
def served_json(tokenizer) -> ServedModel:
    recipe = DiffusionGenerationConfig(max_new_tokens=104, block_length=8, entropy_threshold=4.0)
    return ServedModel("tiny", make(make_llada, tokenizer), tokenizer, recipe)


@pytest.fixture(scope="session")
def json_server(served_json):
    with running(served_json) as server:
        yield server
