# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""DiffusionGemma: recorded runs and losses of the published code, and certainty forcing."""

import json
import re

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import EntropyBoundSamplerConfig

from hf_dparallel import enable_diffusion_generation
from hf_dparallel.experimental.diffusion_gemma import (
    DiffusionGemmaCollator,
    DiffusionGemmaTrainer,
    DiffusionGemmaTrainingArguments,
)

from ..helpers import NEEDS_5_19, enable_checkpointing, lora, make_diffusion_gemma, make_rows, weights_of


@pytest.fixture(scope="module")
def folder(golden_dir):
    return golden_dir / "diffusion_gemma"


@NEEDS_5_19
def test_transformers_decodes_as_recorded(folder, monkeypatch):
    """One run of six; two of them take the likeliest tokens, and the last one is a batch."""
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder / "model").eval()
    for line in (folder / "generation.jsonl").read_text().splitlines()[1::6]:
        run = json.loads(line)
        told = dict(run["params"])
        if "entropy_bound" in told:
            told["sampler_config"] = EntropyBoundSamplerConfig(told.pop("entropy_bound"))
        ids, expected = torch.tensor(run["prompt_ids"]), torch.tensor(run["output_ids"])
        if "attention_mask" in run:
            told["attention_mask"] = torch.tensor(run["attention_mask"])
        with monkeypatch.context() as patched:
            if run["greedy"]:
                patched.setattr(torch, "multinomial", lambda given, num_samples: given.argmax(dim=-1, keepdim=True))
            torch.manual_seed(run["torch_seed"])
            out = model.generate(ids.view(-1, ids.shape[-1]), **told)
        assert torch.equal(out.sequences[:, ids.shape[-1] :].view_as(expected), expected)


def test_other_decoding_and_other_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match="canvases of random tokens"):
        enable_diffusion_generation(make_diffusion_gemma(), mask_token_id=5)
    with pytest.raises(ValueError, match="use_bidirectional_attention"):
        make_trainer(tmp_path, make_diffusion_gemma(use_bidirectional_attention="all"))


def make_collator(**others):
    return DiffusionGemmaCollator(**({"canvas_length": 4, "vocab_size": 64, "eos_token_id": 1} | others))


def make_trainer(folder, model=None, num_rows=4, peft_config=None, eval_dataset=None, **arguments):
    told = {"per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "max_steps": 2}
    told |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"} | arguments
    args = DiffusionGemmaTrainingArguments(str(folder), **told)
    model, rows = model or make_diffusion_gemma(), Dataset.from_list(make_rows(num_rows))
    return DiffusionGemmaTrainer(model, args, rows, eval_dataset, peft_config)


def test_a_canvas_has_noise_of_its_own_and_a_label_everywhere():
    rows = [{"prompt_ids": [2, 3], "completion_ids": [4, 5, 6, 7, 1]}, {"prompt_ids": [8] * 5, "completion_ids": [9]}]
    batch = make_collator()(rows)
    assert batch["input_ids"].tolist() == [[2, 3, 4, 5, 6, 7, 1], [8] * 5 + [9, 1]]
    assert batch["encoder_labels"].tolist() == [[-100, 3, 4, 5, 6, 7, 1], [-100, *[8] * 4, 9, -100]]
    assert batch["labels"].tolist() == [[4, 5, 6, 7, *[1] * 4], [9, 1, 1, 1, *[-100] * 4]]
    assert batch["decoder_position_ids"][:, :4].tolist() == [[2, 3, 4, 5], [5, 6, 7, 8]]
    with pytest.raises(ValueError, match="max_length=6"):
        make_collator(max_length=6)(rows)


def test_noise_is_uniform_and_depends_on_row_and_epoch_only():
    collator, rows = make_collator(), [{"prompt_ids": [2], "completion_ids": [3] * 20}]
    changed, conditioned = [], []
    for epoch in range(400):
        collator.set_epoch(epoch)
        batch = collator(rows)
        changed += (batch["decoder_input_ids"] != 3).view(-1, 4).sum(dim=1).tolist()
        conditioned.append(bool(batch["self_conditioning_mask"]))
    # Drawn for each canvas, the share makes all counts likely alike.
    assert (torch.tensor(changed).bincount() / len(changed)).tolist() == pytest.approx([0.2] * 5, abs=0.03)
    assert 150 < sum(conditioned) < 250
    rows = make_rows(4)
    together = collator(rows)["decoder_input_ids"]
    for row, tokens in zip(rows, together, strict=True):
        alone = collator([row])["decoder_input_ids"][0]
        assert torch.equal(alone, tokens[: len(alone)])


@NEEDS_5_19
@pytest.mark.parametrize(("number", "activation_checkpointing"), [(0, True), (4, False)])
def test_recorded_losses_and_gradients(folder, tmp_path, number, activation_checkpointing):
    """Those whose sequence fits into the window. One was recorded with predictions that leave the token itself out."""
    case = json.loads((folder / "train_loss.jsonl").read_text().splitlines()[number])
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder / "model").train()
    if activation_checkpointing:
        enable_checkpointing(model, {"use_reentrant": False})
    canvases, clean = torch.tensor(case["canvas_ids"]), torch.tensor(case["input_ids"])
    seen = torch.tensor(case["attention_mask"]).bool()
    seen[:, 0] = False
    batch = {
        "input_ids": clean,
        "encoder_labels": clean.masked_fill(~seen, -100),
        "decoder_input_ids": canvases,
        "labels": torch.tensor(case["canvas_target"]),
        "decoder_position_ids": torch.tensor(case["encoder_len"])[:, None] + torch.arange(canvases.shape[1]),
        "self_conditioning_mask": torch.tensor(case["self_conditioning_mask"]),
    }

    def forward(self_conditioning_logits=None, **inputs):
        output = model(self_conditioning_logits=self_conditioning_logits, **inputs)
        if case["model_prediction_type"] == "mean_loo" and self_conditioning_logits is not None:
            # What the noise says of the token that is seen.
            share = torch.tensor(case["t"])[:, None, None]
            known = (256 * (1 - share) / share + 1).log().expand(*canvases.shape, 1)
            output.logits = output.logits.scatter_add(2, canvases[..., None], known)
        return output

    forward.training = True
    trainer = make_trainer(tmp_path, model, certainty_weight=0.0)
    loss = trainer.compute_loss(forward, batch)
    terms = {name: values[0].item() for name, values in trainer._sums[""].items()}
    assert loss.item() == pytest.approx(case["total_loss"], rel=1e-5)
    assert terms["consistency_loss"] == pytest.approx(case["diffusion_loss"], rel=1e-5)
    assert terms["encoder_loss"] == pytest.approx(case["ar_loss"], rel=1e-5)
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    for name, recorded in case["grad_norms"].items():
        tied = name.replace("encoder.language_model", "decoder")
        gradient = gradients[tied] if tied in gradients else gradients[name]
        assert gradient.norm().item() == pytest.approx(recorded, rel=1e-4), name
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert norm == pytest.approx(case["grad_norm_all"], rel=1e-4)


def test_an_adapter_of_both_halves_is_trained_saved_and_decoded(tmp_path):
    trainer = make_trainer(tmp_path, peft_config=lora(), eval_dataset=Dataset.from_list(make_rows(3)))
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    modules = {re.sub(r".*\.(\w+)\.lora_.*", r"\1", name) for name in trained}
    assert modules == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all(any(half in name for name in trained) for half in ("encoder.language_model", "decoder"))
    before = weights_of(trainer.model)
    first = trainer.evaluate()
    assert {"eval_loss", "eval_consistency_loss", "eval_certainty_loss", "eval_encoder_loss"} <= first.keys()
    assert trainer.evaluate()["eval_loss"] == first["eval_loss"]
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in logs:
        terms = entry["consistency_loss"] + 2 * entry["certainty_loss"] + entry["encoder_loss"]
        assert entry["loss"] == pytest.approx(terms, rel=1e-3)
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert {name for name in trained if "lora_B" in name} <= changed <= trained
    trainer.save_model()
    prompt, told = torch.tensor([[2, 3, 4]]), {"max_new_tokens": 8, "max_denoising_steps": 3}

    def answer(model):
        torch.manual_seed(0)
        return model.eval().generate(input_ids=prompt, **told).sequences

    expected, base = answer(trainer.model), make_diffusion_gemma()
    assert torch.equal(answer(PeftModel.from_pretrained(base, str(tmp_path))), expected)
    loaded = make_diffusion_gemma()
    loaded.load_adapter(str(tmp_path))
    assert torch.equal(answer(loaded), expected)


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    told = {"max_steps": -1, "num_train_epochs": 2, "num_rows": 2, "peft_config": lora()}
    whole = make_trainer(tmp_path, save_strategy="steps", save_steps=1, **told)
    whole.train()
    resumed = make_trainer(tmp_path, **told)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert resumed.state.global_step == whole.state.global_step == 2
    expected = weights_of(whole.model)
    assert all(torch.equal(weight, expected[name]) for name, weight in resumed.model.named_parameters())
