# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The scripts and configurations under examples/: they run on tiny checkpoints, and say what the paper says."""

import ast
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
from transformers.trainer_utils import SchedulerType
from trl import get_peft_config

from hf_dparallel import SDARConfig
from hf_dparallel_cli import main
from hf_dparallel_cli.training import read_arguments

from .helpers import make_dream, make_llada, make_sdar, make_tokenizer


EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIGS = EXAMPLES / "configs"
ON_THIS_MACHINE = ["--use_cpu", "--bf16", "false", "--dtype", "float32", "--report_to", "none"]


@pytest.fixture(scope="module")
def checkpoint(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    getattr(request, "param", make_llada)().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run_example(monkeypatch, tmp_path, capsys):
    def run(name: str, *argv: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def in_docstring(name: str) -> tuple[str, int]:
    """What a script says of itself, and how `re` finds commands of several lines in it."""
    return ast.get_docstring(ast.parse((EXAMPLES / name).read_text()), clean=False), re.MULTILINE | re.DOTALL


def write_questions(folder: Path, checkpoint: str) -> None:
    """Questions in the columns of GSM8K, with the answers that the model gives."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(checkpoint), make_tokenizer()
    lines = []
    for number in range(4):
        ids = tokenizer(f"<s> {number} 7", return_tensors="pt")["input_ids"]
        new_ids = model.generate(ids, max_new_tokens=32, block_length=32)[0, ids.shape[1] :]
        words = tokenizer.decode(new_ids, skip_special_tokens=True).split()
        lines.append(json.dumps({"question": f"{number} 7", "answer": f"#### {(words or ['0'])[-1]}"}))
    folder.mkdir()
    (folder / "train.jsonl").write_text("\n".join(lines))


def test_decode_with_the_bundled_student(run_example):
    (command,) = re.findall(r"^    python \S+ (--model demo .*?)\n\n", *in_docstring("decode.py"))
    out = run_example("decode.py", *shlex.split(command.replace("\\\n", " ")))
    assert out.count("The answer is 15.") == 2 and "{'denoising_steps': 64}: 64 forward passes" in out


@pytest.mark.slow
def test_distill_the_bundled_teacher(run_example):
    (command,) = re.findall(r"^    python \S+ (--model demo .*?)\n\n", *in_docstring("distill.py"))
    out = run_example("distill.py", *shlex.split(command.replace("\\\n", " ")), "--report_to", "none")
    assert "The first question took 64 forward passes; now it takes " in out


@pytest.mark.parametrize(
    ("checkpoint", "config"),
    [
        (make_dream, "dream-7b.yaml"),
        (make_sdar, "sdar-8b.yaml"),
    ],
    indirect=["checkpoint"],
)
def test_distill_then_decode_with_the_adapter(run_example, tmp_path, checkpoint, config):
    write_questions(tmp_path / "questions", checkpoint)
    flags = ["--model", checkpoint, "--dataset", str(tmp_path / "questions"), "--output_dir", "student"]
    flags += ["--max_new_tokens", "32", "--max_length", "64", "--num_train_epochs", "1", *ON_THIS_MACHINE]
    out = run_example("distill.py", "--config", str(CONFIGS / config), *flags)
    assert "The first question took " in out
    assert (tmp_path / "student" / "adapter_model.safetensors").is_file()
    assert list((tmp_path / "student" / "trajectories").glob("shard-*.parquet"))

    flags = ["--model", checkpoint, "--adapter", "student", "--prompt", "5 6", "--max_new_tokens", "32"]
    assert "forward passes" in run_example("decode.py", *flags)


CHAT_TEMPLATE = "{% for message in messages %}<s> {{ message['content'] }} {% endfor %}"


def test_published_data_train_after_their_conversion(run_example, tmp_path, checkpoint):
    """In the columns of the published data, where LLaDA's question is a whole prompt and Dream's is bare."""
    rows = [
        {"question": "<s> 5 6 ", "llm_response": "7 8 9", "gold_answer": "9"},
        {"question": "5 6", "llm_response": "7 8 9", "gold_answer": "9"},
        {"question": "7", "llm_response": " ", "gold_answer": "1"},
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    flags = ["--dataset", "data", "--tokenizer", "tokenizer", "--output", "rows.parquet"]
    assert "2 of 3 rows" in run_example("convert_trajectories.py", *flags)

    converted = Dataset.from_parquet(str(tmp_path / "rows.parquet"))
    prompt_ids = tokenizer("<s> 5 6", add_special_tokens=False)["input_ids"]
    completion_ids = [*tokenizer("7 8 9", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert converted["prompt_ids"][:] == [prompt_ids, prompt_ids]
    assert converted["completion_ids"][:] == [completion_ids, completion_ids]

    flags = ["--dataset_name", "rows.parquet", "--model", checkpoint, "--output_dir", "student", "--use_peft"]
    assert main(["train", *flags, "--max_length", "32", "--num_train_epochs", "1", *ON_THIS_MACHINE]) == 0
    assert (tmp_path / "student" / "adapter_model.safetensors").is_file()


def test_adapters_are_switched_and_merged(run_example, tmp_path, checkpoint):
    rows = [{"prompt_ids": [2, 3], "completion_ids": [4 + row, 1]} for row in range(2)]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    flags = ["--model", checkpoint, "--trajectories", "rows.parquet", "--output_dir", "runs", "--lora_r", "2"]
    out = run_example("adapters.py", *flags, "--max_length", "40", "--max_new_tokens", "32")
    passes = dict(re.findall(r"^(\w+): (\d+) forward passes$", out, flags=re.MULTILINE))
    assert set(passes) == {"dparallel", "consistency_only", "merged"} and "no adapter: " in out
    assert passes["merged"] == passes["dparallel"]
    published = load_file(tmp_path / "runs" / "merged" / "model.safetensors").keys()
    assert published == load_file(Path(checkpoint) / "model.safetensors").keys()


COMMON = {
    "learning_rate": 2e-5,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "bf16": True,
    "mask_ratio": 0.5,
    "complementary_masking": True,
    "max_length": 384,
    "certainty_temperature": 0.5,
    "certainty_weight": 2.0,
    "consistency_weight": 1.0,
}
LLADA = {
    "masking": "semi_autoregressive",
    "block_length": 32,
    "lr_scheduler_type": SchedulerType.CONSTANT,
}
DREAM = {
    "masking": "random",
    "block_length": 32,
    "lr_scheduler_type": SchedulerType.COSINE,
    "warmup_steps": 0.05,
}


BLOCK_CAUSAL = {"masking": "semi_autoregressive", "lr_scheduler_type": SchedulerType.CONSTANT}


@pytest.mark.parametrize(
    ("name", "hub_id", "rank", "epochs", "settings"),
    [
        ("llada-8b", "GSAI-ML/LLaDA-8B-Instruct", 32, 6, LLADA),
        ("llada-1.5", "GSAI-ML/LLaDA-1.5", 128, 4, LLADA),
        ("dream-7b", "Dream-org/Dream-v0-Instruct-7B", 16, 3, DREAM),
        ("sdar-8b", "JetLM/SDAR-8B-Chat", 32, 3, BLOCK_CAUSAL | {"block_length": SDARConfig().block_length}),
        ("llada2-mini", "inclusionAI/LLaDA2.0-mini", 32, 3, BLOCK_CAUSAL | {"block_length": 32}),
    ],
)
def test_configurations_are_those_of_the_paper(name, hub_id, rank, epochs, settings):
    words = ["--config", str(CONFIGS / f"{name}.yaml"), "--dataset_name", "d", "--use_cpu"]
    _, args, model = read_arguments(words)
    lora = get_peft_config(model)
    assert model.model_name_or_path == hub_id and model.dtype == "bfloat16"
    assert (lora.r, lora.lora_alpha, lora.lora_dropout, lora.task_type) == (rank, rank, 0.0, None)
    assert lora.target_modules is None  # the trainer's choice: all linear layers of attention and MLP
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 64
    for setting, value in {**COMMON, **settings, "num_train_epochs": epochs}.items():
        assert getattr(args, setting) == value, setting


def test_every_configuration_is_tested():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {
        *("llada-8b", "llada-1.5", "dream-7b", "sdar-8b", "llada2-mini")
    }
    assert {path.stem for path in (CONFIGS / "accelerate").iterdir()} == set(LAUNCHERS)


LAUNCHERS = {
    "ddp": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "deepspeed_zero2": DistributedType.DEEPSPEED,
    "deepspeed_zero3": DistributedType.DEEPSPEED,
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_accelerate_reads_its_configurations(name):
    config = load_config_from_file(str(CONFIGS / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type == LAUNCHERS[name] and config.mixed_precision == "bf16"
