# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training on canvases of random tokens, for a model whose encoder reads the clean tokens before them."""

import copy
import json
import re

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, default_data_collator
from transformers import DiffusionGemmaForBlockDiffusion as PublishedModel

from hf_dparallel import CertaintyForcingTrainer, DataCollatorForSemiAutoregressiveMasking
from hf_dparallel.cli.train_command import main as train
from hf_dparallel_cli import main as command
from hf_dparallel_rules.settings import SettingError

from ..helpers import (
    EOS,
    lora,
    losses_of,
    make_args,
    make_dataset,
    make_diffusion_gemma,
    make_llada,
    make_rows,
    make_tokenizer,
    make_trainer,
    refuses,
    weights_of,
    write_jsonl,
)
from ..processes import run_in_two_processes
from .helpers import naive_terms


def make_collator(**settings):
    defaults = {"block_length": 4, "max_length": 24, "vocab_size": 64, "attention": "causal_past"}
    defaults |= {"block_origin": "answer", "mask_ratio": "random", "complementary_masking": False, "has_encoder": True}
    return DataCollatorForSemiAutoregressiveMasking(None, EOS, **(defaults | settings))


# Rows


def test_a_canvas_has_random_tokens_and_a_label_everywhere():
    batch = make_collator(mask_ratio=1.0)(
        [{"prompt_ids": [2, 3], "completion_ids": [4, 5, 6, 7, EOS]}, {"prompt_ids": [8] * 5, "completion_ids": [9]}]
    )
    noisy, clean = batch["input_ids"].tensor_split([8], dim=1)
    assert clean.tolist() == [[2, 3, 4, 5, 6, 7, EOS], [8] * 5 + [9, EOS]]
    assert batch["encoder_labels"].tolist() == [[-100, 3, 4, 5, 6, 7, EOS], [-100, *[8] * 4, 9, -100]]
    assert batch["labels"].tolist() == [[4, 5, 6, 7, *[EOS] * 4], [*[-100] * 3, 9, *[EOS] * 3, -100]]
    assert batch["block_start"][:, :8].tolist() == [[2] * 4 + [6] * 4, [1] * 3 + [5] * 4 + [9]]
    assert noisy[1, :3].tolist() == [8] * 3
    assert len({*noisy[0].tolist(), *noisy[1, 3:].tolist()}) > 8


def test_the_share_of_noise_is_uniform_and_its_tokens_are_too():
    collator, rows = make_collator(), [{"prompt_ids": [2], "completion_ids": [3] * 20}]
    changed, tokens = [], []
    for epoch in range(400):
        collator.set_epoch(epoch)
        batch = collator(rows)
        noisy = batch["input_ids"][:, : batch["labels"].shape[1]]
        changed += (noisy != 3).view(-1, 4).sum(dim=1).tolist()
        tokens += noisy[noisy != 3].tolist()
    # A token of the vocabulary may replace itself.
    assert sum(changed) / len(changed) == pytest.approx(2 * 63 / 64, abs=0.1)
    # Drawn for each canvas, the share makes all counts likely alike.
    counts = torch.tensor(changed).bincount(minlength=5) / len(changed)
    assert counts.tolist() == pytest.approx([0.2] * 5, abs=0.03)
    assert sorted(set(tokens)) == [*range(3), *range(4, 64)]
    marks = [bool(make_collator(seed=seed)(rows)["self_conditioned"]) for seed in range(200)]
    assert 70 < sum(marks) < 130


def test_noise_depends_on_the_row_and_the_epoch_only():
    rows, collator = make_rows(4), make_collator()

    def canvases(rows):
        batch = collator(rows)
        scored = batch["labels"] != -100
        noisy = batch["input_ids"][:, : scored.shape[1]]
        return [tokens[of_row].tolist() for tokens, of_row in zip(noisy, scored, strict=True)]

    together = canvases(rows)
    assert together == [canvases([row])[0] for row in rows]
    collator.set_epoch(1)
    assert together != canvases(rows)


# The loss


def recorded_batch(case):
    """The batch that the draws of a recorded case make."""
    start = torch.tensor(case["encoder_len"])[:, None]
    canvases, clean = torch.tensor(case["canvas_ids"]), torch.tensor(case["input_ids"])
    seen = torch.tensor(case["attention_mask"]).bool()
    seen[:, 0] = False
    positions = torch.cat([start + torch.arange(canvases.shape[1]), torch.arange(clean.shape[1]).expand_as(clean)], 1)
    return {
        "input_ids": torch.cat([canvases, clean], dim=1),
        "position_ids": positions,
        "block_start": start.expand_as(positions),
        "labels": torch.tensor(case["canvas_target"]),
        "encoder_labels": clean.masked_fill(~seen, -100),
        "self_conditioned": torch.tensor(case["self_conditioning_mask"]),
    }


@pytest.mark.parametrize("activation_checkpointing", [False, True])
@pytest.mark.parametrize("number", [0, 4])
def test_recorded_losses_and_gradients(golden_dir, tmp_path, number, activation_checkpointing):
    """Those whose sequence fits into the window. One was recorded with predictions that leave the token itself out."""
    folder = golden_dir / "diffusion_gemma"
    case = json.loads((folder / "train_loss.jsonl").read_text().splitlines()[number])
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    settings = {"certainty_weight": 0.0, "activation_checkpointing": activation_checkpointing, "max_length": 64}
    trainer = make_trainer(tmp_path, model, block_length=16, **settings)
    if activation_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    batch = recorded_batch(case)
    if case["model_prediction_type"] == "mean_loo":
        # What the noise says of the token that is seen is added to the logits of the canvases.
        share, tokens = torch.tensor(case["t"])[:, None, None], batch["labels"].shape[1]
        known = torch.zeros(*batch["input_ids"].shape, 256)
        seen = batch["input_ids"][:, :tokens, None]
        known[:, :tokens].scatter_(2, seen, (256 * (1 - share) / share + 1).log().expand_as(seen))
        scored = torch.cat([batch["labels"], batch["encoder_labels"]], dim=1) != -100
        token_terms = trainer.args.token_terms
        trainer.args.token_terms = lambda logits, targets: token_terms(logits + known[scored], targets)
    loss = trainer.compute_loss(model.train(), batch)
    assert loss.item() == pytest.approx(case["total_loss"], rel=1e-5)
    metrics = trainer._metrics["train"].drain()
    assert metrics["consistency_loss"] == pytest.approx(case["diffusion_loss"], rel=1e-5)
    assert metrics["encoder_loss"] == pytest.approx(case["ar_loss"], rel=1e-5)
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    tied = {name.replace("encoder.language_model", "decoder"): name for name in case["grad_norms"]}
    for name, recorded in tied.items():
        gradient = gradients[name] if name in gradients else gradients[recorded]
        assert gradient.norm().item() == pytest.approx(case["grad_norms"][recorded], rel=1e-4), name
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    assert norm == pytest.approx(case["grad_norm_all"], rel=1e-4)


def naive_losses(model, batch):
    """The terms of the loss of each row, canvas by canvas: only what precedes a canvas is encoded."""
    num_noisy, rows = batch["labels"].shape[1], []
    for row, labels in enumerate(batch["labels"]):
        ids, clean = batch["input_ids"][row].tensor_split([num_noisy])
        places = batch["position_ids"][row, :num_noisy]
        logits = []
        for start in batch["block_start"][row, :num_noisy][labels != -100].unique().tolist():
            inputs = {"input_ids": clean[None, :start], "attention_mask": torch.ones(1, start, dtype=torch.long)}
            inputs["decoder_input_ids"] = ids[None, (places >= start) & (places < start + model.config.canvas_length)]
            if batch["self_conditioned"][row]:
                with torch.no_grad():
                    inputs["self_conditioning_logits"] = PublishedModel.forward(model, **inputs).logits
            logits.append(PublishedModel.forward(model, **inputs).logits[0])
        consistency, certainty = naive_terms(torch.cat(logits)[None], labels[labels != -100][None], temperature=0.5)
        targets = batch["encoder_labels"][row]
        text = clean[: int((targets != -100).sum()) + 1]
        states = model.model.encoder(text[None], attention_mask=torch.ones(1, len(text))).last_hidden_state
        cap = model.final_logit_softcapping
        of_encoder = (model.lm_head(states[0, :-1]) / cap).tanh() * cap
        rows.append(torch.stack([consistency[0], certainty[0], cross_entropy(of_encoder, text[1:])]))
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [5, 1000])
@pytest.mark.parametrize(
    "peft_config",
    [None, lora(init_lora_weights=False), lora(init_lora_weights=False, modules_to_save=["embed_tokens"])],
    ids=["whole", "lora", "embeddings"],
)
def test_loss_and_gradients_equal_those_of_each_canvas_alone(tmp_path, monkeypatch, peft_config, chunk):
    """In float64, in rows of several lengths, several canvases and prefixes that are longer than the window."""
    monkeypatch.setattr("hf_dparallel.models.scoring._CHUNK_NUMEL", chunk * 64)
    rows = [row | {"prompt_ids": row["prompt_ids"] * 3} for row in make_rows(5)]
    model = make_diffusion_gemma(num_hidden_layers=3).double()
    model.set_experts_implementation("eager")
    weights = {"certainty_weight": 0.7, "consistency_weight": 1.3, "encoder_weight": 0.4}
    trainer = make_trainer(tmp_path, model, peft_config=peft_config, max_length=36, **weights)
    trainer.data_collator.seed = 1
    batch = trainer.data_collator(rows)
    assert 0 < batch["self_conditioned"].sum() < 5 and (batch["labels"] != -100).sum() > 40
    student = trainer.model.train()
    for name, weight in student.named_parameters():
        if "decoder.embed_tokens.modules_to_save" in name:
            # Encoder and decoder have copies of their own.
            weight.data += 0.1 * torch.randn_like(weight)
    loss = trainer.compute_loss(student, batch)
    oracle = copy.deepcopy(student)
    base = oracle.get_base_model() if peft_config else oracle
    expected = naive_losses(base, batch)
    torch.testing.assert_close(loss.double(), (expected @ torch.tensor([1.3, 0.7, 0.4]).double()).mean())
    metrics = trainer._metrics["train"].drain()
    names = ("consistency_loss", "certainty_loss", "encoder_loss")
    assert [metrics[name] for name in names] == pytest.approx(expected.mean(dim=0).tolist(), rel=1e-5)
    gradients = [
        torch.autograd.grad(value, [weight for weight in of.parameters() if weight.requires_grad], allow_unused=True)
        for value, of in ((loss, student), ((expected @ torch.tensor([1.3, 0.7, 0.4]).double()).mean(), oracle))
    ]
    for gradient, of_oracle in zip(*gradients, strict=True):
        assert (gradient is None) == (of_oracle is None)
        if gradient is not None:
            # Routers compute in float32.
            torch.testing.assert_close(gradient, of_oracle, rtol=1e-4, atol=1e-5)


def test_evaluation_sees_the_same_loss_and_the_predictions_of_canvases(tmp_path):
    seen = []
    trainer = make_trainer(
        tmp_path, make_diffusion_gemma(), eval_dataset=make_dataset(5), per_device_eval_batch_size=2
    )
    trainer.compute_metrics = lambda prediction: seen.append(prediction) or {}
    metrics = trainer.evaluate()
    rows = list(make_dataset(5))
    weights = torch.tensor([1.0, 2.0, 1.0]).double()
    with torch.no_grad():
        expected = naive_losses(trainer.model, trainer.data_collator(rows)).double() @ weights
    assert metrics["eval_loss"] == pytest.approx(expected.mean().item(), rel=1e-4)
    predictions, labels = seen[0].predictions, seen[0].label_ids
    assert ((predictions == -100) == (labels == -100)).all()
    assert (labels != -100).sum() == sum(-(-len(row["completion_ids"]) // 4) * 4 for row in rows)


# The trainer


def test_an_adapter_is_for_attention_and_dense_layers_of_both_halves(tmp_path):
    trainer = make_trainer(tmp_path, make_diffusion_gemma(), peft_config=lora())
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    layers = {re.sub(r"(\w+\.)*?(encoder|decoder)(.*)\.lora_[AB].*", r"\2\3", name) for name in trained}
    attention, dense = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
    expected = {
        f"{half}.layers.{layer}.{part}.{name}"
        for half in ("encoder.language_model", "decoder")
        for layer in (0, 1)
        for part, names in (("self_attn", attention), ("mlp", dense))
        for name in names
        # Full attention has its keys for values.
        if (layer, name) != (1, "v_proj")
    }
    assert layers == expected
    before = weights_of(trainer.model)
    trainer.train()
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed <= trained
    # The first step only moves what is zero, and the last layer of the encoder is read by its own loss alone.
    assert {name for name in trained if "lora_B" in name} <= changed


@pytest.mark.parametrize("peft_config", [None, lora()], ids=["whole", "lora"])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, peft_config):
    settings = {"rows": 4, "num_train_epochs": 2, "peft_config": peft_config}
    whole = make_trainer(tmp_path, make_diffusion_gemma(), save_strategy="steps", save_steps=1, **settings)
    whole.train()
    resumed = make_trainer(tmp_path, make_diffusion_gemma(), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.state.global_step == whole.state.global_step == 4
    expected = weights_of(whole.model)
    for name, weight in resumed.model.named_parameters():
        assert torch.equal(weight, expected[name]), name


def make_run(output_dir, num_processes: int):
    return make_trainer(
        output_dir,
        make_diffusion_gemma(),
        rows=8,
        peft_config=lora(),
        per_device_train_batch_size=4 // num_processes,
        save_strategy="steps",
        save_steps=2,
    )


TRAIN = """
import sys
from tests.training.test_uniform_noise import make_run

trainer = make_run(sys.argv[1], num_processes=2)
trainer.train()
trainer.accelerator.end_training()
"""


def test_two_processes_give_the_losses_and_weights_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    whole = make_run(one, num_processes=1)
    whole.train()
    run_in_two_processes(TRAIN, two)
    state = json.loads((two / "checkpoint-2" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert losses == pytest.approx(losses_of(whole), rel=1e-4)
    weights = load_file(one / "checkpoint-2" / "adapter_model.safetensors")
    for name, weight in load_file(two / "checkpoint-2" / "adapter_model.safetensors").items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-5, msg=name)


def test_from_trajectories_to_a_student_on_the_command_line(tmp_path, capsys):
    teacher, data, student = (str(tmp_path / name) for name in ("teacher", "data", "student"))
    model = make_diffusion_gemma()
    model.generation_config.update(max_new_tokens=8)
    model.save_pretrained(teacher)
    make_tokenizer().save_pretrained(teacher)
    prompts = write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": f"{number} 5 7"} for number in range(12)])
    sampling = ["--max_denoising_steps", "6", "--batch_size", "4", "--reward", "none", "--raw"]
    command(["trajectories", "--model", teacher, "--dataset", prompts, "--output_dir", data, *sampling])
    settings = ["--use_peft", "--lora_r", "4", "--max_steps", "3", "--learning_rate", "1e-2", "--max_length", "16"]
    settings += ["--per_device_train_batch_size", "2", "--use_cpu", "--report_to", "none", "--logging_steps", "1"]
    train(["--model", teacher, "--dataset", data, "--output_dir", student, *settings])
    printed = capsys.readouterr()
    assert "encoder_loss" in printed.out and "Student, entropy_bound 0.1" in printed.out
    assert json.loads((tmp_path / "student" / "adapter_config.json").read_text())["r"] == 4
    # Cards show no `enable_diffusion_generation`.
    assert json.loads((tmp_path / "student" / "training_summary.json").read_text())["is_native"] is True
    told = {"max_new_tokens": 8, "max_denoising_steps": 6}
    answers = {}
    for name in (teacher, student):
        loaded, generator = AutoModelForMaskedLM.from_pretrained(name), torch.Generator().manual_seed(0)
        answers[name] = loaded.generate(torch.tensor([[7, 8, 9]]), generator=generator, **told)
    assert not torch.equal(answers[teacher], answers[student])
    command(["generate", "--model", student, "--raw", "--prompt", "5 7"])
    assert capsys.readouterr().out.strip()


# Refusals


@pytest.mark.parametrize(
    ("setting", "others"),
    [
        ("mask_ratio", {"mask_ratio": 0.25}),
        ("masking", {"masking": "random"}),
        ("masking", {"masking": "trajectory"}),
        ("encoder_weight", {"encoder_weight": -1.0}),
    ],
)
def test_settings_that_need_masks_are_refused(tmp_path, setting, others):
    with refuses(setting):
        make_trainer(tmp_path, make_diffusion_gemma(), peft_config=lora(), **others)


def test_rows_of_another_noise_are_refused(tmp_path):
    with refuses("vocab_size"):
        make_collator(vocab_size=None)
    with refuses("encoder_weight", "encoder"):
        make_trainer(tmp_path, make_llada(), encoder_weight=1.0)
    masks = make_collator(attention="full", block_origin=None, has_encoder=False)
    for collator, model in ((masks, make_llada()), (make_collator(has_encoder=False), make_diffusion_gemma())):
        with pytest.raises(SettingError):
            CertaintyForcingTrainer(model, make_args(tmp_path), make_dataset(2), data_collator=collator)


def test_a_collator_without_clean_copies_is_refused(tmp_path):
    of_one_copy = make_collator(attention="full", block_origin=None)
    for collator in (default_data_collator, of_one_copy):
        with refuses("data_collator", "no clean copies, which the encoder of DiffusionGemma.* reads. Leave it out."):
            CertaintyForcingTrainer(
                make_diffusion_gemma(), make_args(tmp_path), make_dataset(2), data_collator=collator
            )
