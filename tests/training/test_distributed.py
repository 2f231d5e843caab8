# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Two processes do what one does."""

import json

import pytest
import torch
from safetensors.torch import load_file

from hf_dparallel import DecodingCallback

from ..evaluation.test_decoding import RECIPE, reward_of_the_text
from ..helpers import lora, make_dataset, make_prompts, make_tokenizer, make_trainer
from ..processes import run_in_two_processes


NAMES = ("loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


def make_run(output_dir, num_processes: int):
    """A trainer with steps of four sequences, by accumulation over two batches."""
    trainer = make_trainer(
        output_dir,
        rows=16,
        peft_config=lora(),
        per_device_train_batch_size=2 // num_processes,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        eval_dataset=make_dataset(5, seed=1),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
    )
    trainer.processing_class = make_tokenizer()
    trainer.add_callback(DecodingCallback(trainer, make_prompts(5), reward_of_the_text, RECIPE))
    return trainer


def figures_of(trainer) -> list[list[float]]:
    """What was logged at each step, of training, of evaluation and of decoding."""
    names = (*NAMES, *(f"eval_{name}" for name in NAMES), *(f"eval_decoding_{name}" for name in ("accuracy", "nfe")))
    return [[entry[name] for name in names if name in entry] for entry in trainer.state.log_history[:-1]]


def adapter_of(checkpoint) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "adapter_model.safetensors")


TRAIN = """
import json, sys
from pathlib import Path
from tests.training.test_distributed import figures_of, make_run

trainer = make_run(sys.argv[1], num_processes=2)
trainer.train()
if trainer.args.process_index == 0:
    Path(sys.argv[1], "figures.json").write_text(json.dumps(figures_of(trainer)))
trainer.accelerator.wait_for_everyone()
# From a checkpoint of one process, in the middle of the epoch.
make_run(sys.argv[2], num_processes=2).train(resume_from_checkpoint=f"{sys.argv[3]}/checkpoint-2")
trainer.accelerator.end_training()
"""


def test_two_processes_give_the_losses_and_weights_of_one_and_take_over_its_run(tmp_path):
    one, two, resumed = tmp_path / "one", tmp_path / "two", tmp_path / "resumed"
    whole = make_run(one, num_processes=1)
    whole.train()
    run_in_two_processes(TRAIN, two, resumed, one)

    expected, measured = figures_of(whole), json.loads((two / "figures.json").read_text())
    assert len(expected) == 8
    for expected_entry, entry in zip(expected, measured, strict=True):
        assert entry == pytest.approx(expected_entry, rel=1e-4, abs=1e-5)
    make_run(tmp_path / "resumed by one", num_processes=1).train(resume_from_checkpoint=str(two / "checkpoint-2"))
    weights = adapter_of(one / "checkpoint-4")
    for folder in (two, resumed, tmp_path / "resumed by one"):
        for name, weight in adapter_of(folder / "checkpoint-4").items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-5, msg=f"{folder.name}: {name}")


SHARD = """
import dataclasses
import sys
import torch
torch.distributed.init_process_group("gloo")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from accelerate.utils import FullyShardedDataParallelPlugin
from hf_dparallel.training.trainer import _keep_float32_outputs
from hf_dparallel.models import scoring
from tests.helpers import lora, make_rows, make_trainer

# Several chunks, and an adapter on the head.
scoring._CHUNK_NUMEL = 3 * 64
adapter = lora(target_modules=["q_proj", "lm_head"], init_lora_weights=False)
trainer = make_trainer("unused", peft_config=adapter, activation_checkpointing=False)
model = trainer.model.train()
batch = trainer.data_collator(make_rows(2))

def gradients():
    model.zero_grad()
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    return loss, {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in grads.items()}

expected, expected_gradients = gradients()
mesh = init_device_mesh("cpu", (2,))
# What accelerate makes of `mixed_precision: bf16`, with sums and outputs rounded.
plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
plugin.set_mixed_precision("bf16")
assert plugin.mixed_precision_policy.output_dtype == torch.bfloat16
_keep_float32_outputs(plugin)
policy = plugin.mixed_precision_policy
if sys.argv[1] == "float32":
    policy = dataclasses.replace(policy, param_dtype=None, reduce_dtype=None)
for layer in model.get_base_model().model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=dataclasses.replace(policy, output_dtype=policy.param_dtype))
fully_shard(model, mesh=mesh, mp_policy=policy)
loss, sharded_gradients = gradients()
rough = {"rtol": 0.1, "atol": 1.0} if sys.argv[1] == "bfloat16" else {"rtol": 1e-4, "atol": 1e-5}
torch.testing.assert_close(loss, expected, **rough)
for name, gradient in expected_gradients.items():
    torch.testing.assert_close(sharded_gradients[name], gradient, **rough)
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loss_of_a_model_that_fsdp2_splits_over_processes(tmp_path, dtype):
    """The head is split as well, and is there only within the forward pass."""
    run_in_two_processes(SHARD, dtype)
