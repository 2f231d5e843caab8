# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Publishing adapters and models: what is uploaded, what is not, what comes back, and what the card says."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM, BertLMHeadModel

from hf_dparallel import DiffusionGenerationConfig, enable_diffusion_generation, push_model_to_hub
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.hub import publish
from hf_dparallel.hub.card import PICTURE_NAME
from hf_dparallel.hub.facts import ModelFacts

from ..helpers import edit_json
from .helpers import BASE, RECIPE, TEACHER, save_adapter, save_bert
from .server import Repository


REPORT = {"accuracy": 0.75, "nfe": 9.5, "tokens_per_forward": 5.25, "latency_s": 0.125, "num_prompts": 8}
PUSHED = {"README.md", "adapter_config.json", "adapter_model.safetensors", "generation_config.json"}
PUSHED |= {f"custom_generate/{name}" for name in ("generate.py", "recipe.py", "requirements.txt")}
INPUT_IDS = torch.arange(10, 20)[None]


def card_of(hub, repo_id: str = "user/student") -> ModelCard:
    return ModelCard(hub.repository(repo_id).files()["README.md"].decode())


def lines_of(card: ModelCard) -> str:
    """The Python lines of a card, as they stand."""
    (lines,) = re.findall(r"^```python\n(.*?)^```$", card.text, flags=re.MULTILINE | re.DOTALL)
    return lines


# What goes and what comes back


def test_a_round_trip_gives_the_same_weights_and_recipe(hub, adapter, tmp_path):
    push_model_to_hub(adapter, "user/student")

    model = AutoModelForMaskedLM.from_pretrained("user/student")
    model.save_pretrained(tmp_path / "back")
    pushed, pulled = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, tmp_path / "back"))
    assert pushed.keys() == pulled.keys()
    assert all(torch.equal(pushed[name], pulled[name]) for name in pushed)
    local = AutoModelForMaskedLM.from_pretrained(TEACHER)
    local.load_adapter(str(adapter))
    assert recipe_of(model).settings() == recipe_of(local).settings()
    assert {name: getattr(recipe_of(model), name) for name in RECIPE} == RECIPE
    read = DiffusionGenerationConfig.from_pretrained("user/student")
    assert read.to_dict() == DiffusionGenerationConfig.from_pretrained(adapter).to_dict()


def test_only_what_belongs_to_the_model_is_uploaded(hub, adapter):
    (adapter / "checkpoint-5").mkdir()
    for name in ("training_args.bin", "optimizer.pt", "adapter_model.bin", "notes.txt", ".env", "trainer_state.json"):
        (adapter / name).write_bytes(b"private")
        (adapter / "checkpoint-5" / name).write_bytes(b"private")
    shutil.copy(adapter / "adapter_model.safetensors", adapter / "checkpoint-5")
    before = {path: path.read_bytes() for path in adapter.rglob("*") if path.is_file()}

    push_model_to_hub(adapter, "user/student")
    assert set(hub.repository("user/student").files()) == PUSHED
    assert not any(b"private" in content for content in hub.repository("user/student").files().values())
    requirements = hub.repository("user/student").files()["custom_generate/requirements.txt"]
    assert requirements.startswith(b"hf-dparallel>=")
    assert {path: path.read_bytes() for path in adapter.rglob("*") if path.is_file()} == before


def test_the_tokenizer_is_uploaded_if_it_is_in_the_folder(hub, adapter):
    push_model_to_hub(adapter, "user/without")
    assert set(hub.repository("user/without").files()) == PUSHED
    assert f'AutoTokenizer.from_pretrained("{BASE}"' in card_of(hub, "user/without").text

    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(adapter)
    push_model_to_hub(adapter, "user/with")
    assert {"tokenizer.json", "tokenizer_config.json"} < set(hub.repository("user/with").files())
    assert "<new>" in AutoTokenizer.from_pretrained("user/with").get_vocab()
    assert 'AutoTokenizer.from_pretrained("user/with"' in card_of(hub, "user/with").text


@pytest.mark.parametrize("local", [str(TEACHER), "adapter", "/nowhere/llada", r"C:\models\llada"])
def test_a_base_in_a_local_folder_is_refused_or_replaced(hub, adapter, local, monkeypatch):
    monkeypatch.chdir(adapter.parent)
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=local)
    with pytest.raises(ValueError, match=r"folder of this machine.*`--base_model GSAI-ML/LLaDA-8B-Instruct`"):
        push_model_to_hub(adapter, "user/student")
    assert "models/user/student" not in hub.repositories

    push_model_to_hub(adapter, "user/student", base_model=BASE)
    config = json.loads(hub.repository("user/student").files()["adapter_config.json"])
    assert config["base_model_name_or_path"] == BASE
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == local


@pytest.mark.parametrize("name", ["README.md", "NOTICE.md", "loss.svg"])
def test_paths_of_this_machine_are_refused(hub, tmp_path, name):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.generation_config = DiffusionGenerationConfig(**RECIPE)
    model.save_pretrained(tmp_path)
    (tmp_path / name).write_text(f"# Mine\n<!-- {Path.home()}/run -->")
    with pytest.raises(ValueError, match=f"`{name}` contains the path {re.escape(repr(str(Path.home())))}"):
        push_model_to_hub(tmp_path, "user/model")
    assert "models/user/model" not in hub.repositories


def test_links_that_leave_the_folder_are_refused(hub, adapter, tmp_path):
    (tmp_path / "id_rsa").write_text("key")
    (adapter / "LICENSE").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(ValueError, match="LICENSE` is a link"):
        push_model_to_hub(adapter, "user/student")
    (adapter / "LICENSE").unlink()
    (adapter / "LICENSE").symlink_to("licence_of_the_base.txt")
    (adapter / "licence_of_the_base.txt").write_text("MIT")
    push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files()["LICENSE"] == b"MIT"


@pytest.mark.parametrize("name", ["adapter_config.json", "training_summary.json"])
@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_a_broken_file_is_named(hub, adapter, name, text):
    (adapter / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}` (is not JSON|must hold a JSON object)"):
        push_model_to_hub(adapter, "user/student")


def test_paths_that_are_nobodys_are_uploaded(hub, adapter):
    text = "# Mine\nhttps://huggingface.co/papers/2509.26488, `POST /v1/models`, /usr/bin/python and a/b/c\n"
    (adapter / "README.md").write_text(text)
    (adapter / "loss.png").write_bytes(b"\x89PNG\xff")
    push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files()["README.md"] == text.encode()


@pytest.mark.parametrize(
    "dataset", ["/data/secret/gsm8k.jsonl", r"C:\secret\gsm8k.jsonl", "../secret/gsm8k.jsonl", "~/secret/gsm8k.jsonl"]
)
def test_of_a_file_of_prompts_the_card_says_the_name_only(hub, adapter, tmp_path, dataset):
    (tmp_path / "report.json").write_text(json.dumps(REPORT | {"dataset": dataset}))
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json")
    card = hub.repository("user/student").files()["README.md"]
    assert b"On gsm8k.jsonl" in card and b"secret" not in card


def test_a_recipe_without_a_rule_is_refused_or_completed(hub, tmp_path):
    folder = save_adapter(tmp_path / "adapter", recipe=None)
    with pytest.raises(ValueError, match=r"generation_config\.json` does not exist.*`--entropy_threshold 0\.5`"):
        push_model_to_hub(folder, "user/student")
    DiffusionGenerationConfig(max_new_tokens=64).save_pretrained(folder)
    with pytest.raises(ValueError, match="has no commit rule"):
        push_model_to_hub(folder, "user/student")
    assert "models/user/student" not in hub.repositories
    push_model_to_hub(folder, "user/student", generation_config=DiffusionGenerationConfig(entropy_threshold=0.25))
    recipe = DiffusionGenerationConfig.from_pretrained("user/student").settings()
    assert recipe == {"max_new_tokens": 64, "entropy_threshold": 0.25}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "holds neither an adapter"),
        (["adapter_config.json"], "holds no weights in safetensors"),
        (["config.json", "pytorch_model.bin"], "holds no weights in safetensors"),
    ],
)
def test_folders_without_safe_weights_are_refused(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(OSError, match=message):
        push_model_to_hub(tmp_path, "user/student")
    with pytest.raises(OSError, match="is no folder"):
        push_model_to_hub(tmp_path / "missing", "user/student")


# Models


def test_a_merged_model_is_published_as_a_model(hub, adapter, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.load_adapter(str(adapter))
    expected = model.merge_and_unload().generate(INPUT_IDS)
    model.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(tmp_path / "merged")
    push_model_to_hub(tmp_path / "merged", "user/merged", base_model=BASE)

    pulled = AutoModelForMaskedLM.from_pretrained("user/merged")
    assert {name: getattr(recipe_of(pulled), name) for name in RECIPE} == RECIPE
    assert torch.equal(pulled.generate(INPUT_IDS), expected)
    data = card_of(hub, "user/merged").data
    facts = data.to_dict()
    assert facts["base_model_relation"] == "finetune" and facts["library_name"] == "transformers"
    assert "peft" not in data.tags and "lora" not in data.tags
    assert 'AutoTokenizer.from_pretrained("user/merged"' in card_of(hub, "user/merged").text


def test_custom_generate_of_an_adapter_repository(hub, adapter):
    push_model_to_hub(adapter, "user/student")
    model = AutoModelForMaskedLM.from_pretrained("user/student")
    arguments = {"input_ids": INPUT_IDS, "attention_mask": torch.ones_like(INPUT_IDS)}
    custom = model.generate(**arguments, custom_generate="user/student", trust_remote_code=True)
    assert torch.equal(custom, model.generate(**arguments))
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        model.generate(**arguments, custom_generate="user/student", trust_remote_code=False)


def test_custom_generate_on_the_base_model_follows_the_recipe_of_the_repository(hub, adapter):
    push_model_to_hub(adapter, "user/student")
    base = AutoModelForMaskedLM.from_pretrained(BASE)
    inputs = {"input_ids": INPUT_IDS, "attention_mask": torch.ones_like(INPUT_IDS)}
    own = {"custom_generate": "user/student", "trust_remote_code": True, "return_dict_in_generate": True}
    expected = base.generate(**inputs, **RECIPE, return_dict_in_generate=True)
    default = base.generate(**inputs, return_dict_in_generate=True)
    assert expected.nfe.tolist() != default.nfe.tolist()
    for given in ({}, {"generation_config": DiffusionGenerationConfig(return_dict_in_generate=True)}):
        out = base.generate(**inputs, **own, **given)
        assert torch.equal(out.sequences, expected.sequences) and out.nfe.tolist() == expected.nfe.tolist()

    # What the caller says has the last word, even in another commit rule.
    settings = {"max_new_tokens": 16, "denoising_steps": 4}
    for given in (settings, {"generation_config": DiffusionGenerationConfig(**settings)}):
        out = base.generate(**inputs, **own, **given)
        assert out.nfe.tolist() == [4] and out.sequences.shape == (1, INPUT_IDS.shape[1] + 16)


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
    other = enable_diffusion_generation(BertLMHeadModel.from_pretrained(tmp_path), 31, shift_logits=not shift)
    assert not torch.equal(out, other.generate(prompt, generation_config=recipe))


def test_custom_generate_of_a_folder_reads_the_recipe_that_is_in_it(tmp_path):
    save_bert(tmp_path, BertLMHeadModel, mask_token_id=31)
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, denoising_steps=2)
    recipe.save_pretrained(tmp_path)
    (tmp_path / "training_summary.json").write_text('{"shift_logits": true}')
    publish.write_companions(ModelFacts.read(tmp_path, "user/bert"))

    model = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    prompt = torch.arange(2, 6)[None]
    out = model.generate(prompt, return_dict_in_generate=True)
    local = enable_diffusion_generation(BertLMHeadModel.from_pretrained(tmp_path), 31, shift_logits=True)
    expected = local.generate(prompt, generation_config=recipe)
    assert out.nfe.tolist() == [2] and torch.equal(out.sequences, expected)


# The card


def test_the_card_says_what_the_model_is(hub, adapter, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(REPORT | {"dataset": "openai/gsm8k"}))
    summary = {
        "dataset_description": "12 of 20 trajectories were kept.",
        "num_sequences": 12,
        "settings": {"certainty_weight": 2.0},
        "metrics": {"masked_entropy": 0.125},
        "versions": {"torch": "2.13"},
    }
    (adapter / "training_summary.json").write_text(json.dumps(summary))
    facts = {"dataset_name": "user/data", "license": "mit", "tags": ["math"]}
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json", **facts)
    card = card_of(hub)
    data = card.data
    facts = data.to_dict()
    assert (facts["base_model"], facts["base_model_relation"], facts["library_name"]) == (BASE, "adapter", "peft")
    assert data.tags == ["dparallel", "diffusion-lm", "masked-diffusion", "peft", "lora", "math"]
    assert (data.license, data.datasets, data.pipeline_tag) == ("mit", ["user/data"], "text-generation")
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured == {name: value for name, value in REPORT.items() if name != "num_prompts"}
    assert {result.dataset_name for result in data.eval_results} == {"openai/gsm8k"}
    for text in (
        "https://huggingface.co/papers/2509.26488",
        "12 of 20 trajectories were kept.",
        "| `certainty_weight` | 2.0 |",
        "| `target_modules` | down_proj, q_proj, v_proj |",
        "`masked_entropy` 0.125",
        "| **This model** | 9.5 | 5.25 | 125 ms | 75.0% |",
        '"entropy_threshold": 0.4',
        "@article{chen2025dparallel",
        "## Limits",
        "## Licence",
    ):
        assert text in re.sub(" +", " ", card.text)


EXAMPLE = {"prompt": 'Say "5 | 6"\n```', "text": "5 6", "nfe": 2, "tokens_per_forward": 1.5}


def test_an_example_and_the_picture_of_certainty_are_shown(hub, adapter, tmp_path):
    push_model_to_hub(adapter, "user/student")
    card = card_of(hub)
    assert "![" not in card.text and set(card.data.widget[0]) == {"messages"}

    (adapter / PICTURE_NAME).write_bytes(b"\x89PNG\xff")
    (tmp_path / "example.json").write_text(json.dumps(EXAMPLE))
    push_model_to_hub(adapter, "user/student", example=tmp_path / "example.json")
    card = card_of(hub)
    asked = [{"role": "user", "content": EXAMPLE["prompt"]}]
    assert card.data.widget == [{"messages": asked, "output": {"text": "5 6"}}]
    assert f"]({PICTURE_NAME})" in card.text and "2 forward passes, 1.5 tokens per pass" in card.text
    assert PICTURE_NAME in hub.repository("user/student").files()
    names: dict = {}
    exec(next(line for line in lines_of(card).splitlines() if line.startswith("prompt = ")), names)
    assert names["prompt"] == EXAMPLE["prompt"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("example", text) for text in ("[]", "{}", json.dumps(EXAMPLE | {"nfe": "two"}))),
        *(("report", text) for text in ("{", "[]", "{}", '{"rows": []}', '{"accuracy": "high"}')),
    ],
)
def test_examples_and_reports_that_are_none_are_refused(adapter, tmp_path, option, text):
    (tmp_path / "said.json").write_text(text)
    with pytest.raises(ValueError, match=r"said\.json"):
        push_model_to_hub(adapter, "user/student", **{option: tmp_path / "said.json"})


def test_texts_of_the_card_are_texts(hub, adapter, tmp_path):
    evil = "x\n---\nlicense: evil\n---\n# Owned <script>alert(1)</script> | {{ 7*7 }}"
    rows = [{"method": evil, **REPORT}]
    (tmp_path / "report.json").write_text(json.dumps({"dataset": evil, "rows": rows}))
    summary = {"dataset_description": evil, "settings": {evil: evil}, "versions": {evil: evil}, "metrics": {evil: 1.0}}
    (adapter / "training_summary.json").write_text(json.dumps(summary))
    options = {"dataset_name": evil, "license": evil, "tags": [evil]}
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json", **options)
    card = card_of(hub)
    assert card.data.base_model == BASE and card.data.license == evil and card.data.tags[-1] == evil
    assert "Owned" in card.text and "\n# Owned" not in card.text
    assert "<script" not in card.text and "{{ 7*7 }}" in card.text


@pytest.mark.parametrize(
    "summary",
    [
        {"shift_logits": "__import__('os').system('id')"},
        {"num_sequences": "1\n# Owned"},
        {"metrics": {"loss": "# Owned"}},
    ],
)
def test_a_summary_that_no_training_has_written_is_refused(adapter, summary):
    (adapter / "training_summary.json").write_text(json.dumps(summary))
    with pytest.raises(ValueError, match=r"training_summary\.json` has .*, which is no"):
        publish.files_to_push(ModelFacts.read(adapter, "user/student"))


@pytest.mark.parametrize("recipes", [[None, None], [{"entropy_threshold": 0.2}, {"entropy_threshold": 0.4}]])
def test_of_several_rows_one_is_the_model_with_its_recipe(hub, adapter, tmp_path, recipes):
    rows = [{"method": "Teacher", **REPORT, "nfe": 64.0}, {"method": "Student", **REPORT}]
    rows = [row | ({"recipe": recipe} if recipe else {}) for row, recipe in zip(rows, recipes, strict=True)]
    rows = rows if recipes == [None, None] else rows[::-1]
    (tmp_path / "report.json").write_text(json.dumps({"rows": rows}))
    push_model_to_hub(adapter, "user/student", report=tmp_path / "report.json")
    card = card_of(hub)
    assert {r.metric_type: r.metric_value for r in card.data.eval_results}["nfe"] == 9.5
    text = re.sub(" +", " ", card.text)
    assert "| Teacher | 64.0 |" in text and "| **Student** | 9.5 |" in text


def test_a_written_card_is_kept_and_a_draft_is_not(hub, adapter):
    assert "# Model Card for Model ID" in (adapter / "README.md").read_text()
    push_model_to_hub(adapter, "user/student")
    generated = hub.repository("user/student").files()["README.md"]
    assert b"# student" in generated and b"Model ID" not in generated

    (adapter / "README.md").write_bytes(generated.replace(b"# student", b"# Old title"))
    push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files()["README.md"] == generated

    # It may have kept the title.
    (adapter / "README.md").write_text("# Model Card for Model ID\n\nMy own words.\n")
    push_model_to_hub(adapter, "user/student")
    assert b"My own words." in hub.repository("user/student").files()["README.md"]


def test_a_card_that_was_edited_on_the_hub_is_kept(hub, adapter, caplog):
    push_model_to_hub(adapter, "user/student")
    on_hub = hub.repository("user/student").files()
    on_hub["README.md"] = b"---\nlicense: mit\n---\n\n# Edited on the Hub\n"
    push_model_to_hub(adapter, "user/student")
    files = hub.repository("user/student").files()
    assert files["README.md"] == on_hub["README.md"]
    assert "The card of 'user/student' was edited on the Hub, and is kept" in caplog.text

    (adapter / "README.md").write_text("# Mine\n")  # said expressly
    push_model_to_hub(adapter, "user/student")
    assert hub.repository("user/student").files()["README.md"] == b"# Mine\n"


@pytest.mark.parametrize("text", [b"", b"---\nlicense: mit\n---\n", b"---\r\nlicense: mit\r\n---\r\n\r\n"])
def test_the_empty_card_of_a_new_repository_is_replaced(hub, adapter, text):
    hub.repositories["models/user/student"] = Repository()
    hub.repository("user/student").files()["README.md"] = text
    push_model_to_hub(adapter, "user/student")
    assert b"# student" in hub.repository("user/student").files()["README.md"]


def test_weights_and_tokenizer_of_an_earlier_push_do_not_stay(hub, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TEACHER)
    model.generation_config = DiffusionGenerationConfig(**RECIPE)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.save_pretrained(tmp_path / "one")
    push_model_to_hub(tmp_path / "one", "user/model")
    files = hub.repository("user/model").files()
    files |= {"added_tokens.json": b"{}", "notes.txt": b"mine", "onnx/model.safetensors": b"mine"}

    push_model_to_hub(tmp_path / "many", "user/model")
    files = hub.repository("user/model").files()
    assert "model.safetensors" not in files and "model.safetensors.index.json" in files
    assert "tokenizer.json" in files  # this folder says nothing about the tokenizer
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    model.save_pretrained(tmp_path / "one")
    push_model_to_hub(tmp_path / "one", "user/model")
    files = hub.repository("user/model").files()
    assert not [name for name in files if name.startswith("model-") or "index" in name]
    assert "added_tokens.json" not in files
    assert files["notes.txt"] == files["onnx/model.safetensors"] == b"mine"
    assert torch.equal(AutoModelForMaskedLM.from_pretrained("user/model").lm_head.weight, model.lm_head.weight)


def test_the_lines_of_the_card_run_as_they_stand(hub, adapter, capsys):
    push_model_to_hub(adapter, "user/student")
    lines = lines_of(card_of(hub))
    assert len([line for line in lines.splitlines() if line]) <= 10 and "enable_diffusion_generation" not in lines

    names: dict = {}
    exec(compile(lines, "card", "exec"), names)
    assert "forward passes" in capsys.readouterr().out
    local = AutoModelForMaskedLM.from_pretrained(TEACHER)
    local.load_adapter(str(adapter))
    assert torch.equal(names["out"].sequences, local.generate(names["inputs"]["input_ids"]))


def test_the_card_of_another_class_runs_too(hub, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    save_bert(tmp_path, BertForMaskedLM, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "training_summary.json").write_text('{"is_native": false}')
    recipe = DiffusionGenerationConfig(max_new_tokens=8, block_length=8, denoising_steps=2, mask_token_id=1)
    push_model_to_hub(tmp_path, "user/bert", generation_config=recipe)
    lines = lines_of(card_of(hub, "user/bert"))
    names: dict = {}
    exec(compile(lines, "card", "exec"), names)
    assert names["out"].nfe.tolist() == [2]


def test_the_card_says_how_the_recipe_was_found(hub, adapter):
    (adapter / "calibration.json").write_text('{"max_accuracy_drop": 0.015}')
    push_model_to_hub(adapter, "user/student")
    assert '"max_accuracy_drop": 0.015' in card_of(hub).text
    assert "calibration.json" in hub.repository("user/student").files()
    # It says nothing of other settings.
    push_model_to_hub(adapter, "user/student", generation_config=DiffusionGenerationConfig(entropy_threshold=0.1))
    assert "max_accuracy_drop" not in card_of(hub).text
    assert "calibration.json" not in hub.repository("user/student").files()
