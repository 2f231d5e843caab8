# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The scripts and configurations under examples/: they run on tiny checkpoints, and say what the paper says."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from datasets import Dataset
from transformers import AutoModelForMaskedLM
from transformers.trainer_utils import SchedulerType
from trl import get_peft_config

from hf_dparallel import CertaintyForcingConfig
from hf_dparallel.cli.arguments import CommandParser, OutputArguments
from hf_dparallel.cli.train import ModelArguments, TrainingDataArguments

from .conftest import make_dream, make_llada
from .training.test_trajectories import make_tokenizer


EXAMPLES = Path(__file__).parents[1] / "examples"
CONFIGS = EXAMPLES / "configs"
ON_THIS_MACHINE = ["--use_cpu", "--bf16", "false", "--dtype", "float32", "--report_to", "none"]


@pytest.fixture(scope="module", params=[make_llada, make_dream], ids=["llada", "dream"])
def checkpoint(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    request.param().save_pretrained(folder)
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


def test_decode(run_example, checkpoint):
    out = run_example("decode.py", "--model", checkpoint, "--prompt", "5 6", "--max_new_tokens", "32")
    assert "{'denoising_steps': 32}: " in out and "{'entropy_threshold': 0.5}: " in out


@pytest.mark.parametrize("config", ["llada-8b.yaml", "dream-7b.yaml"])
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
LLADA = {"masking": "semi_autoregressive", "block_length": 32, "lr_scheduler_type": SchedulerType.CONSTANT}
DREAM = {
    "masking": "random",
    "block_length": 256,
    "lr_scheduler_type": SchedulerType.COSINE,
    "warmup_steps": 0.05,
}


@pytest.mark.parametrize(
    ("name", "hub_id", "rank", "epochs", "settings"),
    [
        ("llada-8b", "GSAI-ML/LLaDA-8B-Instruct", 32, 6, LLADA),
        ("llada-1.5", "GSAI-ML/LLaDA-1.5", 128, 4, LLADA),
        ("dream-7b", "Dream-org/Dream-v0-Instruct-7B", 16, 3, DREAM),
    ],
)
def test_configurations_are_those_of_the_paper(name, hub_id, rank, epochs, settings):
    parser = CommandParser(
        "train", "", [TrainingDataArguments, CertaintyForcingConfig, ModelArguments, OutputArguments]
    )
    flags = ["--config", str(CONFIGS / f"{name}.yaml"), "--dataset_name", "d", "--use_cpu"]
    data, args, model, _ = parser.parse(flags)
    lora = get_peft_config(model)
    assert model.model_name_or_path == hub_id and model.dtype == "bfloat16" and data.drop_long_rows
    assert (lora.r, lora.lora_alpha, lora.lora_dropout, lora.task_type) == (rank, rank, 0.0, None)
    assert lora.target_modules is None  # the trainer's choice: all linear layers of attention and MLP
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 64
    for setting, value in {**COMMON, **settings, "num_train_epochs": epochs}.items():
        assert getattr(args, setting) == value, setting


def test_every_configuration_is_tested():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == {"llada-8b", "llada-1.5", "dream-7b"}
    assert {path.stem for path in (CONFIGS / "accelerate").iterdir()} == set(LAUNCHERS)


LAUNCHERS = {
    "ddp": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "deepspeed_zero2": DistributedType.DEEPSPEED,
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_accelerate_reads_its_configurations(name):
    config = load_config_from_file(str(CONFIGS / "accelerate" / f"{name}.yaml"))
    assert config.distributed_type == LAUNCHERS[name] and config.mixed_precision == "bf16"


def test_the_command_under_torchrun(tmp_path):
    """As accelerate launches it on GPUs; on CPUs it would need MPI."""
    make_llada().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    rows = [{"prompt_ids": [2, 3], "completion_ids": [4 + row, 1]} for row in range(4)]
    Dataset.from_list(rows).to_parquet(tmp_path / "rows.parquet")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["--module", "hf_dparallel.cli", "train", "--config", str(CONFIGS / "llada-8b.yaml")]
    command += ["--dataset_name", str(tmp_path / "rows.parquet"), "--model", "model", "--output_dir", "student"]
    command += ["--max_length", "32", "--num_train_epochs", "1", "--gradient_accumulation_steps", "1"]
    result = subprocess.run([*command, *ON_THIS_MACHINE], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "student" / "adapter_model.safetensors").is_file()
    state = json.loads((tmp_path / "student" / "checkpoint-2" / "trainer_state.json").read_text())
    # Four rows, one in each process at a time.
    assert state["max_steps"] == 2
