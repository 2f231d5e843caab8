# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""docs/fine_tune.md: its data and its commands, as pasted, on a tiny model of each family under the published name."""

import re

import pytest
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel.demo import TEACHER
from hf_dparallel_cli import main
from hf_dparallel_cli.training import read_arguments

from .helpers import make_a2d, make_dream, make_llada, make_llada2, make_nemotron, make_sdar, read_json
from .hub.server import Repository, sha1
from .pages import ROOT, read, run_blocks, shell_commands


PAGE = "docs/fine_tune.md"
CONFIGS = ROOT / "examples" / "configs" / "fine_tune"
FAMILIES = {
    "llada": make_llada,
    "dream": make_dream,
    "a2d": make_a2d,
    "sdar": make_sdar,
    "llada2": make_llada2,
    "nemotron": make_nemotron,
}
LLADA = "GSAI-ML/LLaDA-8B-Instruct"
# What this machine and a tiny model need, and the flags of the page for whole models.
SMALL = ["--max_steps=1", "--gradient_accumulation_steps=2", "--max_length=64", "--use_cpu", "--bf16=false"]
WHOLE = ["--use_peft", "false", "--dtype", "float32", "--learning_rate", "1e-5"]


@pytest.fixture
def published(hub, tmp_path):
    """Puts a tiny model of a family, with the bundled tokenizer, under the name of its file."""

    def put(family: str) -> str:
        tokenizer = AutoTokenizer.from_pretrained(TEACHER)
        ids = {name: getattr(tokenizer, name) for name in ("mask_token_id", "eos_token_id", "pad_token_id")}
        length = {"max_sequence_length" if family == "llada" else "max_position_embeddings": 512}
        FAMILIES[family](vocab_size=len(tokenizer), **ids, **length).save_pretrained(tmp_path / family)
        tokenizer.save_pretrained(tmp_path / family)
        files = {path.name: path.read_bytes() for path in (tmp_path / family).iterdir()}
        name = yaml.safe_load((CONFIGS / f"{family}.yaml").read_text())["model_name_or_path"]
        commit = sha1(files["config.json"])
        hub.repositories[f"models/{name}"] = Repository(commits={commit: files}, refs={"main": commit})
        return name

    return put


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_runs(published, hub, tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    name = published(family)
    run_blocks(PAGE)
    train, evaluate, push, trajectories, distil = (
        [word.replace("llada.yaml", f"{family}.yaml").replace(LLADA, name) for word in words[1:]]
        for words in shell_commands(PAGE)
    )
    assert main([*train, *SMALL]) == 0
    settings = read_json("runs/tuned/training_summary.json")["settings"]
    assert (settings["certainty_weight"], settings["mask_ratio"]) == (0.0, "random")
    if family == "llada":
        assert main(evaluate) == 0
        assert main(push) == 0
        assert "adapter_model.safetensors" in hub.repository("user/tuned").files()
        model = AutoModelForMaskedLM.from_pretrained("runs/tuned")
        model.merge_and_unload()
        model.save_pretrained("runs/merged")
        AutoTokenizer.from_pretrained("runs/tuned").save_pretrained("runs/merged")
        # An untrained model has no right answer.
        assert main([*trajectories, "--reward", "none"]) == 0
        assert main([*distil, "--max_steps", "1", "--use_cpu"]) == 0
    if family in ("dream", "llada2"):
        assert main([*train, *SMALL, *WHOLE, "--output_dir", "runs/whole"]) == 0
        assert (tmp_path / "runs" / "whole" / "model.safetensors").is_file()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_files_differ_in_model_and_masks_only(family):
    _, training, student = read_arguments(["--config", str(CONFIGS / f"{family}.yaml"), "--dataset", "d", "--use_cpu"])
    is_nemotron = family == "nemotron"
    weights = {"consistency": 0.3, "certainty": 0.0, "autoregressive": 1.0}
    assert training.objective.weights == (weights if is_nemotron else {"consistency": 1.0, "certainty": 0.0})
    is_full = FAMILIES[family]().attention == "full"
    assert (training.masking == "random") is is_full and student.use_peft
    files = [yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in (family, "llada")]
    of_the_family = {"model_name_or_path", "masking"}
    if is_nemotron:
        of_the_family |= {"consistency_weight", "autoregressive_weight"}
    assert {name for name in files[0] if files[0][name] != files[1].get(name)} <= of_the_family


def test_the_table_has_every_file():
    assert (
        {path.stem for path in CONFIGS.iterdir()} == set(re.findall(r"`(\w+)\.yaml` \|", read(PAGE))) == set(FAMILIES)
    )
