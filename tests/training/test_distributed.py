# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Two processes do what one does."""

import json
from pathlib import Path

import pytest
import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors.torch import load_file

from hf_dparallel import DecodingCallback
from hf_dparallel.training.trainer import _prepare_fsdp

from ..helpers import (
    NEEDS_5_19,
    lora,
    make_dataset,
    make_llada,
    make_llada2,
    make_prompts,
    make_sdar,
    make_tokenizer,
    make_trainer,
    reward_of_the_text,
)
from ..processes import run_in_two_processes
from ..recipes import RECIPE


NAMES = ("loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


def make_run(output_dir, num_processes: int):
    """A trainer with steps of four sequences, by accumulation over two batches."""
    trainer = make_trainer(
        output_dir,
        rows=8,
        peft_config=lora(),
        per_device_train_batch_size=2 // num_processes,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        eval_dataset=make_dataset(5, seed=1),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=1,
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


def results_of(folder) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of a run up to a checkpoint, and the weights that the checkpoint has for others."""
    (weights,) = folder.glob("*.safetensors")
    state = json.loads((folder / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"]], load_file(weights)


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
make_run(sys.argv[2], num_processes=2).train(resume_from_checkpoint=f"{sys.argv[3]}/checkpoint-1")
trainer.accelerator.end_training()
"""


@NEEDS_5_19
def test_two_processes_give_the_losses_and_weights_of_one_and_take_over_its_run(tmp_path):
    one, two, resumed = tmp_path / "one", tmp_path / "two", tmp_path / "resumed"
    whole = make_run(one, num_processes=1)
    whole.train()
    run_in_two_processes(TRAIN, two, resumed, one)

    expected, measured = figures_of(whole), json.loads((two / "figures.json").read_text())
    assert len(expected) == 4
    for expected_entry, entry in zip(expected, measured, strict=True):
        assert entry == pytest.approx(expected_entry, rel=1e-4, abs=1e-5)
    make_run(tmp_path / "resumed by one", num_processes=1).train(resume_from_checkpoint=str(two / "checkpoint-1"))
    weights = adapter_of(one / "checkpoint-2")
    for folder in (two, resumed, tmp_path / "resumed by one"):
        for name, weight in adapter_of(folder / "checkpoint-2").items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-5, msg=f"{folder.name}: {name}")


def make_sharded_run(output_dir, family: str, num_processes: int):
    """A trainer with steps of four sequences, of LLaDA2 or of an adapter, on the head, too."""
    model = {"llada": make_llada, "sdar": make_sdar, "llada2": make_llada2}[family]().train()
    return make_trainer(
        output_dir,
        model=model,
        rows=8,
        peft_config=lora(target_modules=["q_proj", "lm_head"]) if family != "llada2" else None,
        masking="random" if family == "llada" else "semi_autoregressive",
        per_device_train_batch_size=4 // num_processes,
        use_cpu=num_processes == 1,
        save_strategy="steps",
        save_steps=1,
        adam_epsilon=1e-3,  # or Adam divides rounding errors by their own size
    )


# The documented configuration; accelerate refuses FSDP on CPUs.
SHARD = """
import os, sys
from pathlib import Path
import torch, yaml
from accelerate.state import DistributedType, PartialState
from hf_dparallel.models import scoring
from tests.training.test_distributed import make_sharded_run

# More chunks on one process than on the other.
scoring._CHUNK_NUMEL = 64 * int(os.environ["RANK"] + "2")
output_dir, config, family, *changes = sys.argv[1:]
settings = yaml.safe_load(Path(config).read_text())["fsdp_config"] | dict(change.split("=") for change in changes)
os.environ["ACCELERATE_USE_FSDP"] = "true"
os.environ.update({name.upper(): str(value) for name, value in settings.items()})
PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
trainer = make_sharded_run(output_dir, family, num_processes=2)
trainer.train()
trainer.save_model(f"{output_dir}/saved")
make_sharded_run(f"{output_dir}/../resumed", family, 2).train(resume_from_checkpoint=f"{output_dir}/checkpoint-1")
trainer.accelerator.end_training()
"""


@pytest.mark.parametrize(
    ("family", "changes", "rough"),
    [
        ("llada2", ["fsdp_state_dict_type=SHARDED_STATE_DICT"], {"rtol": 1e-4, "atol": 1e-5}),
        ("llada", [], {"rtol": 1e-4, "atol": 1e-5}),
        ("sdar", ["accelerate_mixed_precision=bf16"], {"rtol": 0.1, "atol": 0.05}),
    ],
)
@pytest.mark.slow
def test_two_processes_that_share_the_weights_train_the_model_of_one(tmp_path, family, changes, rough):
    whole = make_sharded_run(tmp_path / "one", family, num_processes=1)
    whole.train()
    config = Path(__file__).parents[2] / "examples/configs/accelerate/fsdp2.yaml"
    run_in_two_processes(SHARD, tmp_path / "two", config, family, *changes)

    expected = results_of(tmp_path / "one/checkpoint-2")
    for folder in ("two/checkpoint-2", "resumed/checkpoint-2"):
        torch.testing.assert_close(results_of(tmp_path / folder), expected, **rough)
    (saved,) = (tmp_path / "two/saved").glob("*.safetensors")
    torch.testing.assert_close(load_file(saved), results_of(tmp_path / "two/checkpoint-2")[1], rtol=0, atol=0)


def test_weights_that_fsdp2_would_not_load_are_refused():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=True)
    _prepare_fsdp(plugin, make_llada())
    with pytest.raises(ValueError, match="`fsdp_cpu_ram_efficient_loading: true`"):
        _prepare_fsdp(plugin, make_llada2())
