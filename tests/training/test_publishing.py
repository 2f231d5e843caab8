# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What the trainer saves beside the weights, and how it publishes them."""

import json
import re

import pytest
import torch
from datasets import Dataset
from huggingface_hub import ModelCard
from peft import LoraConfig
from safetensors.torch import load
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerCallback

from hf_dparallel import CertaintyForcingConfig, CertaintyForcingTrainer, DiffusionGenerationConfig
from hf_dparallel.generation.configuration import recipe_of, resolve
from hf_dparallel.training.recipe import student_recipe
from hf_dparallel_rules.settings import settings_of

from ..exact.helpers import make_model as make_exact
from ..helpers import make_llada
from ..helpers import make_trainer as make_plain_trainer
from ..hub.helpers import BASE, TEACHER
from ..hub.server import Repository


RULES = set(settings_of("rule"))
OWN_RULES = ({"entropy_threshold": 0.2}, {"denoising_steps": 16})


def make_trainer(folder, model=None, **settings) -> CertaintyForcingTrainer:
    rows = Dataset.from_dict({"prompt_ids": [[2, 3]] * 4, "completion_ids": [[4, 5, 6, 0]] * 4})
    defaults = {"max_steps": 2, "max_length": 16, "block_length": 4, "use_cpu": True, "report_to": "none"}
    args = CertaintyForcingConfig(str(folder), **(defaults | {"logging_steps": 1, "save_strategy": "no"} | settings))
    return CertaintyForcingTrainer(
        model or AutoModelForMaskedLM.from_pretrained(BASE),
        args,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(TEACHER),
        peft_config=LoraConfig(r=2, target_modules=["q_proj"]),
    )


def test_a_trained_adapter_is_published_with_what_is_known_of_it(hub, tmp_path):
    trainer = make_trainer(tmp_path / "student", hub_model_id="user/student", certainty_weight=3.0)
    trainer.train()
    commit = trainer.push_to_hub(dataset_name="user/data", tags=["math"])

    repository = hub.repository("user/student")
    assert repository.commit("main") == commit.oid
    files = repository.files()
    assert not {"training_args.bin", "optimizer.pt", "trainer_state.json"} & set(files)
    trained = {n: p for n, p in trainer.model.named_parameters() if "lora_" in n}
    pushed = load(files["adapter_model.safetensors"])
    assert len(pushed) == len(trained)
    assert all(torch.equal(pushed[name.replace(".default", "")], p) for name, p in trained.items())
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == BASE and card.data.datasets == ["user/data"] and "math" in card.data.tags
    for text in ("4 sequences of [user/data]", "| `certainty_weight` | 3.0 |", "| `steps` | 2 |"):
        assert text in re.sub(" +", " ", card.text)
    model = AutoModelForMaskedLM.from_pretrained("user/student")
    recipe = {"max_new_tokens": 4, "block_length": 4, "entropy_threshold": 0.5}
    assert {name: getattr(recipe_of(model), name) for name in recipe} == recipe


def test_pushes_during_the_training_are_complete_and_hold_no_states(hub, tmp_path):
    # Without `save_total_limit`: transformers would delete the last checkpoint while the upload lists the folder.
    saving = {"save_strategy": "steps", "save_steps": 1}
    pushing = {"push_to_hub": True, "hub_model_id": "user/student", "hub_always_push": True}
    trainer = make_trainer(tmp_path / "student", **saving, **pushing)
    # In the background; one that begins late would find the files of the next step, and be the last.
    waiting = TrainerCallback()
    waiting.on_save = lambda *args, **kwargs: trainer._finish_current_push()
    trainer.add_callback(waiting)
    trainer.train()
    assert len(hub.repository("user/student").commits) == 1 + 2  # after each step
    trainer.push_to_hub()
    pushes = list(hub.repository("user/student").commits.values())[1:]
    assert len(pushes) == 3
    for files in pushes:
        assert {"adapter_model.safetensors", "adapter_config.json", "generation_config.json"} <= files.keys()
        assert "tokenizer.json" in files
        assert not any(name.endswith((".pt", ".pth", ".bin")) or "checkpoint" in name for name in files)
    assert {"README.md", "training_summary.json", "custom_generate/generate.py"} <= files.keys()
    assert recipe_of(AutoModelForMaskedLM.from_pretrained("user/student")).entropy_threshold == 0.5


def test_a_push_that_fails_does_not_end_the_training(hub, tmp_path):
    hub.tokens["hf_owner"] = "stranger"
    hub.repositories["models/user/student"] = Repository()
    settings = {"hub_model_id": "user/student", "save_strategy": "steps", "save_steps": 1}
    trainer = make_trainer(tmp_path / "student", push_to_hub=True, **settings)
    trainer.train()
    assert trainer.state.global_step == 2
    with pytest.raises(OSError, match="You have no write access"):
        trainer.push_to_hub()


def test_a_push_in_the_background_ends_later(hub, tmp_path):
    trainer = make_trainer(tmp_path / "student", hub_model_id="user/student")
    commit = trainer.push_to_hub(blocking=False).result(timeout=60)
    assert commit.oid == hub.repository("user/student").commit("main")


@pytest.mark.parametrize("tags", ["math", ["math"]])
def test_tags_and_license_are_as_with_the_trainers_of_transformers(hub, tmp_path, tags):
    trainer = make_trainer(tmp_path / "student", hub_model_id="user/student")
    trainer.save_model()
    trainer.create_model_card(tags=tags, license="mit", model_name="Mine")
    card = ModelCard.load(tmp_path / "student" / "README.md")
    data = card.data
    assert data.license == "mit" and data.tags[-1] == "math" and "dparallel" in data.tags
    assert "\n# Mine\n" in card.text and "papers/2509.26488" in card.text
    trainer.push_to_hub(tags=tags, license="mit")
    assert ModelCard(hub.repository("user/student").files()["README.md"].decode()).data.tags == data.tags


def test_a_base_model_in_a_folder_is_refused_before_the_training(hub, tmp_path):
    local = AutoModelForMaskedLM.from_pretrained(TEACHER)
    with pytest.raises(ValueError, match="`base_model` is .*, a folder of this machine"):
        make_trainer(tmp_path, local, push_to_hub=True, hub_model_id="user/student")
    trainer = make_trainer(tmp_path / "student", local, hub_model_id="user/student")
    trainer.train()
    with pytest.raises(ValueError, match="folder of this machine"):
        trainer.push_to_hub()
    trainer.push_to_hub(base_model=BASE)
    for name in ("adapter_config.json", "training_summary.json", "README.md"):
        assert str(TEACHER).encode() not in hub.repository("user/student").files()[name]


@pytest.mark.parametrize(
    ("own", "settings", "saved"),
    [
        ({}, {}, {"entropy_threshold": 0.5, "block_length": 8, "max_new_tokens": 16}),
        # A canvas of the teacher's, for which the student was not trained.
        ({"confidence_threshold": 0.7, "max_new_tokens": 256}, {},
         {"confidence_threshold": 0.7, "block_length": 8, "max_new_tokens": 16}),
        # Blocks in which it was not trained; without blocks in the training, the model's stay.
        ({"confidence_threshold": 0.7, "block_length": 4}, {},
         {"confidence_threshold": 0.7, "block_length": 8, "max_new_tokens": 16}),
        ({"confidence_threshold": 0.7, "block_length": 4}, {"masking": "random"},
         {"confidence_threshold": 0.7, "block_length": 4, "max_new_tokens": 12}),
        ({"denoising_steps": 64}, {}, {"denoising_steps": 64}),
        # A teacher is not taught to be certain.
        ({}, {"certainty_weight": 0.0}, {"block_length": 8, "max_new_tokens": 16}),
    ],
)  # fmt: skip
def test_the_saved_recipe_is_the_models_or_the_papers_for_answers_as_long_as_trained(tmp_path, own, settings, saved):
    model = make_llada()
    model.generation_config = DiffusionGenerationConfig(**own)
    rows = [{"prompt_ids": [2], "completion_ids": [3] * length} for length in (4, 11, 2)]
    trainer = make_plain_trainer(tmp_path, model, train_dataset=rows, block_length=8, **settings)
    assert student_recipe(trainer).settings() == saved
    # Keywords, and what is decoded without any.
    assert resolve(model, student_recipe(trainer), max_new_tokens=20, denoising_steps=20).max_new_tokens == 20
    assert resolve(model, student_recipe(trainer)).commit_rule() == next(iter({*saved} & RULES), "denoising_steps")


@pytest.mark.parametrize("certainty_weight", [0.0, 2.0])
@pytest.mark.parametrize(("own", "rule"), [({}, {"confidence_threshold": 0.8}), *[(own, own) for own in OWN_RULES]])
def test_an_exact_student_drafts_whatever_it_was_taught(tmp_path, certainty_weight, own, rule):
    model = make_exact(adapter=False).float()
    model.generation_config = DiffusionGenerationConfig(**own)
    settings = {"certainty_weight": certainty_weight, "peft_config": LoraConfig(r=2, target_modules=["q_proj"])}
    rows = [{"prompt_ids": [2], "completion_ids": [3] * length} for length in (4, 11, 2)]
    trainer = make_plain_trainer(tmp_path, model, train_dataset=rows, **settings)
    saved = student_recipe(trainer).settings()
    assert {name: value for name, value in saved.items() if name in RULES} == rule


def test_every_saved_folder_says_what_it_is(tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    trainer = make_trainer(tmp_path, model, save_strategy="steps", save_steps=1)
    trainer.train()
    assert not list(tmp_path.glob("*.*"))  # It would look like a saved model.
    trainer.save_model()
    for folder in (tmp_path, tmp_path / "checkpoint-1"):
        summary = json.loads((folder / "training_summary.json").read_text())
        assert summary["base_model"] is None and summary["num_sequences"] == 4
        assert summary["settings"].items() >= {"masking": "semi_autoregressive", "certainty_weight": 2.0}.items()
        assert summary["metrics"]["loss"] > 0
        assert DiffusionGenerationConfig.from_pretrained(folder).entropy_threshold == 0.5
        assert not (folder / "training_args.bin").exists()


@pytest.mark.parametrize("base", [BASE, TEACHER])
def test_every_saved_folder_has_our_card(hub, tmp_path, base):
    """Of an adapter PEFT writes one, too, with blanks, and the folder of the base model as its name."""
    model = AutoModelForMaskedLM.from_pretrained(base)
    trainer = make_trainer(tmp_path / "student", model, save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model()
    for folder in (tmp_path / "student", tmp_path / "student" / "checkpoint-2"):
        card = ModelCard.load(folder / "README.md")
        assert f"\n# {folder.name}\n" in card.text and "More Information Needed" not in card.text
        assert str(TEACHER) not in card.content and "| `steps` | 2 |" in re.sub(" +", " ", card.text)
        assert card.data.base_model == (BASE if base == BASE else None)
        assert "dparallel" in card.data.tags


def test_a_whole_model_has_a_card_of_the_name_that_it_gets_on_the_hub(tmp_path):
    rows = [{"prompt_ids": [2], "completion_ids": [3] * 8}]
    trainer = make_plain_trainer(tmp_path, train_dataset=rows, block_length=8, hub_model_id="user/student")
    trainer.save_model()
    card = ModelCard.load(tmp_path / "README.md")
    assert "library_name: transformers" in card.content and 'from_pretrained("user/student"' in card.text


def test_a_card_that_somebody_wrote_is_saved_as_it_is(hub, tmp_path):
    trainer = make_trainer(tmp_path)
    (tmp_path / "README.md").write_text("# Mine")
    trainer.save_model()
    assert (tmp_path / "README.md").read_text() == "# Mine"


def test_an_edited_card_is_kept(hub, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.save_model()
    trainer.create_model_card(dataset_name="user/data")
    assert "datasets/user/data" in (tmp_path / "README.md").read_text()
    assert "| `block_length` | 4 |" in re.sub(" +", " ", (tmp_path / "README.md").read_text())
    (tmp_path / "README.md").write_text("# Mine")
    trainer.create_model_card(dataset_name="user/data")
    assert (tmp_path / "README.md").read_text() == "# Mine"
