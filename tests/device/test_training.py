# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The loss and its gradients on a device equal the CPU's, and how often a step waits for the device."""

import pytest
import torch

from hf_dparallel import certainty_forcing_loss, enable_diffusion_generation
from hf_dparallel.models import scoring
from hf_dparallel.training.objective import averages

from ..helpers import (
    MASK,
    enable_checkpointing,
    lora,
    make_dream,
    make_llada,
    make_modernbert,
    make_rows,
    make_sdar,
    make_trainer,
)
from ..simulated_device import SimulatedDevices, SimulatedTensor


# How often the host waits in a step: forward and backward pass, and logging. Numbers here only ever fall.
WAITS = {"forward": 5, "backward": 1, "log": 1}


def shifted_modernbert():
    return enable_diffusion_generation(make_modernbert(), mask_token_id=MASK, shift_logits=True)


def train_step(trainer, at, devices=None):
    """Returns the loss, the gradients by name and what is logged."""
    model = trainer.model.train()
    batch = trainer.data_collator(make_rows(3))
    batch = {name: value.to(at) if torch.is_tensor(value) else value for name, value in batch.items()}
    num_sequences = torch.tensor(3.0, device=at)

    def enter(phase):
        if devices is not None:
            devices.label = phase

    enter("forward")
    loss = trainer.compute_loss(model, batch, num_items_in_batch=num_sequences)
    enter("backward")
    loss.backward()
    enter("log")
    logs = averages(trainer._sums["train"], list(trainer.args.objective.weights))
    enter("evaluation")
    with torch.no_grad():
        trainer.compute_loss(model.eval(), batch, return_outputs=True)
    values = {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {name: x.elem if isinstance(x, SimulatedTensor) else x for name, x in values.items()}, logs


@pytest.mark.parametrize(
    ("make_model", "settings"),
    [
        (make_llada, {}),
        (make_llada, {"chunk": 64 * 5}),
        (make_dream, {"chunk": 64 * 5}),
        (make_llada, {"adapter": True, "chunk": 64 * 5}),
        (make_llada, {"adapter": True, "checkpointing": True}),
        (make_llada, {"masking": "random", "complementary_masking": False}),
        (shifted_modernbert, {}),
        (make_sdar, {}),
    ],
)
def test_a_training_step_is_that_of_the_cpu(make_model, settings, tmp_path, monkeypatch):
    settings = dict(settings)
    monkeypatch.setattr(scoring, "_CHUNK_NUMEL", settings.pop("chunk", 2**24))
    has_adapter, checkpointing = settings.pop("adapter", False), settings.pop("checkpointing", False)

    def make():
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, make_model(), peft_config=lora() if has_adapter else None, **settings)
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        if checkpointing:
            enable_checkpointing(trainer.model)
            trainer.model.enable_input_require_grads()
        return trainer

    expected, expected_logs = train_step(make(), "cpu")
    trainer = make()
    with SimulatedDevices() as devices:
        devices.move(trainer.model)
        values, logs = train_step(trainer, "cuda", devices)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)
    assert logs == pytest.approx(expected_logs, rel=1e-5)
    for phase, most in WAITS.items():
        assert len(devices.waits_of(phase)) <= most, devices.waits_of(phase)


def test_the_loss_of_all_logits():
    with SimulatedDevices():
        logits = torch.randn(2, 6, 9, device="cuda", requires_grad=True)
        labels = torch.randint(9, (2, 6), device="cuda")
        labels[:, :2] = -100
        certainty_forcing_loss(logits, labels).backward()
        assert logits.grad.device == logits.device and logits.grad[:, :2].abs().sum().item() == 0
