# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.

import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from teacher.tokenizer import build_tokenizer
from transformers import (
    AutoModelForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    TrainingArguments,
)
from transformers.modeling_outputs import MaskedLMOutput

from hf_dparallel import (
    CertaintyForcingConfig,
    CertaintyForcingTrainer,
    DataCollatorForSemiAutoregressiveMasking,
    DiffusionGenerationConfig,
    certainty_forcing_loss,
)
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.training.objective import TokenTerms
from hf_dparallel.training.recipe import student_recipe, training_summary
from hf_dparallel.training.student import base_model, training_token_id

from ..helpers import (
    EOS,
    MASK,
    lora,
    losses_of,
    make_args,
    make_dataset,
    make_dream,
    make_llada,
    make_llada2,
    make_rnd1,
    make_rows,
    make_sdar,
    make_tokenizer,
    make_trainer,
    refuses,
    weights_of,
)


def make_modernbert():
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        pad_token_id=EOS, eos_token_id=EOS, bos_token_id=EOS, cls_token_id=EOS, sep_token_id=EOS, mask_token_id=MASK,
        max_position_embeddings=64,
    )  # fmt: skip
    return ModernBertForMaskedLM(config)


# What is trained


@pytest.mark.parametrize("make_model", [make_llada, make_sdar])
def test_every_adapter_weight_moves_and_no_other(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), rows=4, peft_config=lora())
    before = weights_of(trainer.model)
    trainer.train()
    adapters = [name for name in before if "lora_" in name]
    # Seven linear layers in each of two blocks, two matrices each.
    assert len(adapters) == 2 * 7 * 2
    for name, weight in trainer.model.named_parameters():
        assert weight.requires_grad == (name in adapters)
        assert torch.equal(weight, before[name]) == (name not in adapters), name


@pytest.mark.parametrize("make_model", [make_llada, make_sdar])
def test_training_the_whole_model_lowers_the_loss(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), 2, num_train_epochs=10, logging_steps=5)
    before = weights_of(trainer.model)
    trainer.train()
    assert not any(torch.equal(weight, before[name]) for name, weight in trainer.model.named_parameters())
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logs[-1]["loss"] < 0.5 * logs[0]["loss"]
    assert logs[-1]["masked_accuracy"] > logs[0]["masked_accuracy"]


def naive_loss(model, batch, views=2, **settings):
    """The loss by way of the logits of all positions; the objective of a sequence is the sum over its views."""
    return views * certainty_forcing_loss(model(input_ids=batch["input_ids"]).logits, batch["labels"], **settings)


@pytest.mark.parametrize("masking", ["semi_autoregressive", "random"])
@pytest.mark.parametrize("complementary_masking", [True, False])
def test_the_loss_is_taken_over_the_collated_batch(tmp_path, masking, complementary_masking):
    settings = {"masking": masking, "complementary_masking": complementary_masking, "certainty_temperature": 0.8}
    weights, views = {"certainty_weight": 0.3, "consistency_weight": 1.7}, 2 if complementary_masking else 1
    trainer = make_trainer(tmp_path, **settings, **weights)
    batch = trainer.data_collator(make_rows(3))
    assert len(batch["labels"]) == 3 * views
    expected = naive_loss(trainer.model, batch, views, temperature=0.8, **weights)
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), expected)


def test_model_without_logits_to_keep(tmp_path):
    trainer = make_trainer(tmp_path, make_modernbert(), peft_config=lora())
    before = weights_of(trainer.model)
    trainer.train()
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    batch = trainer.data_collator(make_rows(3))
    trainer.model.eval()
    loss = trainer.compute_loss(trainer.model, batch)
    logits = trainer.model(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(loss, 2 * certainty_forcing_loss(logits, batch["labels"]))


def test_model_whose_logits_are_shifted_outside(tmp_path):
    from hf_dparallel import enable_diffusion_generation

    model = enable_diffusion_generation(make_modernbert(), mask_token_id=MASK, shift_logits=True)
    trainer = make_trainer(tmp_path, model)
    batch = trainer.data_collator(make_rows(3))
    model.eval()
    logits = model(input_ids=batch["input_ids"]).logits
    expected = 2 * certainty_forcing_loss(torch.cat([logits[:, :1], logits[:, :-1]], dim=1), batch["labels"])
    torch.testing.assert_close(trainer.compute_loss(model, batch), expected)


@pytest.mark.parametrize("make_model", [make_llada, make_dream, make_rnd1, make_modernbert])
@pytest.mark.parametrize(("chunk", "masking"), [(5, "semi_autoregressive"), (1, "random")])
def test_loss_and_gradients_in_chunks_equal_the_naive_loss(tmp_path, monkeypatch, make_model, chunk, masking):
    monkeypatch.setattr("hf_dparallel.models.scoring._CHUNK_NUMEL", chunk * 64)
    head = "decoder" if make_model is make_modernbert else "lm_head"
    adapter = lora(target_modules=[head, "Wqkv" if head == "decoder" else "q_proj"], init_lora_weights=False)
    trainer = make_trainer(tmp_path, make_model(), peft_config=adapter, masking=masking)
    batch = trainer.data_collator(make_rows(4))
    trainable = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert any(head in name for name in trainable)
    trainer.model.train()

    expected = naive_loss(trainer.model, batch)
    expected_gradients = torch.autograd.grad(expected, list(trainable.values()))
    loss = trainer.compute_loss(trainer.model, batch)
    gradients = torch.autograd.grad(loss, list(trainable.values()))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for name, gradient, expected_gradient in zip(trainable, gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-5, msg=name)


def test_no_more_logits_than_a_chunk_are_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_dparallel.models.scoring._CHUNK_NUMEL", 5 * 127)
    model = make_llada(vocab_size=127)
    trainer = make_trainer(tmp_path, model, peft_config=lora(), masking="random", activation_checkpointing=False)
    batch = trainer.data_collator(make_rows(2))
    sizes, saved = [], []
    base_model(trainer.model).lm_head.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    trainer.model.train()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        loss = trainer.compute_loss(trainer.model, batch)
    num_scored = int((batch["labels"] != -100).sum())
    chunks = [5] * (num_scored // 5) + [num_scored % 5] * (num_scored % 5 > 0)
    assert len(chunks) > 4 and sizes == chunks
    weight = {(127, 32), (32, 127)}
    assert {shape for shape in saved if 127 in shape} - weight == {(chunks[-1], 127)}
    loss.backward()
    # The last chunk is not computed again.
    assert sizes == chunks + chunks[-2::-1]


class Replicas(torch.nn.DataParallel):
    """As on two GPUs: tensors cut along their rows, other arguments as they are, outputs put together."""

    def forward(self, **inputs):
        halves = [
            {
                name: value.chunk(2)[half] if isinstance(value, torch.Tensor) else value
                for name, value in inputs.items()
            }
            for half in range(2)
        ]
        outputs = [self.module(**half) for half in halves]
        if torch.is_tensor(outputs[0].logits):
            return MaskedLMOutput(logits=torch.cat([output.logits for output in outputs]))
        fields = zip(*(output.logits for output in outputs), strict=True)
        return MaskedLMOutput(logits=TokenTerms(*map(torch.cat, fields)))


@pytest.mark.parametrize("make_model", [make_llada, make_sdar, make_modernbert])
def test_loss_of_a_model_on_several_gpus_of_one_process(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model())
    batch = trainer.data_collator(make_rows(4))
    trainer.model.eval()
    expected = trainer.compute_loss(trainer.model, batch)
    torch.testing.assert_close(trainer.compute_loss(Replicas(trainer.model).eval(), batch), expected)


@pytest.mark.parametrize("make_model", [make_llada, make_modernbert])
def test_a_batch_in_which_nothing_is_scored(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), peft_config=lora())
    batch = trainer.data_collator(make_rows(2))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert loss.item() == 0
    assert all((weight.grad == 0).all() for weight in trainer.model.parameters() if weight.grad is not None)


# Accumulation


@pytest.mark.parametrize(("make_model", "peft_config"), [(make_sdar, lora())])
# Wrapped as a compiled model is, and really compiled, which takes ten seconds.
@pytest.mark.parametrize("stance", ["force_eager", pytest.param("default", marks=pytest.mark.slow)])
def test_a_compiled_model_has_the_same_losses(tmp_path, make_model, peft_config, stance):
    losses = []
    for settings in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        trainer = make_trainer(tmp_path, make_model(), 4, peft_config, **settings)
        with torch.compiler.set_stance(stance):
            trainer.train()
        losses.append(losses_of(trainer))
    assert losses[1] == pytest.approx(losses[0], abs=1e-4) and len(losses[0]) == 2


# With six rows the second step has two; five rows as 3 + 2 are the mean over five, not the mean of two means.
@pytest.mark.parametrize(("rows", "batch", "parts"), [(6, 4, (1, 4)), (5, 5, (3, 2))])
def test_accumulated_batches_are_one_batch(tmp_path, rows, batch, parts):
    runs = []
    for micro_batch, accumulated in ((batch, 1), parts):
        accumulation = {"per_device_train_batch_size": micro_batch, "gradient_accumulation_steps": accumulated}
        settings = {"peft_config": lora(), "optim": "sgd", "max_grad_norm": 0.0, **accumulation}
        trainer = make_trainer(tmp_path, rows=rows, **settings)
        trainer.train()
        assert trainer.state.global_step == -(-rows // batch)
        runs.append((losses_of(trainer), weights_of(trainer.model)))
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-6)


# Metrics


NAMES = ("consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy")


def test_metrics_are_logged_and_add_up_to_the_loss(tmp_path):
    trainer = make_trainer(tmp_path, rows=8, logging_steps=2, certainty_weight=1.5)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 2
    for entry in logs:
        assert all(name in entry for name in NAMES)
        assert entry["consistency_loss"] + 1.5 * entry["certainty_loss"] == pytest.approx(entry["loss"], rel=1e-5)
        assert 0 <= entry["masked_accuracy"] <= 1
        assert 0 < entry["masked_entropy"] < 4.2
    assert logs[0]["consistency_loss"] != logs[1]["consistency_loss"]


def test_logged_metrics_are_measured_on_the_batch(tmp_path):
    trainer = make_trainer(tmp_path, rows=3, per_device_train_batch_size=3, learning_rate=0.0)
    trainer.train()
    batch = trainer.data_collator(make_rows(3))
    with torch.no_grad():
        logits = trainer.model(input_ids=batch["input_ids"]).logits.double()
    scored = batch["labels"] != -100
    probs = torch.softmax(logits[scored], dim=-1)
    logged = trainer.state.log_history[0]
    assert logged["masked_entropy"] == pytest.approx(-(probs * probs.log()).sum(-1).mean().item(), rel=1e-4)
    correct = probs.argmax(-1) == batch["labels"][scored]
    assert logged["masked_accuracy"] == pytest.approx(correct.double().mean().item())
    both = certainty_forcing_loss(logits, batch["labels"], certainty_weight=0.0) * 2
    assert logged["consistency_loss"] == pytest.approx(both.item(), rel=1e-4)


def test_evaluation_averages_over_sequences(tmp_path):
    """Five rows in batches of two: the last batch counts half as much as the others."""
    settings = {"per_device_eval_batch_size": 2, "consistency_weight": 3.0}
    trainer = make_trainer(tmp_path, eval_dataset=make_dataset(5, seed=1), **settings)
    metrics = trainer.evaluate()
    batch = trainer.data_collator(make_rows(5, seed=1))
    with torch.no_grad():
        logits = trainer.model(input_ids=batch["input_ids"]).logits
    expected = 2 * certainty_forcing_loss(logits, batch["labels"], consistency_weight=3.0).item()
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)
    scored = batch["labels"] != -100
    accuracy = (logits.argmax(-1) == batch["labels"])[scored].float().mean().item()
    assert metrics["eval_masked_accuracy"] == pytest.approx(accuracy)
    assert all(f"eval_{name}" in metrics for name in NAMES)
    assert trainer.state.log_history[-1]["eval_consistency_loss"] == metrics["eval_consistency_loss"]


def test_evaluation_has_fixed_masks_and_does_not_disturb_training(tmp_path):
    settings = {"rows": 4, "num_train_epochs": 2, "learning_rate": 0.0}
    evaluated = make_trainer(tmp_path, eval_dataset=make_dataset(3, seed=1), eval_strategy="epoch", **settings)
    evaluated.train()
    losses = [entry["eval_loss"] for entry in evaluated.state.log_history if "eval_loss" in entry]
    assert len(losses) == 2 and losses[0] == losses[1]

    plain = make_trainer(tmp_path, **settings)
    plain.train()
    logs = [losses_of(plain), losses_of(evaluated)]
    assert logs[0] == logs[1]
    # The model does not change, so that only other masks can make the second epoch another.
    assert sum(logs[0][:2]) != pytest.approx(sum(logs[0][2:]), rel=1e-6)


class FixedCollator(DataCollatorForSemiAutoregressiveMasking):
    """A collator of a user, with arguments of its own and an attribute that is set later."""

    def __init__(self, ids: tuple[int, int]):
        super().__init__(*ids, block_length=4)


def test_evaluation_uses_the_collator_of_a_user(tmp_path):
    collator = FixedCollator((MASK, EOS))
    collator.name = "mine"
    collator.set_epoch(3)
    data = make_dataset(3, seed=1)
    trainer = CertaintyForcingTrainer(make_llada(), make_args(tmp_path), data, data, data_collator=collator)
    used = trainer.get_eval_dataloader().collate_fn
    assert (type(used), used.name, int(used._epoch), int(collator._epoch)) == (FixedCollator, "mine", 0, 3)


def test_a_collator_around_ours_that_hides_how_it_is_scored_is_refused(tmp_path):
    """Its rows of two copies would be scored as plain ones."""
    ours = make_trainer(tmp_path, make_sdar()).data_collator
    trainer = CertaintyForcingTrainer(
        make_sdar(), make_args(tmp_path), make_dataset(4), data_collator=lambda rows: ours(rows)
    )
    with refuses("data_collator", "makes `attention_block`"):
        trainer.train()
    plain = make_trainer(tmp_path).data_collator
    CertaintyForcingTrainer(
        make_llada(), make_args(tmp_path, max_steps=1), make_dataset(4), data_collator=lambda rows: plain(rows)
    ).train()


class OneMore(CertaintyForcingTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return (loss[0] + 1, loss[1]) if isinstance(loss, tuple) else loss + 1


def test_a_term_of_ones_own_is_in_the_evaluation_loss(tmp_path):
    args, data = make_args(tmp_path, per_device_eval_batch_size=2), make_dataset(5, seed=1)
    losses = [
        cls(make_llada(), args, eval_dataset=data).evaluate()["eval_loss"]
        for cls in (CertaintyForcingTrainer, OneMore)
    ]
    assert losses[1] == pytest.approx(losses[0] + 1)


def test_several_evaluation_sets(tmp_path):
    datasets = {"a": make_dataset(3, seed=1), "b": make_dataset(2, seed=2)}
    metrics = make_trainer(tmp_path, eval_dataset=datasets).evaluate()
    assert metrics["eval_a_loss"] != metrics["eval_b_loss"]
    assert {"eval_a_masked_accuracy", "eval_b_masked_accuracy"} <= metrics.keys()


# Masks and resumption


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    settings = {"rows": 4, "num_train_epochs": 2, "mask_ratio": "random", "dataloader_num_workers": 1}
    settings |= {"peft_config": lora(lora_dropout=0.1), "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(tmp_path, **settings)
    whole.train()
    expected = weights_of(whole.model)
    # At the end of the first epoch, and in the middle of the second.
    for step in (2, 3):
        resumed = make_trainer(tmp_path, **settings)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert resumed.state.global_step == whole.state.global_step == 4
        for name, weight in resumed.model.named_parameters():
            assert torch.equal(weight, expected[name]), (step, name)


def test_a_whole_model_is_resumed_and_the_best_checkpoint_loaded(tmp_path):
    """LLaDA is saved under its published names, and has others in memory."""
    settings = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}
    whole = make_trainer(tmp_path, eval_dataset=make_dataset(2), **settings)
    whole.train()
    resumed = make_trainer(tmp_path, eval_dataset=make_dataset(2), **settings)
    # Nothing else is needed of what was saved of the model.
    (tmp_path / "checkpoint-1" / "config.json").unlink()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    expected = weights_of(whole.model)
    assert all(torch.equal(weight, expected[name]) for name, weight in resumed.model.named_parameters())

    best = make_trainer(
        tmp_path / "best", eval_dataset=make_dataset(2), load_best_model_at_end=True,
        metric_for_best_model="masked_entropy", **settings,
    )  # fmt: skip
    best.train()
    loaded = AutoModelForMaskedLM.from_pretrained(best.state.best_model_checkpoint)
    expected = weights_of(loaded)
    assert all(torch.equal(weight, expected[name]) for name, weight in best.model.named_parameters())


def test_a_checkpoint_with_experts_of_a_layer_in_several_files_is_read(tmp_path):
    saved = make_llada2()
    saved.save_pretrained(tmp_path / "checkpoint", max_shard_size="20KB")
    files = [load_file(path) for path in (tmp_path / "checkpoint").glob("*.safetensors")]
    assert sum(any(".experts.0." in name or ".experts.1." in name for name in file) for file in files) > 1
    trainer = make_trainer(tmp_path, make_llada2())
    for weight in trainer.model.state_dict().values():
        weight.zero_()
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint"))
    expected = saved.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in trainer.model.state_dict().items())


# Data


def text_trainer(tmp_path, rows, **settings):
    tokenizer = build_tokenizer()
    ids = {"vocab_size": len(tokenizer), "mask_token_id": tokenizer.mask_token_id}
    args, model = make_args(tmp_path, **settings), make_llada(**ids)
    return CertaintyForcingTrainer(model, args, train_dataset=rows, processing_class=tokenizer)


def test_text_is_tokenized(tmp_path):
    tokenizer = build_tokenizer()
    rows = [{"prompt": "Ana has 3 apples .", "completion": "The answer is 3 .", "answer": 3}] * 2
    trainer = text_trainer(tmp_path, Dataset.from_list(rows))
    row = trainer.train_dataset[0]
    assert row["prompt_ids"] == tokenizer("Ana has 3 apples .")["input_ids"]
    assert row["completion_ids"] == [*tokenizer("The answer is 3 .")["input_ids"], tokenizer.eos_token_id]
    assert trainer.data_collator.mask_token_id == tokenizer.mask_token_id
    assert trainer.data_collator.eos_token_id == tokenizer.eos_token_id
    trainer.train()


def test_messages_are_tokenized_with_the_settings_of_the_template(tmp_path):
    tokenizer, model = build_tokenizer(), make_llada(vocab_size=len(build_tokenizer()))
    tokenizer.chat_template = "{% for each in messages %}{{ each['content'] }}{{ end }} {% endfor %}"
    chat = [{"role": "user", "content": "Ana has 3 apples"}, {"role": "assistant", "content": "The answer is 3"}]
    args = make_args(tmp_path, max_length=48, chat_template_kwargs={"end": " ."})
    rows = Dataset.from_list([{"messages": chat}])
    row = CertaintyForcingTrainer(model, args, rows, processing_class=tokenizer).train_dataset[0]
    assert tokenizer.decode(row["prompt_ids"]).strip() == "ana has 3 apples."
    assert tokenizer.decode(row["completion_ids"]).startswith("The answer is 3.")


def test_every_pass_over_a_list_has_its_own_masks(tmp_path):
    trainer = make_trainer(tmp_path, train_dataset=make_rows(2), max_steps=3, learning_rate=0.0)
    trainer.train()
    assert len({round(loss, 4) for loss in losses_of(trainer)}) == 3


def with_lengths(*lengths):
    return Dataset.from_list([{"prompt_ids": [2] * p, "completion_ids": [3] * c} for p, c in lengths])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset.from_dict({"prompt_ids": [], "completion_ids": []}), "`train_dataset` has 0 rows: did `filter_traj"),
        ([], "`train_dataset` has 0 rows"),
        (make_dataset(2).to_iterable_dataset(), "`train_dataset` must have a length, got IterableDataset: .*Read"),
        (with_lengths((5, 30), (20, 6)), "All rows of `train_dataset` are longer than max_length=24. Raise it to 35"),
        (Dataset.from_dict({"prompt_ids": [[2], [64]], "completion_ids": [[3], [3]]}), "Row 1 of `train_dataset`: "
         "`vocab_size=64` is too small for the token id 64 of a row"),
        (Dataset.from_dict({"prompt": ["a"], "completion": ["b"]}), "To tokenize it, pass .*`processing_class"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_used(tmp_path, dataset, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, train_dataset=dataset)


@pytest.mark.parametrize("make", [list, Dataset.from_list])
def test_the_steps_are_missing(tmp_path, make):
    with pytest.raises(ValueError, match="`commit_step` .*leave out `masking`"):
        make_trainer(tmp_path, train_dataset=make(make_rows(2)), masking="trajectory", max_steps=1)


def test_all_splits_at_once_are_refused(tmp_path):
    """What `load_dataset` returns without a split."""
    splits = DatasetDict(train=make_dataset(2), test=make_dataset(2))
    with pytest.raises(ValueError, match=r"`train_dataset` .*\['train', 'test'\]"):
        make_trainer(tmp_path, train_dataset=splits)
    assert "eval_train_loss" in make_trainer(tmp_path, eval_dataset=dict(splits)).evaluate()


def test_evaluation_data_that_cannot_be_used(tmp_path):
    with pytest.raises(ValueError, match=r"`eval_dataset\['a'\]` has 0 rows"):
        make_trainer(tmp_path, eval_dataset=DatasetDict({"a": make_dataset(2).select([])}))
    with pytest.raises(ValueError, match="`eval_dataset` .* max_length=24"):
        make_trainer(tmp_path).evaluate(with_lengths((5, 30)))


def test_rows_that_are_no_dataset_cannot_be_tokenized(tmp_path):
    with pytest.raises(ValueError, match="To tokenize it, pass a `datasets.Dataset`"):
        text_trainer(tmp_path, [{"prompt": "a", "completion": "b"}])


# Models and adapters


def test_a_model_by_name_and_default_arguments(golden_dir, tmp_path):
    args = CertaintyForcingConfig(str(tmp_path))
    trainer = CertaintyForcingTrainer(str(golden_dir / "llada" / "model"), args, make_dataset(2))
    assert type(trainer.model).__name__ == "LLaDAForMaskedDiffusion"
    collator = trainer.data_collator
    assert (collator.mask_token_id, collator.eos_token_id, collator.max_length) == (500, 481, 384)


def test_the_seed_decides_the_weights_of_an_adapter(tmp_path):
    weights = []
    for torch_seed, seed in ((1, 7), (2, 7), (1, 8)):
        model = make_llada()
        torch.manual_seed(torch_seed)
        weights.append(weights_of(make_trainer(tmp_path, model, peft_config=lora(), seed=seed).model))
    name = next(name for name in weights[0] if "lora_A" in name)
    assert torch.equal(weights[0][name], weights[1][name]) and not torch.equal(weights[0][name], weights[2][name])


def test_a_causal_model_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, mask_token_id=MASK, **sizes)
    with pytest.raises(ValueError, match="LlamaForCausalLM is causal"):
        make_trainer(tmp_path, LlamaForCausalLM(config))


@pytest.mark.parametrize("name", ["mask_token_id", "eos_token_id"])
def test_missing_special_token(tmp_path, name):
    model = make_llada()
    setattr(model.config, name, None)
    if model.generation_config is not None:
        setattr(model.generation_config, name, None)
    message = f"`{name}` is needed, but neither `processing_class` nor the configuration of LLaDAForMaskedDiffusion"
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, model)


def test_training_and_decoding_have_the_same_mask_token(tmp_path):
    """The model's, even where the tokenizer names another one; the end is the tokenizer's, as in transformers."""
    tokenizer, model = make_tokenizer(), make_llada()
    tokenizer.mask_token, tokenizer.eos_token = "5", "6"
    for recipe, mask in (({}, MASK), ({"mask_token_id": 62}, 62)):
        model.generation_config = DiffusionGenerationConfig(**recipe)
        trainer = CertaintyForcingTrainer(
            model, make_args(tmp_path), make_dataset(1), make_dataset(1), processing_class=tokenizer
        )
        assert trainer.data_collator.mask_token_id == resolve(model, None, tokenizer).mask_token_id == mask
        assert trainer.data_collator.eos_token_id == tokenizer.eos_token_id
        trainer.train()
        assert tokenizer.eos_token_id in resolve(model, None, tokenizer).eos_token_ids
    model.config.mask_token_id = model.generation_config.mask_token_id = None
    assert training_token_id("mask_token_id", model, tokenizer) == tokenizer.mask_token_id


def test_first_of_several_eos_tokens(tmp_path):
    model = make_llada()
    model.config.eos_token_id = [1, 5]
    assert make_trainer(tmp_path, model).data_collator.eos_token_id == 1


def test_other_training_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match="`args` .* got TrainingArguments"):
        CertaintyForcingTrainer(make_llada(), TrainingArguments(str(tmp_path)), train_dataset=make_dataset(2))


@pytest.mark.parametrize(
    ("target_modules", "message"),
    [
        (["q_proj", "o_prj"], r"modules of LLaDAForMaskedDiffusion, but \['o_prj'\] match none"),
        (["q_proj", "attn_out", "ff_out"], r"\['attn_out', 'ff_out'\] match none"),
        (r".*\.attn_out", "not found in the base model"),
    ],
)
def test_target_modules_that_match_nothing(tmp_path, target_modules, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path, peft_config=lora(target_modules=target_modules))


@pytest.mark.parametrize(
    ("target_modules", "count"),
    [
        (["q_proj"], 2),
        ("q_proj", 2),
        (["layers.0.mlp.up_proj"], 1),
        (r".*self_attn\.[qv]_proj", 4),
        ("all-linear", 14),
        (None, 14),
    ],
)
def test_target_modules_that_match(tmp_path, target_modules, count):
    config = lora(target_modules=target_modules, task_type="CAUSAL_LM")
    trainer = make_trainer(tmp_path, peft_config=config)
    assert sum("lora_A" in name for name, _ in trainer.model.named_parameters()) == count
    assert trainer.model.peft_config["default"].task_type is None
    assert type(trainer.model) is PeftModel
    # The caller's object is as it was.
    assert config.task_type == "CAUSAL_LM"
    assert config.target_modules == (set(target_modules) if isinstance(target_modules, list) else target_modules)


def test_adapters_that_cannot_be_trained(tmp_path):
    for config, message in [
        (PromptTuningConfig(num_virtual_tokens=2), "PromptTuningConfig puts virtual tokens"),
        (lora(init_lora_weights="pissa"), "With `init_lora_weights='pissa'` PEFT changes"),
        (lora(bias="lora_only"), "`bias=.lora_only.` of `peft_config` would change the model"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_trainer(tmp_path, peft_config=config)
    adapted = get_peft_model(make_llada(), lora(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="Pass `peft_config=None`"):
        make_trainer(tmp_path, adapted, peft_config=lora())
    adapted.save_pretrained(tmp_path)
    loaded = make_llada()
    loaded.load_adapter(str(tmp_path), "old")
    with pytest.raises(ValueError, match="Pass `peft_config=None`"):
        make_trainer(tmp_path, loaded, peft_config=lora())
    named = get_peft_model(make_llada(), lora(target_modules=["q_proj"]), "other")
    with pytest.raises(ValueError, match="must be named 'default', got 'other'"):
        make_trainer(tmp_path, named)
    frozen = PeftModel.from_pretrained(make_llada(), tmp_path)
    with pytest.raises(ValueError, match=r"nothing to train.*is_trainable=True"):
        make_trainer(tmp_path, frozen)


def test_a_loaded_adapter_is_trained_on(tmp_path):
    get_peft_model(make_llada(), lora(target_modules=["q_proj"])).save_pretrained(tmp_path)
    trainer = make_trainer(tmp_path, PeftModel.from_pretrained(make_llada(), tmp_path, is_trainable=True))
    before = weights_of(trainer.model)
    trainer.train()
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved and all("lora_" in name for name in moved)


def test_an_adapter_with_new_tokens_says_how_it_is_loaded(tmp_path):
    make_llada().save_pretrained(tmp_path / "base")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    model.resize_token_embeddings(70)
    trainer = make_trainer(tmp_path, model, peft_config=lora(modules_to_save=["embed_tokens", "lm_head"]))
    trainer.save_model()
    with pytest.raises(ValueError, match=r"\[70, .*`model.resize_token_embeddings`"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    loaded.resize_token_embeddings(70)
    loaded.load_adapter(str(tmp_path))
    input_ids = torch.tensor([[5, 6, MASK, MASK]])
    torch.testing.assert_close(loaded(input_ids).logits, trainer.model.eval()(input_ids).logits)


# The rest of the surface


def test_a_collator_of_ones_own(tmp_path):
    masks = {"block_length": 2, "mask_ratio": "random", "max_length": 30, "complementary_masking": False}
    collator = DataCollatorForSemiAutoregressiveMasking(MASK, EOS, **masks)
    trainer = CertaintyForcingTrainer(make_llada(), make_args(tmp_path), make_dataset(4), data_collator=collator)
    assert training_summary(trainer)["settings"].items() >= masks.items()
    assert student_recipe(trainer).block_length == trainer.args.block_length == 2
    batch = collator(make_rows(2))
    # One view a sequence, though `args.complementary_masking` is set: the collator counts.
    expected = naive_loss(trainer.model, batch, views=1)
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch), expected)
    trainer.train()
