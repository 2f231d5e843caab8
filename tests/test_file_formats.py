# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a release has saved is read by the code of today, and decodes the same tokens.

For a new release, `python -m tests.test_file_formats` adds a folder to `fixtures/saved`, named by its version.
"""

import contextlib
import json
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import DiffusionGenerationConfig, __version__, filter_trajectories, generate_trajectories
from hf_dparallel.data.folder import FILTERED_NAME, filtered_file, write_rows

from .helpers import lora, make_dataset, make_llada, make_prompts, make_tokenizer, make_trainer, reward_of_the_text
from .recipes import RECIPE


SAVED = Path(__file__).parent / "fixtures" / "saved"
SIZES = {"d_model": 16, "mlp_hidden_size": 16}


def answers_of(name: str, **settings) -> list[list[int]]:
    """Returns the tokens of prompts and answers by a model or a student that is read from a folder."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    texts = make_prompts(5)[:]["prompt"]
    inputs = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    return model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **settings).tolist()


def make_student(base, rows: Dataset, folder: Path) -> None:
    trainer = make_trainer(
        folder, base, train_dataset=rows, peft_config=lora(r=1, init_lora_weights=False), learning_rate=1e-3
    )
    trainer.processing_class = make_tokenizer()
    trainer.train()
    trainer.save_model()


def save(folder: Path) -> None:
    """Saves a base, its trajectories, a student that names its base by a relative path, and what both answer."""
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        make_tokenizer().save_pretrained("base")
        make_llada(**SIZES).save_pretrained("base")
        base = AutoModelForMaskedLM.from_pretrained("base")
        rows = generate_trajectories(base, make_tokenizer(), make_prompts(12), RECIPE, output_dir="trajectories")
        write_rows(Path("trajectories", FILTERED_NAME), rows)
        # On other rows than its own answers, which would change none of them.
        make_student(base, make_dataset(12), Path("student"))
        Path("student", "README.md").unlink()  # PEFT's, without a word about it
        Path("recorded.json").write_text(json.dumps(read(), indent=1))


def read() -> dict:
    """Returns what the saved files say, and the answers of the models in them, by the code of today."""
    return {
        "rows": Dataset.from_parquet(str(filtered_file(Path("trajectories")))).to_list(),
        "recipe": DiffusionGenerationConfig.from_pretrained("student").non_defaults(),
        "base": answers_of("base", **RECIPE.non_defaults()),
        "student": answers_of("student"),
    }


@pytest.mark.parametrize("folder", [pytest.param(path, id=path.name) for path in sorted(SAVED.glob("*"))])
def test_what_a_release_saved_is_read(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    recorded = json.loads(Path("recorded.json").read_text())
    now = read()
    # Settings that later releases add may be there too.
    assert recorded["recipe"].items() <= now["recipe"].items()
    assert all(now[part] == recorded[part] for part in ("rows", "base", "student"))
    rows = filter_trajectories(Dataset.from_list(now["rows"]), make_tokenizer(), reward_of_the_text)
    make_student(AutoModelForMaskedLM.from_pretrained("base"), rows, tmp_path)
    assert "adapter_model.safetensors" in [path.name for path in tmp_path.iterdir()]


if __name__ == "__main__":
    save(SAVED / __version__)
