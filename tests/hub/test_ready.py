# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Ready students: tiny models with the published form of config.json, loaded from the Hub by the published names."""

import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, pipeline

from hf_dparallel import DiffusionGenerationConfig, SDARForMaskedDiffusion
from hf_dparallel.models.family import ready_students
from hf_dparallel_cli import main

from ..helpers import make_tokenizer
from ..pages import python_blocks
from .server import Repository, sha1


STUDENTS = ready_students()
# Models by the official code, which wrote their files, too.
FILES = {"Dream": "dream", "llada": "llada", "llada2_moe": "llada2", "sdar": "sdar", "Fast_dLLM_Qwen": "fast_dllm_v2"}
DPARALLEL, SDAR = "Zigeng/dParallel-LLaDA-8B-instruct", "JetLM/SDAR-8B-Chat-b32"
# Sampling settings, as SDAR's files have them, are no recipe.
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.fixture
def publish(hub, golden_dir, tmp_path):
    """Puts a tiny model of the right architecture under the name of a student; further files may replace its."""

    def put(name: str, **files: dict) -> Path:
        folders = (golden_dir / FILES[STUDENTS[name]["model_type"]] / "model", tmp_path / "tokenizer")
        make_tokenizer().save_pretrained(folders[1])
        contents = {path.name: path.read_bytes() for folder in folders for path in folder.iterdir()}
        config = json.loads(contents["config.json"])
        config = {key: value for key, value in config.items() if key not in STUDENTS[name].get("config", {})}
        # The defaults of the classes are for the published vocabularies.
        config = {"mask_token_id": 250, "eos_token_id": 244} | config
        contents["config.json"] = json.dumps(config).encode()
        contents |= {f"{stem}.json": json.dumps(content).encode() for stem, content in files.items()}
        commit = sha1(b"".join(contents.values()))
        hub.repositories[f"models/{name}"] = Repository(commits={commit: contents}, refs={"main": commit})
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            (tmp_path / name / file).write_bytes(content)
        return tmp_path / name

    return put


# One of each model and kind of recipe.
KINDS = {(student["model_type"], *student["recipe"]): name for name, student in STUDENTS.items()}


@pytest.mark.parametrize("name", KINDS.values())
def test_a_student_decodes_with_the_recipe_of_its_authors(publish, name, caplog):
    student, recipe = STUDENTS[name], STUDENTS[name]["recipe"]
    folder = publish(name, **({"generation_config": SAMPLING} if student["model_type"] == "sdar" else {}))
    with caplog.at_level(logging.WARNING, "transformers"):
        model = AutoModelForMaskedLM.from_pretrained(name)
    assert [line for line in caplog.messages if f"{name} has no recipe, so that of {student['source']}" in line]
    assert model.generation_config.settings().items() >= recipe.items()
    assert all(getattr(model.config, key) == value for key, value in student.get("config", {}).items())
    length = 64 if "max_active_blocks" in recipe else 32
    inputs = {"input_ids": torch.arange(10, 18)[None], "max_new_tokens": length, "return_dict_in_generate": True}
    out = model.generate(**inputs)
    # The folder has no such name.
    given = AutoModelForMaskedLM.from_pretrained(folder, **student.get("config", {}))
    assert given.generation_config.commit_rule() is None
    expected = given.generate(**recipe | inputs)
    assert torch.equal(out.sequences, expected.sequences) and torch.equal(out.nfe, expected.nfe)


def test_a_recipe_of_the_repository_and_the_settings_of_the_user_take_precedence(publish):
    publish(DPARALLEL, generation_config={"confidence_threshold": 0.8, "block_length": 16})
    model = AutoModelForMaskedLM.from_pretrained(DPARALLEL)
    assert (model.generation_config.confidence_threshold, model.generation_config.entropy_threshold) == (0.8, None)
    publish(DPARALLEL)
    given = DiffusionGenerationConfig(denoising_steps=8)
    model = AutoModelForMaskedLM.from_pretrained(DPARALLEL, generation_config=given)
    assert model.generation_config.settings() == given.settings()
    publish(SDAR)
    for load in (AutoModelForMaskedLM, SDARForMaskedDiffusion):
        assert load.from_pretrained(SDAR).config.block_length == 32
        assert load.from_pretrained(SDAR, block_size=16).config.block_length == 16
    publish(SDAR, config=json.loads((publish(SDAR) / "config.json").read_text()) | {"block_size": 8})
    assert AutoModelForMaskedLM.from_pretrained(SDAR).config.block_length == 8


def test_a_saved_student_keeps_the_recipe(publish, tmp_path):
    publish(DPARALLEL)
    AutoModelForMaskedLM.from_pretrained(DPARALLEL).save_pretrained(tmp_path / "saved")
    saved = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved").generation_config
    assert saved.settings().items() >= STUDENTS[DPARALLEL]["recipe"].items()


def test_the_first_example_and_the_command_apply_it(publish, tmp_path):
    # A quarter of the tokens ends an answer.
    publish(DPARALLEL, generation_config={"eos_token_id": list(range(0, 500, 4))})
    names = {}
    (source,) = python_blocks("README.md")
    assert f'"{DPARALLEL}"' in source
    exec(source.replace("hf_dparallel.demo.STUDENT", f'"{DPARALLEL}"'), names)
    out = names["out"]
    expected = names["tokenizer"].decode(names["answer"], skip_special_tokens=True)
    messages = [{"role": "user", "content": names["question"]}]
    student = pipeline("text-generation", DPARALLEL, return_full_text=False)
    assert student(messages)[0]["generated_text"] == expected

    report = tmp_path / "report.json"
    assert main(["generate", DPARALLEL, names["question"], "--json", str(report)]) == 0
    written = json.loads(report.read_text())
    assert (written["text"], written["nfe"]) == (expected, out.nfe.item())
