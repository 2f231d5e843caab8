# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import EarlyStoppingCallback

from hf_dparallel import CertaintyForcingTrainer, DecodingCallback, DiffusionGenerationConfig, evaluate_decoding
from hf_dparallel.evaluation import callback as callback_module

from ..helpers import (
    lora,
    make_args,
    make_dataset,
    make_llada,
    make_prompts,
    make_tokenizer,
    reward_of_the_text,
    weights_of,
)
from ..recipes import RECIPE


def make_trainer(tmp_path, callbacks=None, **settings):
    defaults = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "save_strategy": "steps"}
    return CertaintyForcingTrainer(
        make_llada(),
        make_args(tmp_path, **(defaults | settings)),
        make_dataset(6),
        make_dataset(3),
        make_tokenizer(),
        peft_config=lora(),
        callbacks=callbacks,
    )


def test_decodes_with_the_adapter_as_it_is_and_logs_to_the_trackers(tmp_path):
    trainer = make_trainer(tmp_path, report_to="tensorboard")
    prompts = make_prompts(10)
    trainer.add_callback(DecodingCallback(trainer, prompts, reward_of_the_text, RECIPE, batch_size=4))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_decoding_nfe" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 3]
    expected = evaluate_decoding(trainer.model, trainer.processing_class, prompts, reward_of_the_text, RECIPE)
    for name in ("accuracy", "nfe", "tokens_per_forward"):
        assert logged[-1][f"eval_decoding_{name}"] == pytest.approx(expected[name], rel=1e-6)
        assert len({entry[f"eval_decoding_{name}"] for entry in logged}) > (name == "nfe")

    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    recorded = events.Scalars("eval/decoding_tokens_per_forward")
    assert [event.step for event in recorded] == [1, 2, 3]
    assert recorded[-1].value == pytest.approx(expected["tokens_per_forward"])


def test_early_stopping_that_was_there_before_sees_the_figures(tmp_path, monkeypatch):
    figures = {"accuracy": 1.0, "nfe": 1.0, "tokens_per_forward": 2.0, "num_prompts": 4}
    monkeypatch.setattr(callback_module, "evaluate_answers", lambda *_, **__: SimpleNamespace(metrics=lambda: figures))
    stopping = {"metric_for_best_model": "decoding_accuracy", "greater_is_better": True, "save_strategy": "no"}
    trainer = make_trainer(tmp_path, callbacks=[EarlyStoppingCallback(1)], **stopping)
    trainer.add_callback(DecodingCallback(trainer, make_prompts(4), reward_of_the_text, RECIPE))
    trainer.train()
    # Of three steps; the second one is not more accurate.
    assert trainer.state.global_step == 2


def test_does_not_disturb_the_training(tmp_path):
    weights = []
    for decodes in (False, True):
        args = make_args(tmp_path / str(decodes), eval_strategy="steps", eval_steps=1, max_steps=3)
        trainer = CertaintyForcingTrainer(
            make_llada(), args, make_dataset(6), make_dataset(3), make_tokenizer(), peft_config=lora(lora_dropout=0.3)
        )
        if decodes:
            recipe = RECIPE.updated(temperature=1.0)
            trainer.add_callback(DecodingCallback(trainer, make_prompts(4), reward_of_the_text, recipe))
        trainer.train()
        weights.append(weights_of(trainer.model))
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_the_most_accurate_checkpoint_is_the_best(tmp_path, monkeypatch):
    best_model = {"load_best_model_at_end": True, "metric_for_best_model": "decoding_accuracy"}
    trainer = make_trainer(tmp_path, greater_is_better=True, **best_model)
    runs = iter([0.5, 0.9, 0.8])

    def scripted(*args, **kwargs):
        figures = {"accuracy": next(runs), "nfe": 1.0, "tokens_per_forward": 2.0, "num_prompts": 4}
        return SimpleNamespace(metrics=lambda: figures)

    monkeypatch.setattr(callback_module, "evaluate_answers", scripted)
    trainer.add_callback(DecodingCallback(trainer, make_prompts(4), reward_of_the_text, RECIPE))
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")


def test_several_evaluation_sets_are_one_decoding(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no", max_steps=2)
    trainer.eval_dataset = {"a": make_dataset(2), "b": make_dataset(2, seed=1)}
    trainer.add_callback(DecodingCallback(trainer, make_prompts(4), reward_of_the_text, RECIPE))
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "eval_decoding_nfe" in entry]) == 2
    assert "eval_decoding_nfe" in trainer.evaluate() and "eval_decoding_nfe" in trainer.evaluate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"args": {"eval_strategy": "no"}}, r"runs at each evaluation, and the trainer has none"),
        ({"attribute": ("eval_dataset", None)}, r"and the trainer has none. Set `eval_strategy"),
        ({"attribute": ("processing_class", None)}, r"needs the tokenizer. Pass `processing_class=`"),
        ({"attribute": ("is_fsdp_enabled", True)}, r"needs the whole model in each process"),
        ({"dataset": Dataset.from_dict({"prompt": []})}, r"`dataset` must have a prompt for each of the 1 processes"),
        ({"dataset": Dataset.from_dict({"text": ["a"]})}, "Row 0 of `dataset`: A row needs the columns `prompt`"),
        ({"dataset": make_prompts(4).add_column("completion_ids", [[1]] * 4)}, r"already has the column"),
        ({"batch_size": 0}, r"`batch_size` must be at least 1, got 0"),
        ({"recipe": DiffusionGenerationConfig(mask_token_id=2)}, r"contains the mask token .* \(2\)"),
        ({"rewards": lambda completions, solution, **kwargs: []}, r"solution"),
    ],
)
def test_bad_settings(tmp_path, change, message):
    trainer = make_trainer(tmp_path, **change.get("args", {}))
    if "attribute" in change:
        setattr(trainer, *change["attribute"])
    dataset, rewards = change.get("dataset", make_prompts(4)), change.get("rewards", reward_of_the_text)
    with pytest.raises(ValueError, match=message):
        DecodingCallback(trainer, dataset, rewards, change.get("recipe", RECIPE), change.get("batch_size", 16))
