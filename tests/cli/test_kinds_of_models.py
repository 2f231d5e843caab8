# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every command that decodes, with the block length and cache that a model has by default: one that is block-causal,
one of another class, as ModernBERT-chat, and one whose noise is random tokens."""

import io
import sys
from pathlib import Path

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel_cli.loading import load_split

from ..helpers import make_modernbert, make_sdar, make_tokenizer, read_json
from .helpers import answer, write_questions


# The end of the prompt shares a block with the answer, and the last block is longer than that.
DECODING = ["--max_new_tokens", "9", "--entropy_threshold", "1.0"]
CALIBRATION = ["--max_new_tokens", "9", "--max_accuracy_drop", "0.9", "--confidence", "0.5"]
SETTINGS = {"max_new_tokens": 9, "block_length": None}
PROMPT = "5 6 7"


@pytest.fixture(scope="module", params=[make_sdar, make_modernbert], ids=["sdar", "modernbert"])
def checkpoint(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    request.param().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def questions(tmp_path, checkpoint) -> list[str]:
    """Questions of different lengths, half of them with the answer that the model gives."""
    texts = [" ".join(str(5 + number + place) for place in range(1 + number)) for number in range(4)]
    return ["--dataset", write_questions(tmp_path, checkpoint, texts, **SETTINGS), "--prompt_column", "question"]


def test_generate_inspect_and_chat_show_one_answer(hf, checkpoint, monkeypatch):
    text, nfe = answer(checkpoint, PROMPT, **SETTINGS)
    flags = ["--model", checkpoint, "--prompt", PROMPT, *DECODING]
    assert hf("generate", *flags, "--stream", "--json", "g.json")[:2] == (0, text + "\n")
    assert read_json("g.json")["nfe"] == nfe
    code, out, _ = hf("inspect", *flags, "--output_file", "page.html")
    assert code == 0 and Path("page.html").is_file() and f"{nfe} passes, " in out
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    code, out, _ = hf("chat", checkpoint, *DECODING)
    assert code == 0 and out.splitlines() == [text]


def test_data_are_evaluated_calibrated_and_kept(hf, checkpoint, questions):
    flags = ["--model", checkpoint, *questions]
    code, *_ = hf("evaluate", *flags, *DECODING, "--batch_size", "3", "--json", "e.json")
    assert code == 0 and read_json("e.json")["accuracy"] == 0.5
    calibrate = [*CALIBRATION, "--sweep", "entropy_threshold=1", "--output_dir", "recipe"]
    code, _, err = hf("calibrate", *flags, *calibrate)
    assert code == 0, err
    # The block length and the cache are the model's, and no recipe needs to say them.
    recipe = DiffusionGenerationConfig.from_pretrained("recipe")
    assert recipe.entropy_threshold == 1 and recipe.cache_implementation in (None, "block")
    code, *_ = hf("trajectories", *flags, *DECODING, "--output_dir", "kept")
    assert code == 0 and len(load_split("kept")) == 2
