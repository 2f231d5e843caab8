# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel fit`: its verdict, what it advises, and where others show it."""

import json
import re
import shlex
from types import SimpleNamespace

import pytest
import torch

from hf_dparallel import A2DQwen3Config, LLaDAConfig, SDARConfig
from hf_dparallel.cli import fit_command

from ..helpers import make_diffusion_gemma, make_modernbert, read_json
from ..pages import blocks, read


@pytest.fixture
def published(tmp_path) -> str:
    """A folder with the `config.json` of four layers of LLaDA-8B, and nothing else."""
    LLaDAConfig(dtype="bfloat16", n_layers=4).save_pretrained(tmp_path / "llada")
    return str(tmp_path / "llada")


@pytest.mark.parametrize("spare", [0, -1])
def test_it_fits_to_the_last_byte(hf, published, monkeypatch, spare):
    hf("fit", published, "--memory", "100GB", "--json", "roomy.json")
    figures = read_json("roomy.json")
    assert figures["fits"] and figures["total"] == sum(figures["parts"].values()) and figures["would_fit"] == {}
    monkeypatch.setattr(fit_command, "available_memory", lambda flags: figures["total"] + spare)
    code, out, err = hf("fit", published, "--json", "tight.json")
    assert (code, read_json("tight.json")["fits"]) == ((0, True) if spare == 0 else (1, False))
    assert out.startswith("weights      3.8 GB\n")
    assert "which fits." in out if spare == 0 else "error: Memory: 4.4 GB of 4.4 GB, which does not fit. " in err


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ("--memory 4GB", {"load_in_4bit"}),
        ("--memory 5GB --batch_size 64", {"batch_size"}),
        ("--memory 5GB --dtype float32", {"dtype"}),
        ("--memory 3.5GB --batch_size 64 --dtype float32", {"dtype", "batch_size", "load_in_4bit"}),
        ("--memory 5GB --train --no_activation_checkpointing", {"activation_checkpointing"}),
        ("--memory 6GB --train --no_use_peft", {"use_peft"}),
        ("--memory 4GB --train --lora_r 8", {"load_in_4bit"}),
        ("--memory 5GB --train --per_device_train_batch_size 16", {"per_device_train_batch_size"}),
        ("--memory 1GB", set()),
    ],
)
def test_what_is_advised_fits(hf, published, flags, changed):
    flags = ["fit", published, *shlex.split(flags)]
    code, _, err = hf(*flags, "--json", "f.json")
    advised = read_json("f.json")["would_fit"]
    assert code == 1 and advised.keys() == changed
    if not advised:
        assert "No setting makes it fit." in err
        return
    words = err.partition(" Add ")[2].partition(":")[0].split()
    assert len(words) == sum(1 if value is True else 2 for value in advised.values())
    # What is given last counts.
    assert hf(*flags, *words)[0] == 0


def test_lengths_and_caches_count(hf, tmp_path):
    SDARConfig(dtype="bfloat16", num_hidden_layers=4).save_pretrained(tmp_path)

    def parts(*flags):
        assert hf("fit", tmp_path, "--memory", "100GB", *flags, "--json", "f.json")[0] == 0
        return read_json("f.json")["parts"]

    plain, longer = parts(), parts("--max_new_tokens", "768")
    assert longer["cache"] == 2 * plain["cache"] > 0 and longer["activations"] == plain["activations"]
    assert parts("--batch_size", "4")["cache"] == 4 * plain["cache"]
    assert parts("--prompt_length", "1024")["activations"] > 2 * plain["activations"]
    trained = parts("--train", "--lora_r", "4")
    assert trained["adapter"] > 0 == trained["cache"]
    assert parts("--train", "--lora_r", "8")["adapter"] == 2 * trained["adapter"]
    assert parts("--train", "--lora_r", "4", "--max_length", "768")["activations"] > 1.5 * trained["activations"]


def test_a_model_of_canvases_of_random_tokens(hf, tmp_path):
    make_diffusion_gemma(canvas_length=32).config.save_pretrained(tmp_path)

    def parts(*flags):
        code, out, _ = hf("fit", tmp_path, "--memory", "2GB", *flags, "--json", "f.json")
        assert code == 0 and "which fits." in out
        return read_json("f.json")["parts"]

    plain = parts("--max_new_tokens", "64")
    assert all(plain[name] > 0 for name in ("weights", "cache", "activations"))
    assert parts("--max_new_tokens", "33") == plain
    assert parts("--max_new_tokens", "64", "--batch_size", "4")["cache"] == 4 * plain["cache"]


def test_without_a_size_it_is_what_the_device_has(hf, monkeypatch):
    assert hf("fit", "demo", "--device", "cpu")[0] == 0
    monkeypatch.setattr(fit_command, "choose_device", lambda name: torch.device("cuda:1"))
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (device.index * 10**10, 10**11))
    assert "Memory: 0.5 GB of 10.0 GB, which fits.\n" in hf("fit", "demo")[1]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("demo --memory 24", 2, "`memory` must be in MB or GB, such as 24GB, got '24'."),
        ("demo --prompt_length 8 --train", 2, "`prompt_length` and `train` are both given."),
        ("demo --batch_size 8 --train", 2, "`batch_size` and `train` are both given."),
        ("demo --lora_r 8", 2, "`lora_r` needs `train`."),
        ("demo --block_length 0", 2, "`block_length` must be a positive integer"),
        ("no/such/folder", 1, "`model=no/such/folder` does not exist"),
        ("gpt2", 1, "`model=gpt2` is not a masked language model"),
        ("mine", 1, "model type `mine`"),
        ("bert", 1, "The memory of `model=bert` is not known."),
        ("gemma --train", 1, "The memory for training `model=gemma` is not known. It is for what"),
    ],
)
def test_what_it_cannot_say(hf, tmp_path, flags, code, message):
    for kind in ("gpt2", "mine"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    make_modernbert().config.save_pretrained(tmp_path / "bert")
    make_diffusion_gemma().config.save_pretrained(tmp_path / "gemma")
    found, out, err = hf("fit", *flags.split())
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1


def test_few_bytes_are_shown_in_smaller_units(hf):
    assert hf("fit", "demo")[1].splitlines()[0] == "weights      11.6 MB"


def test_other_commands_note_it(capsys):
    fit_command.note_fit(model="no/such/folder")
    assert capsys.readouterr() == ("", "")
    flags = SimpleNamespace(batch_size=None, dtype="bfloat16", revision=None, reward="none")
    fit_command.note_fit(flags, model="demo", batch_size=512, memory="1.2GB")
    assert capsys.readouterr().err == "Memory: 1.5 GB of 1.2 GB, which does not fit. Add --batch_size 256: 1.0 GB.\n"


def test_the_page_on_training_shows_what_it_prints(hf, tmp_path):
    LLaDAConfig(dtype="bfloat16").save_pretrained(tmp_path / "llada")
    assert hf("fit", tmp_path / "llada", "--train", "--memory", "24GB")[1] == blocks("docs/training.md", "text")[0]


# What the checkpoints of these names say in `config.json`.
QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936, "dtype": "bfloat16"}
SMALL = QWEN3 | {"num_attention_heads": 16, "num_hidden_layers": 28, "tie_word_embeddings": True}
LARGE = QWEN3 | {"num_attention_heads": 32, "num_hidden_layers": 36, "tie_word_embeddings": False}
PUBLISHED = {
    "Qwen3-0.6B-diffusion": A2DQwen3Config(hidden_size=1024, intermediate_size=3072, **SMALL),
    "SDAR-1.7B": SDARConfig(hidden_size=2048, intermediate_size=6144, **SMALL),
    "LLaDA-8B": LLaDAConfig(dtype="bfloat16"),
    "SDAR-8B": SDARConfig(hidden_size=4096, intermediate_size=12288, **LARGE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_tables_of_memory_are_what_it_prints(hf, tmp_path, name):
    PUBLISHED[name].save_pretrained(tmp_path / "model")
    cells = []
    for flags in ([], ["--load_in_4bit"], ["--train"], ["--train", "--load_in_4bit"]):
        out = hf("fit", tmp_path / "model", *flags, "--memory", "100GB")[1]
        cells.append(re.findall(r"^Memory: (\S+ GB)", out, flags=re.MULTILINE)[0])
    assert f"\n| {name} | {' | '.join(cells)} |\n" in read("docs/training.md")
    if f"\n| {name} |" in (readme := read("README.md")):
        assert f"\n| {name} | {cells[0]} | {cells[2]} | {cells[3]} |\n" in readme
