# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing adapters and models: what is uploaded, what is not, what comes back, and what the card says."""

import json
import re
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM, BertLMHeadModel

from hf_dparallel import DiffusionGenerationConfig, enable_diffusion_generation, push_model_to_hub
from hf_dparallel.demo import STUDENT
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.hub.push import files_to_push

from ..helpers import edit_json
from .helpers import BASE, RECIPE, TEACHER, save_adapter, save_bert


REPORT = {"accuracy": 0.75, "nfe": 9.5, "tokens_per_forward": 5.25, "latency_s": 0.125}
PUSHED = {"README.md", "adapter_config.json", "adapter_model.safetensors", "generation_config.json"}
PUSHED |= {"custom_generate/generate.py", "custom_generate/requirements.txt"}
INPUT_IDS = torch.arange(10, 20)[None]


def card_of(hub, repo_id: str = "user/student") -> ModelCard:
    return ModelCard(hub.repository(repo_id).files()["README.md"].decode())


def run_card(card: ModelCard) -> dict:
    """Runs the Python lines of a card as they stand, and returns their names."""
    (lines,) = re.findall(r"^```python\n(.*?)^```$", card.text, flags=re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(lines, "card", "exec"), names)
    return names


# What goes and what comes back


def test_a_round_trip_gives_the_same_weights_and_recipe(hub, adapter, tmp_path):
    push_model_to_hub(adapter, "student")  # one's own, without an owner

    model = AutoModelForMaskedLM.from_pretrained("user/student")
    model.save_pretrained(tmp_path / "back")
    pushed, pulled = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, tmp_path / "back"))
    assert pushed.keys() == pulled.keys()
    assert all(torch.equal(pushed[name], pulled[name]) for name in pushed)
    on_base = AutoModelForMaskedLM.from_pretrained(BASE)
    on_base.load_adapter("user/student")
    for loaded in (model, on_base):
        assert {name: getattr(recipe_of(loaded), name) for name in RECIPE} == RECIPE
        assert torch.equal(loaded.generate(INPUT_IDS), model.generate(INPUT_IDS))


def test_only_what_belongs_to_the_model_is_uploaded(hub, adapter):
    (adapter / "checkpoint-5").mkdir()
    for name in ("training_args.bin", "optimizer.pt", "adapter_model.bin", "notes.txt", ".env", "trainer_state.json"):
        (adapter / name).write_bytes(b"private")
        (adapter / "checkpoint-5" / name).write_bytes(b"private")
    shutil.copy(adapter / "adapter_model.safetensors", adapter / "checkpoint-5")
    before = {path: path.read_bytes() for path in adapter.rglob("*") if path.is_file()}

    push_model_to_hub(adapter, "user/student")
    assert set(hub.repository("user/student").files()) == PUSHED == set(files_to_push(adapter, "user/student"))
    assert not any(b"private" in content for content in hub.repository("user/student").files().values())
    assert {path: path.read_bytes() for path in adapter.rglob("*") if path.is_file()} == before


def test_the_tokenizer_is_uploaded_if_it_is_in_the_folder(hub, adapter):
    push_model_to_hub(adapter, "user/without")
    assert f'AutoTokenizer.from_pretrained("{BASE}"' in card_of(hub, "user/without").text
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(adapter)
    push_model_to_hub(adapter, "user/with")
    assert "<new>" in AutoTokenizer.from_pretrained("user/with").get_vocab()
    assert 'AutoTokenizer.from_pretrained("user/with"' in card_of(hub, "user/with").text


@pytest.mark.parametrize("local", [str(TEACHER), "adapter", "/nowhere/llada", r"C:\models\llada", "demo"])
def test_a_base_in_a_local_folder_is_refused_or_replaced(hub, adapter, local, monkeypatch):
    monkeypatch.chdir(adapter.parent)
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=local)
    with pytest.raises(ValueError, match=r"folder of this machine.*`--base_model GSAI-ML/LLaDA-8B-Instruct`"):
        push_model_to_hub(adapter, "user/student")
    assert "models/user/student" not in hub.repositories

    push_model_to_hub(adapter, "user/student", base_model=BASE)
    files = hub.repository("user/student").files()
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == BASE
    assert BASE.encode() in files["README.md"]
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == local


def test_a_copy_of_the_bundled_student_names_a_base_that_others_can_load(hub, tmp_path):
    copy = shutil.copytree(STUDENT, tmp_path / "copy")
    with pytest.raises(ValueError, match="`base_model` is 'demo', .* has to be pushed first"):
        push_model_to_hub(copy, "user/copy")
    push_model_to_hub(TEACHER, BASE)
    push_model_to_hub(copy, "user/copy", base_model=BASE)
    assert run_card(card_of(hub, "user/copy"))


def test_a_folder_without_a_recipe_is_refused_or_completed(hub, tmp_path):
    folder = save_adapter(tmp_path / "adapter", recipe=None)
    with pytest.raises(ValueError, match=r"has no recipe .*`--entropy_threshold 0\.5`"):
        push_model_to_hub(folder, "user/student")
    assert "models/user/student" not in hub.repositories
    push_model_to_hub(folder, "user/student", generation_config=DiffusionGenerationConfig(entropy_threshold=0.25))
    assert DiffusionGenerationConfig.from_pretrained("user/student").settings() == {"entropy_threshold": 0.25}


@pytest.mark.parametrize("files", [[], ["adapter_config.json"], ["config.json", "pytorch_model.bin"]])
def test_folders_without_safe_weights_are_refused(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(OSError, match="holds no weights in safetensors"):
        push_model_to_hub(tmp_path, "user/student")


def test_a_merged_model_is_published_as_a_model(hub, adapter, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.load_adapter(str(adapter))
    expected = model.merge_and_unload().generate(INPUT_IDS)
    model.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(tmp_path / "merged")
    push_model_to_hub(tmp_path / "merged", "user/merged", base_model=BASE)
    assert torch.equal(AutoModelForMaskedLM.from_pretrained("user/merged").generate(INPUT_IDS), expected)
    facts = card_of(hub, "user/merged").data.to_dict()
    assert facts["base_model_relation"] == "finetune" and facts["library_name"] == "transformers"


def test_weights_of_an_earlier_push_do_not_stay(hub, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.generation_config = DiffusionGenerationConfig(**RECIPE)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    push_model_to_hub(tmp_path / "one", "user/model")
    hub.repository("user/model").files().update({"notes.txt": b"mine", "onnx/model.safetensors": b"mine"})
    push_model_to_hub(tmp_path / "many", "user/model")
    files = hub.repository("user/model").files()
    assert "model.safetensors" not in files and "model.safetensors.index.json" in files
    push_model_to_hub(tmp_path / "one", "user/model")
    files = hub.repository("user/model").files()
    assert not [name for name in files if name.startswith("model-") or "index" in name]
    assert files["notes.txt"] == files["onnx/model.safetensors"] == b"mine"


# Where to


def test_what_the_hub_refuses_is_its_own_error(hub, adapter, monkeypatch):
    with pytest.raises(HFValidationError, match="user/na me"):
        push_model_to_hub(adapter, "user/na me")
    with pytest.raises(HfHubHTTPError, match="You don't have the rights"):
        push_model_to_hub(adapter, "stranger/student")
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        push_model_to_hub(adapter, "user/student", token="hf_wrong")
    assert "models/user/student" not in hub.repositories


def test_branches(hub, adapter):
    push_model_to_hub(adapter, "user/student", revision="v1", private=True)
    repository = hub.repository("user/student")
    assert repository.private and repository.files() == {} and set(repository.files("v1")) == PUSHED


# custom_generate


@pytest.mark.parametrize(("recorded", "model_type", "shift"), [(0, "bert", 0), (1, "bert", 1), (0, "Dream", 1)])
def test_custom_generate_knows_the_shift_and_the_mask(hub, tmp_path, recorded, model_type, shift):
    save_bert(tmp_path, BertLMHeadModel)
    (tmp_path / "training_summary.json").write_text(json.dumps({"shift_logits": bool(recorded)}))
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, denoising_steps=4, mask_token_id=31)
    push_model_to_hub(tmp_path, "user/bert", generation_config=recipe)

    prompt = torch.arange(2, 6)[None]
    model = BertLMHeadModel.from_pretrained(tmp_path)
    model.config.model_type = model_type
    out = model.generate(prompt, custom_generate="user/bert", trust_remote_code=True)
    local = enable_diffusion_generation(BertLMHeadModel.from_pretrained(tmp_path), 31, shift_logits=shift)
    assert torch.equal(out, local.generate(prompt, generation_config=recipe))


# The card


def test_the_card_says_what_the_model_is(hub, adapter, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    summary = {
        "num_sequences": 12,
        "settings": {"certainty_weight": 2.0},
        "metrics": {"masked_entropy": 0.125},
    }
    (adapter / "training_summary.json").write_text(json.dumps(summary))
    about = {"dataset_name": "user/data", "license": "mit", "tags": ["math"]}
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json", **about)
    card = card_of(hub)
    facts = card.data.to_dict()
    assert (facts["base_model"], facts["base_model_relation"], facts["library_name"]) == (BASE, "adapter", "peft")
    assert card.data.tags == ["dparallel", "diffusion-lm", "math"]
    assert (card.data.license, card.data.datasets, card.data.pipeline_tag) == ("mit", ["user/data"], "text-generation")
    for text in (
        "https://huggingface.co/papers/2509.26488",
        "12 sequences of [user/data]",
        "| `certainty_weight` | 2.0 |",
        "| `peft_type` | LORA |",
        "`masked_entropy` 0.125",
        "| This model | 9.5 | 5.25 | 125 ms | 75.0% |",
        '"entropy_threshold": 0.4',
        "@article{chen2025dparallel",
    ):
        assert text in re.sub(" +", " ", card.text)


def test_the_card_of_an_exact_adapter_says_whose_answers_it_gives(hub, adapter, tmp_path):
    edit_json(adapter / "adapter_config.json", alora_invocation_tokens=[5])
    report = {"rows": [{**REPORT, "method": "confidence_threshold 0.9", "speedup": 1.0, "acceptance": [0.9, 0.75]}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json")
    card = card_of(hub).text
    assert f"The answers are those of {BASE}, token for token" in card
    assert "faster, not better" not in card and "2507.11851" in card
    assert "| Drafts accepted (%), by place | 1 | 2 |" in re.sub(" +", " ", card)
    assert "| confidence_threshold 0.9 | 90 | 75 |" in re.sub(" +", " ", card)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": []}', '{"accuracy": "high"}'])
def test_a_report_without_figures_is_refused(adapter, tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ValueError, match=r"report\.json"):
        push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json")


def test_a_written_card_is_kept_and_a_draft_is_not(hub, adapter):
    assert "# Model Card for Model ID" in (adapter / "README.md").read_text()
    push_model_to_hub(adapter, "user/student")
    generated = hub.repository("user/student").files()["README.md"]
    assert b"# student" in generated and b"Model ID" not in generated
    (adapter / "README.md").write_bytes(generated.replace(b"# student", b"# Old title"))
    push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files()["README.md"] == generated
    (adapter / "README.md").write_text("# Model Card for Model ID\n\nMy own words.\n")
    push_model_to_hub(adapter, "user/student")
    assert b"My own words." in hub.repository("user/student").files()["README.md"]


def test_the_lines_of_the_card_run_as_they_stand(hub, adapter, tmp_path, capsys):
    push_model_to_hub(adapter, "user/student")
    names = run_card(card_of(hub))
    assert "forward passes" in capsys.readouterr().out
    local = AutoModelForMaskedLM.from_pretrained(TEACHER)
    local.load_adapter(str(adapter))
    assert torch.equal(names["out"].sequences, local.generate(names["inputs"]["input_ids"]))

    # Of a model of another class, too.
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    save_bert(tmp_path / "bert", BertForMaskedLM, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "training_summary.json").write_text('{"is_native": false}')
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, denoising_steps=2, mask_token_id=1)
    push_model_to_hub(tmp_path / "bert", "user/bert", generation_config=recipe)
    assert run_card(card_of(hub, "user/bert"))["out"].nfe.tolist() == [2]


def test_what_lies_beside_an_adapter_is_not_pushed(tmp_path):
    """Neither weights of its base model nor programs."""
    folder = shutil.copytree(STUDENT, tmp_path / "student")
    (folder / "notes.py").write_text("secret = 1\n")
    (folder / "model.safetensors").write_bytes(b"")
    names = files_to_push(folder, "user/student", base_model="user/teacher").keys()
    assert "adapter_model.safetensors" in names
    assert not names & {"config.json", "model.safetensors", "model.safetensors.index.json", "notes.py"}
