# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Training for revision: rows of the student's own guesses, soft targets, the penalty on certain wrong tokens."""

import json

import peft
import pytest
import torch
from transformers import AutoModelForMaskedLM

from hf_dparallel import DataCollatorForSemiAutoregressiveMasking

from ..helpers import (
    EOS,
    MASK,
    lora,
    make_dataset,
    make_dream,
    make_llada,
    make_rows,
    make_sdar,
    make_trainer,
    weights_of,
)
from .helpers import all_logits


def make_collator(**settings):
    return DataCollatorForSemiAutoregressiveMasking(MASK, EOS, **({"block_length": 4, "max_length": 24} | settings))


def rows_with_steps(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        row | {"commit_step": torch.randint(5, (len(row["completion_ids"]),), generator=generator).tolist()}
        for row in make_rows(count, seed)
    ]


# Rows


@pytest.mark.parametrize("attention", ["full", "block_causal"])
def test_rows_on_policy_have_the_same_masks_and_all_tokens_of_the_block_scored(attention):
    rows = make_rows(40)
    plain = make_collator(attention=attention)(rows)
    mixed, all_rows = (make_collator(attention=attention, on_policy_ratio=ratio)(rows) for ratio in (0.5, 1.0))
    assert "on_policy" not in plain and all_rows["on_policy"].all()
    assert 20 < mixed["on_policy"].sum() < 60
    # Each view of a row is drawn by itself.
    assert 5 < mixed["on_policy"].view(2, 40).sum(dim=0).eq(1).sum() < 35
    assert all(torch.equal(batch["input_ids"], plain["input_ids"]) for batch in (mixed, all_rows))
    # What either view masks is the block.
    either = plain["labels"].view(2, 40, -1).amax(dim=0).repeat(2, 1)
    assert torch.equal(all_rows["labels"], either)
    assert torch.equal(mixed["labels"], torch.where(mixed["on_policy"][:, None], either, plain["labels"]))


def test_late_tokens_are_decided_by_the_teacher_steps_after_the_first_masked_one():
    rows = rows_with_steps(30)
    batch = make_collator(near_steps=2, mask_ratio="random")(rows)
    found = set()
    for index, row in enumerate(rows * 2):
        start = len(row["prompt_ids"])
        steps = row["commit_step"] + [row["commit_step"][-1]] * 24
        scored = (batch["labels"][index] != -100).nonzero().flatten().tolist()
        first = min((steps[place - start] for place in scored), default=0)
        expected = [place for place in scored if steps[place - start] >= first + 2]
        assert batch["late"][index].nonzero().flatten().tolist() == expected
        found |= {bool(expected), len(expected) < len(scored)}
    assert found == {True, False}


def test_without_near_steps_all_masked_tokens_are_late():
    batch = make_collator(near_steps=0, on_policy_ratio=0.5)(make_rows(10))
    assert torch.equal(batch["late"], (batch["labels"] != -100) & (batch["input_ids"] == MASK))


@pytest.mark.parametrize("length", [0, 3, 100])
def test_rows_see_only_so_many_masks_behind_their_block(length):
    rows = make_rows(20)
    whole, cut = make_collator()(rows), make_collator(suffix_length=length)(rows)
    width = cut["labels"].shape[1]
    for index in range(40):
        places = (whole["labels"].view(2, 20, -1)[:, index % 20] != -100).any(dim=0).nonzero()
        end = min(int(places.max()) + 1 + length, 24)
        assert cut["attention_mask"][index].tolist() == [1] * end + [0] * (width - end)
        for name in ("input_ids", "labels"):
            assert torch.equal(cut[name][index], whole[name][index, :width])
    assert width == 24 if length == 100 else width <= 24
    if length == 100:
        assert torch.equal(cut["attention_mask"], whole["attention_mask"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suffix_length": -1}, "`suffix_length` must be 0 or a positive integer, got -1"),
        ({"near_steps": 1.5}, "`near_steps` must be 0 or a positive integer, got 1.5"),
        ({"on_policy_ratio": 1.5}, "`on_policy_ratio` must be a number from 0 to 1, got 1.5"),
        ({"on_policy_ratio": float("nan")}, "`on_policy_ratio` must be a number from 0 to 1, got nan"),
        ({"suffix_length": 4, "masking": "random"}, "`suffix_length=4` has no meaning with `masking='random'`"),
        ({"suffix_length": 4, "attention": "block_causal"}, "no meaning for a block-causal model, which never"),
    ],
)
def test_what_cannot_be_collated(settings, message):
    with pytest.raises(ValueError, match=message):
        make_collator(**settings)


def test_what_cannot_be_trained(tmp_path):
    for settings, message in [
        ({"near_steps": 2}, "`near_steps=2` learns from the base model.*pass `peft_config`"),
        ({"teacher_temperature": 0.5}, "`teacher_temperature=0.5` has no meaning without `near_steps`"),
        ({"teacher_temperature": 0.0, "near_steps": 0}, "`teacher_temperature` must be positive, got 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_trainer(tmp_path, rows=2, **settings)
    with pytest.raises(ValueError, match="`init_lora_weights='olora'` has changed"):
        student = peft.get_peft_model(make_llada(), lora(target_modules=["q_proj"], init_lora_weights="olora"))
        make_trainer(tmp_path, student, rows=2, near_steps=2)


# The loss


def naive_loss(trainer, batch):
    """The loss of a batch token by token, with the logits of all positions."""
    model, args, labels = trainer.model, trainer.args, batch["labels"]
    masked_ids, width = batch["input_ids"], labels.shape[1]
    ids = masked_ids.clone()
    with torch.no_grad():
        guesses = all_logits(model.eval(), batch, masked_ids).index_fill(2, torch.tensor(MASK), -torch.inf).argmax(-1)
        if "late" in batch:
            with model.disable_adapter():
                teacher = all_logits(model, batch, masked_ids)
    for row, place in (labels != -100).nonzero().tolist():
        if "on_policy" in batch and batch["on_policy"][row] and ids[row, place] == MASK:
            ids[row, place] = guesses[row, place]
    logits = all_logits(model.train(), batch, ids)[:, :width].double()
    total = logits.sum() * 0
    for row in range(len(labels)):
        consistency, certainty = [], []
        for place in (labels[row] != -100).nonzero().flatten().tolist():
            log_p, label = logits[row, place].log_softmax(dim=-1), labels[row, place]
            if "late" in batch and batch["late"][row, place]:
                q = (teacher[row, place].double() / args.teacher_temperature).softmax(dim=-1)
                consistency.append((q * (q.log() - log_p)).sum())
            else:
                consistency.append(-log_p[label])
            if log_p.argmax() == label:
                sharp = (logits[row, place] / args.certainty_temperature).log_softmax(dim=-1)
                certainty.append(-(sharp.exp() * sharp).sum())
        weights = (args.consistency_weight, args.certainty_weight)
        for weight, terms in zip(weights, (consistency, certainty), strict=True):
            total = total + (weight * torch.stack(terms).mean() if terms else 0)
    return total / (len(labels) / trainer.data_collator.num_views)


REVISIONS = {
    "on policy": {"on_policy_ratio": 0.5},
    "soft targets": {"near_steps": 2, "teacher_temperature": 0.5},
    "all": {"on_policy_ratio": 0.5, "near_steps": 1, "masking": "trajectory"},
}


@pytest.mark.parametrize(
    ("make_model", "revision"),
    [(make_llada, "on policy"), (make_dream, "soft targets")]
    + [(make, "all") for make in (make_llada, make_dream, make_sdar)],
)
@pytest.mark.parametrize("chunk", [3, 1000])
def test_loss_and_gradients_equal_the_naive_loss(tmp_path, monkeypatch, make_model, revision, chunk):
    monkeypatch.setattr("hf_dparallel.models.scoring._CHUNK_NUMEL", chunk * 64)
    # The head is adapted, too; the teacher's is not.
    adapter = lora(target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    window = {"suffix_length": 3} if revision == "all" else {}
    window = {"block_origin": "answer"} if make_model is make_sdar else window
    trainer = make_trainer(tmp_path, make_model(), 2, adapter, mask_ratio="random", **REVISIONS[revision], **window)
    batch = trainer.data_collator(rows_with_steps(4))
    trainable = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    expected = naive_loss(trainer, batch)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    assert trainer.model.training and all(weight.requires_grad for weight in trainable)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    expected_gradients = torch.autograd.grad(expected, trainable)
    for gradient, expected_gradient in zip(torch.autograd.grad(loss, trainable), expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)


def test_the_loss_on_guesses_is_as_in_the_published_code(golden_dir, tmp_path):
    """DMax's. One of its cases is left out: it guesses tokens that have no loss, far behind the end of the text."""
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "llada2" / "model", dtype=torch.float32)
    cases = [json.loads(line) for line in (golden_dir / "dmax" / "train_loss.jsonl").read_text().splitlines()]
    for case in (case for case in cases if case["case"] != 9):
        model.config.block_length = case["block_size"]
        settings = {"certainty_weight": 0.0, "complementary_masking": False, "block_length": case["block_size"]}
        trainer = make_trainer(tmp_path, model, 2, **settings)
        noisy, clean, labels = (torch.tensor(case[name]) for name in ("noisy_input_ids", "input_ids", "labels"))
        batch = {
            "input_ids": torch.cat([noisy, clean], dim=1),
            "position_ids": torch.arange(case["seq_len"]).repeat(len(noisy), 2),
            "labels": labels,
            "on_policy": torch.full((len(noisy),), case["flag"]),
        }
        trainer.data_collator.mask_token_id = 249
        model.zero_grad()
        loss = trainer.compute_loss(model, batch)
        assert loss.item() == pytest.approx(case["total_loss"], rel=1e-4), case["case"]
        loss.backward()
        norm = torch.stack([weight.grad.norm() for weight in model.parameters() if weight.grad is not None]).norm()
        assert norm.item() == pytest.approx(case["grad_norm_all"], rel=1e-3), case["case"]


# The trainer


@pytest.mark.parametrize("settings", [{"near_steps": 0}, {"on_policy_ratio": 1.0}])
def test_no_dropout_where_nothing_is_learned(tmp_path, settings):
    trainer, seen = make_trainer(tmp_path, rows=2, peft_config=lora(), num_train_epochs=1, **settings), set()
    body = trainer.model.get_base_model().model
    body.register_forward_hook(lambda module, *args: seen.add((torch.is_grad_enabled(), module.training)))
    trainer.train()
    assert seen == {(True, True), (False, False)}


@pytest.mark.parametrize("make_model", [make_llada, make_sdar])
def test_a_whole_model_in_half_precision_learns_on_its_guesses(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), rows=2, on_policy_ratio=1.0, bf16=True)
    before = weights_of(trainer.model)
    trainer.train()
    assert not any(torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())


def test_evaluation_with_all_settings(tmp_path):
    dataset, seen = make_dataset(5), []
    settings = REVISIONS["all"] | {"suffix_length": 2}
    adapter = lora(init_lora_weights=False)
    trainer = make_trainer(tmp_path, None, 2, adapter, None, dataset, per_device_eval_batch_size=2, **settings)
    trainer.compute_metrics = lambda prediction: seen.append(prediction) or {}
    metrics = trainer.evaluate()
    labels = torch.from_numpy(seen[0].label_ids)
    assert labels.shape == (5, 2, 24) and torch.equal(torch.from_numpy(seen[0].predictions) == -100, labels == -100)
    expected = naive_loss(trainer, trainer._eval_collator(list(dataset)))
    assert metrics["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
