# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Rows of a noisy and a clean copy, from which a block-causal student learns all blocks of an answer at once."""

import copy
import json
import random
from dataclasses import dataclass, fields

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.attention.flex_attention import BlockMask
from transformers import AutoModelForMaskedLM, Ministral3Config, Ministral3ForCausalLM

from hf_dparallel import (
    CertaintyForcingTrainer,
    DiffusionGenerationConfig,
    certainty_forcing_loss,
    filter_trajectories,
    generate_trajectories,
)
from hf_dparallel.attention_masks import make_attention_mask
from hf_dparallel.experimental.autoregressive_loss import AutoregressiveLossConfig, next_token
from hf_dparallel.training.block_collator import BlockCausalCollator, mask_copies, noisy_and_clean
from hf_dparallel.training.losses import row_terms
from hf_dparallel.training.objective import Objective
from hf_dparallel.training.recipe import student_recipe, training_summary
from hf_dparallel.training.student import base_model

from ..helpers import (
    EOS,
    MASK,
    lora,
    make_a2d,
    make_args,
    make_block_a2d,
    make_dataset,
    make_fast_dllm,
    make_llada,
    make_llada2,
    make_llada_moe,
    make_nemotron,
    make_prompts,
    make_rows,
    make_sdar,
    make_sdar_moe,
    make_tokenizer,
    make_trainer,
    refuses,
)
from .helpers import all_logits, naive_terms


def make_collator(**settings):
    return BlockCausalCollator(MASK, EOS, **({"block_length": 4, "max_length": 24} | settings))


def mask_of(model, length, block_length):
    """The mask of one row whose two copies have `length` tokens each."""
    positions = torch.arange(length).repeat(2)
    visible = noisy_and_clean(positions[None] // block_length, length)
    shape = (1, 2 * length, 2 * length)
    return make_attention_mask(model.config, visible, shape, dtype=model.dtype, device=model.device)


def copies(batch, length=24):
    """The noisy copy and the labels, at their places among so many tokens, and the clean copy."""
    num_noisy = batch["num_noisy"]
    noisy, clean = batch["input_ids"].tensor_split([num_noisy], dim=1)
    places = batch["position_ids"][:, :num_noisy]
    whole = torch.full((len(noisy), length), -100)
    return whole.scatter(1, places, noisy), clean, whole.scatter(1, places, batch["labels"][:, :num_noisy])


def as_lists(batch):
    return {name: value if isinstance(value, int) else value.tolist() for name, value in batch.items()}


# Rows


def test_literal_tensors():
    # Ratio 1 leaves nothing to chance: the first view masks all, the second nothing.
    collator = make_collator(max_length=11, mask_ratio=1.0)
    batch = collator([{"prompt_ids": [2, 3], "completion_ids": [4, 5, 6, EOS]}])
    clean = [2, 3, 4, 5, 6, 1, 1, 1]
    assert as_lists(batch) == {
        # The third block is padding only, and the clean copy of the second is of use to nobody.
        "input_ids": [[2, 3] + [MASK] * 6 + clean[:4], clean + clean[:4]],
        "position_ids": [[*range(8), *range(4)]] * 2,
        "labels": [[-100, -100, 4, 5, 6, 1, 1, 1] + [-100] * 4, [-100] * 12],
        "attention_block": [[0] * 4 + [4] * 4 + [0] * 4],
        "num_noisy": 8,
    }


def test_literal_tensors_with_blocks_of_the_answer():
    collator = make_collator(max_length=11, mask_ratio=1.0, complementary_masking=False, block_origin="answer")
    batch = collator(
        [
            {"prompt_ids": [2, 3], "completion_ids": [4, 5, 6, 7, EOS]},
            {"prompt_ids": [8] * 5, "completion_ids": [9, EOS]},
        ]
    )
    assert as_lists(batch) == {
        # From the first block of the first answer to its second one; the second row needs less.
        "input_ids": [[MASK] * 8 + [2, 3, 4, 5, 6, 7], [8] * 3 + [MASK] * 5 + [8] * 5 + [9]],
        "position_ids": [[*range(2, 10), *range(6)]] * 2,
        "attention_block": [[2] * 4 + [6] * 4 + [0] * 2 + [2] * 4, [1] * 3 + [5] * 4 + [9] + [0] + [1] * 4 + [5]],
        "labels": [[4, 5, 6, 7, 1, 1, 1, 1] + [-100] * 6, [-100] * 3 + [9, 1, 1, 1] + [-100] * 7],
        "num_noisy": 8,
    }


def test_blocks_that_teach_nothing_are_left_out():
    rows = [{"prompt_ids": [2] * 9, "completion_ids": [3] * 3}, {"prompt_ids": [2] * 14, "completion_ids": [3] * 3}]
    batch = make_collator(mask_ratio=1.0)(rows)
    assert batch["position_ids"][0].tolist() == [*range(8, 20), *range(16)]
    assert batch["num_noisy"] == 12
    # A draw that masks nothing in any row.
    batch = make_collator(mask_ratio=1e-9, complementary_masking=False)(rows)
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3]
    assert (batch["labels"] == -100).all()


@pytest.mark.parametrize("masking", ["semi_autoregressive", "random", "trajectory"])
@pytest.mark.parametrize("origin", ["sequence", "answer"])
def test_every_token_of_the_answer_is_scored_in_one_view(masking, origin):
    collator = make_collator(masking=masking, max_length=22, mask_ratio="random", block_origin=origin)
    width = 24 if origin == "sequence" else 25
    rows = [row | {"commit_step": list(range(len(row["completion_ids"])))} for row in make_rows(20)]
    noisy, clean, labels = copies(collator(rows), width)
    for index, row in enumerate(rows):
        start = len(row["prompt_ids"])
        sequence = row["prompt_ids"] + row["completion_ids"]
        counted_from = 0 if origin == "sequence" else start
        length = len(sequence) - counted_from
        end = width if masking == "random" else counted_from + -(-length // 4) * 4
        views = [index, index + len(rows)]
        sequence = torch.tensor(sequence + [EOS] * (width - len(sequence)))
        assert torch.equal(clean[views], sequence[: clean.shape[1]].expand(2, -1))
        is_scored = labels[views] != -100
        assert is_scored.sum(dim=0).tolist() == [0] * start + [1] * (end - start) + [0] * (width - end)
        assert torch.equal(noisy[views][:, start:end], torch.where(is_scored, MASK, sequence)[:, start:end])


def test_each_block_has_its_own_ratio():
    collator = make_collator(mask_ratio="random", block_length=100, max_length=2000, complementary_masking=False)
    labels = collator([{"prompt_ids": [2] * 50, "completion_ids": [3] * 1950}])["labels"][0, :2000]
    counts = (labels != -100).view(20, 100).sum(dim=1)[1:]
    assert counts.min() < 25 and counts.max() > 75


def test_masks_in_the_order_of_the_teacher():
    row = {"prompt_ids": [2, 3], "completion_ids": [4, 5, 6, 7, 8, EOS], "commit_step": [1, 0, 5, 3, 4, 2]}
    batch = make_collator(masking="trajectory", mask_ratio=0.5, max_length=8)([row])
    # One token of the first block, which has two of the answer, and the tokens of steps 5 and 4 of the second.
    assert batch["labels"][0, :8].tolist() == [-100, -100, 4, -100, 6, -100, 8, -100]


# The mask


@pytest.mark.parametrize("block_length", [1, 4, 16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_noisy_block_is_predicted_as_in_decoding(block_length, attention):
    """The logits of each noisy block are the model's on the clean blocks before it and this block."""
    model = make_sdar(block_size=block_length, attn_implementation=attention)
    rng = random.Random(0)
    length = 16
    clean = torch.tensor([[rng.randrange(2, MASK) for _ in range(length)] for _ in range(3)])
    noisy = clean.masked_fill(torch.tensor([[rng.random() < 0.5 for _ in row] for row in clean]), MASK)
    with torch.no_grad():
        rows = torch.cat([noisy, clean], dim=1)
        positions = torch.arange(length).repeat(3, 2)
        mask = mask_of(model, length, block_length)
        logits = model(input_ids=rows, position_ids=positions, attention_mask=mask).logits
        for start in range(0, length, block_length):
            end = start + block_length
            alone = model(input_ids=torch.cat([clean[:, :start], noisy[:, start:end]], dim=1)).logits
            torch.testing.assert_close(logits[:, start:end], alone[:, start:], rtol=1e-4, atol=1e-4)


def read_cases(folder):
    return [json.loads(line) for line in (folder / "train_loss.jsonl").read_text().splitlines()]


def samples_of(case):
    """The samples of packed rows: row, places among its tokens, and places in the input of the model."""
    for row, lengths in enumerate(case["sample_lengths"]):
        start = 0
        for length in lengths:
            yield row, slice(start, start + length), slice(2 * start, 2 * (start + length))
            start += length


def test_masks_and_losses_of_the_published_code_of_sdar(golden_dir):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "sdar" / "model", dtype=torch.float32)
    masks = load_file(golden_dir / "sdar" / "train_masks.safetensors")
    for case in read_cases(golden_dir / "sdar"):
        recorded = masks[f"mask_{case['case']}"].bool()
        seen = torch.zeros_like(recorded)
        cross_entropy = []
        for row, tokens, places in samples_of(case):
            mask = mask_of(model, tokens.stop - tokens.start, case["block_size"])
            seen[row, places, places] = mask[0, 0]
            input_ids = torch.tensor(case["model_input_ids"])[row : row + 1, places]
            positions = torch.tensor(case["model_position_ids"])[row : row + 1, places]
            scored = torch.tensor(case["masked"])[row : row + 1, tokens].bool()
            where = torch.cat([scored, torch.zeros_like(scored)], dim=1)
            targets = torch.tensor(case["labels"])[row : row + 1, tokens][scored]
            inputs = {"input_ids": input_ids, "position_ids": positions, "attention_mask": mask}
            logits = model(**inputs, logits_to_keep=where).logits
            cross_entropy.append(Objective().token_terms(logits, targets).losses[:, 0])
        assert torch.equal(seen, recorded)
        # Each token is weighted with one over the probability of its mask, and the sum divided by all of the answer.
        weighted = torch.cat(cross_entropy) / torch.tensor(case["p_mask"])
        loss = weighted.sum() / case["answer_len"]
        assert loss.item() == pytest.approx(case["loss"], rel=1e-4), case["case"]
        model.zero_grad()
        loss.backward()
        weights = dict(model.named_parameters())
        norms = {name: weights[name].grad.norm().item() for name in case["grad_norms"]}
        assert norms == pytest.approx(case["grad_norms"], rel=1e-3), case["case"]


def test_masks_and_losses_of_the_published_code_of_llada2(golden_dir):
    """The loss of dFactory is ours without certainty; its variant with certainty is ours at temperature 1."""
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / "llada2" / "model", dtype=torch.float32)
    masks = load_file(golden_dir / "llada2" / "train_masks.safetensors")
    for case in read_cases(golden_dir / "llada2"):
        length, block_length = case["seq_len"], case["block_size"]
        mask = mask_of(model, length, block_length)
        assert torch.equal(mask[0, 0], masks[f"mask_L{length}_b{block_length}"].bool())
        noisy, clean, labels = (torch.tensor(case[name]) for name in ("noisy_input_ids", "input_ids", "labels"))
        inputs = {
            "input_ids": torch.cat([noisy, clean], dim=1),
            "position_ids": torch.arange(length).repeat(len(clean), 2),
            "attention_mask": mask,
        }
        labels = torch.cat([labels, torch.full_like(labels, -100)], dim=1)
        # Its code can also score each token by the logits of the position before.
        shift = 0 if case["same_token_labels"] else 1
        logits = model(**inputs).logits.roll(shift, dims=1)
        terms = row_terms(Objective(1.0), logits, labels)
        assert terms.num_masked.tolist() == case["num_labels"]
        loss = certainty_forcing_loss(logits, labels, temperature=1.0, certainty_weight=case["confidence_beta"])
        assert loss.item() == pytest.approx(case["total_loss"], rel=1e-4), case["case"]
        if "confidence_loss" in case and case["confidence_beta"] > 0:
            assert terms.losses[:, 1].mean().item() == pytest.approx(case["confidence_loss"], rel=1e-4), case["case"]


# The trainer


def counted_from(origin, model):
    """The model, with a recipe that says where its blocks are counted from."""
    model.generation_config.block_origin = origin
    return model


def naive_loss(model, batch):
    """The loss by way of the logits of all positions."""
    return 2 * certainty_forcing_loss(all_logits(model, batch), batch["labels"])


@pytest.mark.usefixtures("eager_flex_attention")
@pytest.mark.parametrize(
    ("make_model", "origin", "settings"),
    [
        (make_sdar, "sequence", {}),
        (make_sdar, "sequence", {"complementary_masking": False}),
        (make_sdar, "answer", {}),
        (make_nemotron, "answer", {}),
    ],
)
def test_flex_attention_with_a_block_mask_gives_the_same_loss(tmp_path, make_model, origin, settings):
    settings = settings | {"activation_checkpointing": False}
    models = make_model(attn_implementation="flex_attention"), make_model()
    flex, dense = (make_trainer(tmp_path, counted_from(origin, model), **settings) for model in models)
    for rows in (1, 2, 4):
        batch = flex.data_collator(make_rows(rows))
        length = batch["input_ids"].shape[1]
        num_masks = len(batch["input_ids"]) if origin == "answer" else 1
        mask = mask_copies(flex.model.config, batch, torch.float32)["attention_mask"]
        assert isinstance(mask, BlockMask) and mask.shape == (num_masks, 1, length, length)
        with torch.no_grad():
            expected = dense.compute_loss(dense.model, batch)
            torch.testing.assert_close(flex.compute_loss(flex.model, batch), expected)


def logits_of_blocks(model, rows, batch, length, origin):
    """The logits of each noisy block behind the clean blocks before it, and the labels, at their places."""
    noisy, clean, labels = copies(batch, length)
    logits = torch.zeros(*labels.shape, 64, dtype=model.dtype)
    for row, tokens in enumerate(noisy):
        first = len(rows[row % len(rows)]["prompt_ids"]) if origin == "answer" else 0
        for start in range(first, clean.shape[1] + 1, 4):
            ids = torch.cat([clean[row, :start], tokens[start : start + 4].clamp(min=0)])
            place = torch.arange(len(ids))
            if model.attention == "causal_past":
                visible = (place[None] <= place[:, None]) | (place[:, None] >= start)
            else:
                visible = (place[None] - first) // 4 <= (place[:, None] - first) // 4
            of_row = model(ids[None], attention_mask=visible[None, None]).logits[0]
            logits[row, start : start + 4] = of_row[start:]
            if model.attention == "causal_past" and start:
                logits[row, start] = of_row[start - 1]
    return logits, labels


@pytest.mark.parametrize("peft_config", [None, lora(init_lora_weights=False)], ids=["whole", "lora"])
@pytest.mark.parametrize(
    ("make_model", "origin"),
    [
        (make_a2d, None),
        *((make, origin) for make in (make_block_a2d, make_fast_dllm) for origin in ("sequence", "answer")),
        (make_nemotron, "answer"),
    ],
)
def test_loss_and_gradients_equal_those_of_each_block_in_float64(tmp_path, make_model, origin, peft_config):
    """Also of its first token, where the token before a block predicts it."""
    trainer = make_trainer(tmp_path, counted_from(origin, make_model()), peft_config=peft_config)
    rows, model = make_rows(4), trainer.model.eval()
    oracle = copy.deepcopy(model).double()
    batch = trainer.data_collator(rows)
    if origin is None:
        logits, labels = oracle(batch["input_ids"]).logits, batch["labels"]
    else:
        logits, labels = logits_of_blocks(oracle, rows, batch, trainer.data_collator.padded_length, origin)
    consistency, certainty = naive_terms(logits, labels, temperature=0.5)
    expected, loss = 2 * (consistency + 2 * certainty).mean(), trainer.compute_loss(model, batch)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    gradients = [
        torch.autograd.grad(of, [weight for weight in weights.parameters() if weight.requires_grad])
        for of, weights in ((loss, model), (expected, oracle))
    ]
    for gradient, of_oracle in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient.double(), of_oracle, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("complementary", [True, False])
def test_the_autoregressive_loss_is_that_of_the_causal_model(tmp_path, complementary):
    """Once a row, whatever its views, and in the log; the other terms are as without it."""
    weights = {"complementary_masking": complementary, "max_length": 40}
    plain = make_trainer(tmp_path, make_nemotron().double(), **weights)
    trainer = make_trainer(tmp_path, make_nemotron().double(), rows=8, autoregressive_weight=0.7, **weights)
    rows = [*make_rows(4), {"prompt_ids": [2, 3], "completion_ids": [EOS]}]
    causal = Ministral3ForCausalLM(Ministral3Config(**make_nemotron().config.to_dict())).double().eval()
    causal.load_state_dict(trainer.model.state_dict())
    cross_entropies = []
    for prompt, completion in (row.values() for row in rows):
        logits = causal(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        cross_entropies.append(torch.nn.functional.cross_entropy(logits, torch.tensor(completion)))
    expected = torch.stack(cross_entropies).mean()
    with_it, without = (each.compute_loss(each.model.eval(), each.data_collator(rows)) for each in (trainer, plain))
    torch.testing.assert_close((with_it - without).double(), 0.7 * expected, rtol=1e-5, atol=1e-5)
    gradients = (
        dict(zip(named, torch.autograd.grad(loss, named.values()), strict=True))
        for loss, named in (
            (with_it, dict(trainer.model.named_parameters())),
            (without, dict(plain.model.named_parameters())),
            (0.7 * expected, dict(causal.named_parameters())),
        )
    )
    for gradient, of_others, of_causal in zip(*(each.values() for each in gradients), strict=True):
        torch.testing.assert_close(gradient - of_others, of_causal, rtol=1e-3, atol=1e-6)
    trainer.train()
    assert all(entry["autoregressive_loss"] > 0 for entry in trainer.state.log_history if "loss" in entry)
    metrics = trainer.evaluate(make_dataset(3, 1))
    terms = {"consistency": 1, "certainty": 2, "autoregressive": 0.7}
    assert metrics["eval_loss"] == sum(weight * metrics[f"eval_{term}_loss"] for term, weight in terms.items())


@pytest.mark.parametrize("make_model", [make_llada, make_sdar])
def test_an_autoregressive_loss_needs_a_causal_clean_copy(tmp_path, make_model):
    with refuses("autoregressive_weight", "causal clean copy"):
        make_trainer(tmp_path, make_model(), autoregressive_weight=1.0)
    with refuses("autoregressive_weight", "at least 0"):
        make_args(tmp_path, autoregressive_weight=-1.0)


def test_an_autoregressive_loss_refuses_rows_of_the_caller(tmp_path):
    model, args = make_nemotron(), make_args(tmp_path, autoregressive_weight=1.0)
    with refuses("autoregressive_weight", "causal clean copy"):
        CertaintyForcingTrainer(model, args, make_dataset(2), data_collator=lambda rows: {})


def test_a_term_of_ones_own_goes_with_the_autoregressive_loss(tmp_path):
    @dataclass(kw_only=True)
    class Config(AutoregressiveLossConfig):
        likelihood_weight: float = 0.5

        @property
        def added_terms(self):
            return super().added_terms | {"likelihood": next_token}

    settings = vars(make_args(tmp_path)) | {"autoregressive_weight": 0.7}
    args = Config(**{each.name: settings[each.name] for each in fields(AutoregressiveLossConfig) if each.init})
    trainer = CertaintyForcingTrainer(make_nemotron(), args, make_dataset(4))
    trainer.train()
    terms = trainer.state.log_history[0]
    assert terms["likelihood_loss"] == terms["consistency_loss"] != terms["autoregressive_loss"]
    assert (
        training_summary(trainer)["settings"].items()
        >= {"autoregressive_weight": 0.7, "likelihood_weight": 0.5}.items()
    )


@pytest.mark.parametrize("make_model", [make_llada2, make_sdar_moe, make_llada_moe])
def test_loss_of_a_mixture_of_experts(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), peft_config=lora())
    trained = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trained and not any(".experts." in name or ".gate." in name for name in trained)
    batch = trainer.data_collator(make_rows(2))
    trainer.model.eval()
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), naive_loss(trainer.model, batch))


@pytest.mark.parametrize("origin", ["sequence", "answer"])
def test_the_loss_of_an_evaluation_does_not_depend_on_its_batches(tmp_path, origin):
    dataset, model = make_dataset(5), counted_from(origin, make_sdar())
    trainer = make_trainer(tmp_path, model, eval_dataset=dataset, per_device_eval_batch_size=2)
    # All rows in one batch need other columns, which changes nothing.
    whole = trainer.data_collator(list(dataset))
    with torch.no_grad():
        expected = naive_loss(trainer.model, whole).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_blocks_are_as_long_as_in_the_model(tmp_path, caplog):
    trainer = make_trainer(tmp_path, make_sdar(), block_length=8)
    assert trainer.data_collator.block_length == trainer.args.block_length == 4
    assert "`block_length=8` is replaced by 4, the block length of the model" in caplog.text
    caplog.clear()
    make_trainer(tmp_path, make_sdar(), block_length=32)
    assert "is replaced" not in caplog.text
    foreign = make_sdar()
    foreign.is_native = False
    with refuses("data_collator", match="which SDARForMaskedDiffusion is not"):
        make_trainer(tmp_path, foreign)


def test_the_student_decodes_with_the_blocks_of_its_training(tmp_path):
    """The model's recipe says where they are counted from, and so does the recipe of the student."""
    for of_model, expected in [(None, "sequence"), ("sequence", "sequence"), ("answer", "answer")]:
        trainer = make_trainer(tmp_path, counted_from(of_model, make_block_a2d()))
        first = trainer.data_collator([{"prompt_ids": [2], "completion_ids": [3, EOS]}])["position_ids"][0, 0]
        assert (first == 1) == (expected == "answer")
        assert student_recipe(trainer).block_origin == of_model


@pytest.mark.parametrize("masking", ["semi_autoregressive", "trajectory"])
def test_from_trajectories_to_a_student_that_decodes(tmp_path, masking):
    teacher, tokenizer, prompts = make_sdar(), make_tokenizer(), make_prompts(5)
    recipe = DiffusionGenerationConfig(max_new_tokens=10, entropy_threshold=1.0)
    rows = generate_trajectories(teacher, tokenizer, prompts, recipe, batch_size=2)
    rows = filter_trajectories(rows, tokenizer, lambda answer, **_: [float(text != "0") for text in answer])
    assert len(rows) == 4 and any(row["commit_step"] != sorted(row["commit_step"]) for row in rows)

    adapter = lora() if masking == "trajectory" else None
    trainer = make_trainer(tmp_path, make_sdar(), train_dataset=rows, peft_config=adapter, masking=masking)
    trainer.train()
    assert trainer.state.global_step > 0
    inputs = tokenizer(prompts["prompt"][:2], padding=True, padding_side="left", return_tensors="pt")
    student, base = base_model(trainer.model).eval(), make_sdar()
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")} | {"generation_config": recipe}
    assert not torch.equal(student.generate(**inputs), base.generate(**inputs))
