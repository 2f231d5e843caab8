# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs that are killed, and what a second start of a run may change."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from hf_dparallel import generate_trajectories
from hf_dparallel.data import folder
from hf_dparallel.training.checkpoints import last_complete_checkpoint

from ..helpers import lora, make_llada, make_prompts, make_tokenizer, make_trainer, weights_of
from ..processes import run_program
from ..recipes import RECIPE


SAVING = {"save_strategy": "steps", "save_steps": 1, "rows": 6, "mask_ratio": "random"}


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(tmp_path):
    settings = SAVING | {"peft_config": lora(lora_dropout=0.1), "rows": 4}
    whole = make_trainer(tmp_path, **settings)
    whole.train()
    before, last = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    # In its state, in its weights, and in all files.
    for patterns, kept in ((["trainer_state.json"], 100), (["adapter_model.safetensors"], -100), (["*.*"], 0)):
        contents = {path: path.read_bytes() for pattern in patterns for path in last.rglob(pattern)}
        assert last_complete_checkpoint(str(tmp_path)) == str(last)
        for path, content in contents.items():
            path.write_bytes(content[:kept])
        assert last_complete_checkpoint(str(tmp_path)) == str(before)
        if kept:
            for path, content in contents.items():
                path.write_bytes(content)

    resumed = make_trainer(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=True)
    expected = weights_of(whole.model)
    assert all(torch.equal(weight, expected[name]) for name, weight in resumed.model.named_parameters())
    # It has been written anew.
    assert last_complete_checkpoint(str(tmp_path)) == str(last)


def test_another_optimizer_is_refused_and_a_missing_state_is_told(tmp_path, caplog):
    make_trainer(tmp_path, max_steps=1, **SAVING).train()
    with pytest.raises(ValueError, match="checkpoint-1' cannot be resumed: optim was 'adamw_torch.*' and is 'sgd'"):
        make_trainer(tmp_path, optim="sgd", **SAVING).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1" / "optimizer.pt").unlink()
    make_trainer(tmp_path, optim="sgd", max_steps=2, **SAVING).train(resume_from_checkpoint=True)
    assert "checkpoint-1' has no state of the optimizer: its moments and the schedule begin anew." in caplog.text


def test_another_adapter_is_refused(tmp_path):
    """Its scale is not among the weights, which would then mean something else."""
    make_trainer(tmp_path, peft_config=lora(), max_steps=1, **SAVING).train()
    make_trainer(tmp_path, peft_config=lora(), max_steps=2, **SAVING).train(resume_from_checkpoint=True)
    others = {"lora_alpha": 64, "use_rslora": True, "alpha_pattern": {"q_proj": 2}, "target_modules": ["q_proj"]}
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"checkpoint-2.* cannot be resumed: {name} was .* and is .*Resume with"):
            make_trainer(tmp_path, peft_config=lora(**{name: value}), **SAVING).train(resume_from_checkpoint=True)


def test_a_finished_run_takes_no_more_steps(tmp_path):
    """Also in the middle of an epoch, where the Trainer checks after a step."""
    settings = {"peft_config": lora(), "max_steps": 1, **SAVING}
    first, again = make_trainer(tmp_path, **settings), make_trainer(tmp_path, **settings)
    first.train()
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 1 and not (tmp_path / "checkpoint-2").exists()
    expected = weights_of(first.model)
    assert all(torch.equal(weight, expected[name]) for name, weight in again.model.named_parameters())


def test_no_checkpoint_to_go_on_from(tmp_path):
    assert last_complete_checkpoint(str(tmp_path / "none")) is None
    message = "`resume_from_checkpoint=True` needs a checkpoint in .* that was written to its end, and there is none"
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)
    # As a process leaves it that is killed while it saves for the first time.
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_training_that_diverges_stops(tmp_path):
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            next(weight for weight in model.parameters() if weight.requires_grad).data[0] = float("nan")

    # After the last step there is no loss to log.
    for rows, step in ((6, 2), (2, 1)):
        trainer = make_trainer(tmp_path, peft_config=lora(), rows=rows)
        trainer.add_callback(Break())
        with pytest.raises(FloatingPointError, match=f"at step {step}. Lower `learning_rate`"):
            trainer.train()


KILLED_RUNS = """
import os, random, signal, sys, time
from pathlib import Path
from tests.training.test_checkpoints import {run} as run

folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])

def start(output_dir):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run(output_dir)
            code = 0
        finally:
            os._exit(code)
    return pid

def wait(pid, seconds):
    # Returns the exit code, or None if it is still running.
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)

begin = time.monotonic()
assert wait(start(folder / "whole"), 300) == 0
duration = time.monotonic() - begin
draw = random.Random(0)
kills = runs = 0
while kills < num_kills:
    output_dir = folder / f"run-{{runs}}"
    runs += 1
    while True:
        pid = start(output_dir)
        code = wait(pid, draw.uniform(0, duration))
        if code is not None:
            assert code == 0, code
            break
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
print(kills, runs)
"""


def train(output_dir, peft_config=None):
    """As a job that is started again after each failure."""
    trainer = make_trainer(output_dir, peft_config=peft_config, **(SAVING | {"rows": 24, "num_train_epochs": 2}))
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(str(output_dir)) is not None)
    trainer.save_model(output_dir / "final")


def train_adapter(output_dir):
    train(output_dir, lora(lora_dropout=0.1))


def decode(output_dir):
    """As a job that is started again after each failure."""
    folder.SHARD_SIZE = 4
    rows = generate_trajectories(make_llada(), make_tokenizer(), make_prompts(400), RECIPE, 8, output_dir)
    rows.to_parquet(output_dir / "rows.parquet")


def kill_again_and_again(run: str, folder: Path) -> int:
    """Kills `run` 20 times at random points, starts it again each time, and returns how often it came to its end."""
    code, output = run_program(KILLED_RUNS.format(run=run), folder, 20)
    assert code == 0, output[-2000:]
    kills, runs = map(int, output.split()[-2:])
    assert kills >= 20
    return runs


@pytest.mark.slow
def test_trajectories_that_are_killed_again_and_again_are_the_same(tmp_path):
    runs = kill_again_and_again("decode", tmp_path)
    expected = Dataset.from_parquet(str(tmp_path / "whole" / "rows.parquet"))
    assert len(expected) == 400
    for run in range(runs):
        assert Dataset.from_parquet(str(tmp_path / f"run-{run}" / "rows.parquet"))[:] == expected[:], run


@pytest.mark.slow
@pytest.mark.parametrize(("run", "file"), [("train", "model"), ("train_adapter", "adapter_model")])
def test_training_that_is_killed_again_and_again_ends_with_the_same_weights(tmp_path, run, file):
    from safetensors.torch import load_file

    runs = kill_again_and_again(run, tmp_path)
    expected = load_file(tmp_path / "whole" / "final" / f"{file}.safetensors")
    for number in range(runs):
        measured = load_file(tmp_path / f"run-{number}" / "final" / f"{file}.safetensors")
        assert measured.keys() == expected.keys()
        for name, weight in expected.items():
            assert torch.equal(measured[name], weight), (number, name)
