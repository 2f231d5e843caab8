# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Fixtures that several test files share."""

from pathlib import Path

import pytest
import torch

from hf_dparallel import DreamConfig, DreamForMaskedDiffusion, LLaDAConfig, LLaDAForMaskedDiffusion


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Outputs of the official code on tiny random models, see fixtures/golden/README.md."""
    return Path(__file__).parent / "fixtures" / "golden"


def make_llada(**overrides) -> LLaDAForMaskedDiffusion:
    """A random LLaDA with a vocabulary of 64, whose attention and predictions are sharp enough to tell rows apart."""
    settings = {
        "vocab_size": 64,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "mlp_hidden_size": 64,
        "max_sequence_length": 128,
        "mask_token_id": 63,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    return _sharpened(LLaDAForMaskedDiffusion(LLaDAConfig(**(settings | overrides))))


def make_dream(**overrides) -> DreamForMaskedDiffusion:
    """A random Dream of the same size."""
    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "mask_token_id": 63,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    return _sharpened(DreamForMaskedDiffusion(DreamConfig(**(settings | overrides))))


def _sharpened(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.0 if "embed_tokens" in name or "lm_head" in name else 0.25)
    return model.eval()


@pytest.fixture
def tiny_llada() -> LLaDAForMaskedDiffusion:
    return make_llada()


@pytest.fixture
def tiny_dream() -> DreamForMaskedDiffusion:
    return make_dream()
