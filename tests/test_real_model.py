# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The run on a real language model: its task, and the whole script on a Llama that knows nothing."""

import json
import random
import re
import sys
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_dparallel import convert_to_diffusion

from .helpers import read_json
from .pages import ROOT, read


@pytest.fixture
def task(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "make_a_teacher")
    import requests_to_json

    return requests_to_json


def test_the_fields_of_a_request_are_in_it(task):
    rows = list(islice(task.draw_rows(0), 400))
    assert {json.loads(row["answer"])["action"] for row in rows} == set(task.REQUESTS)
    for row in rows:
        question, fields = row["prompt"][0]["content"], json.loads(row["answer"])
        assert all(
            value in question
            for name, value in fields.items()
            if isinstance(value, str) and name not in ("action", "time")
        )
    assert task.draw_time(random.Random(2)) != task.draw_time(random.Random(3))
    tests = {row["prompt"][0]["content"] for row in islice(task.draw_rows(0, is_test=True), 400)}
    assert tests.isdisjoint(row["prompt"][0]["content"] for row in rows)


@pytest.mark.parametrize(("clock", "spoken"), [("08:00", "8 am"), ("12:15", "12:15 pm"), ("19:30", "7:30 pm")])
def test_times_are_said_in_halves_of_a_day(task, clock, spoken):
    drawn = {task.draw_time(random.Random(seed)) for seed in range(2000)}
    assert {(clock, clock), (spoken, clock)} <= drawn


def test_the_reward_compares_fields(task):
    answer = '{"a": 1, "b": "x"}'
    completions = ['{"b":"x", "a":1}', '{"a": 2, "b": "x"}', '{"a": 1', [{"role": "assistant", "content": answer}]]
    assert task.same_fields_reward(completions, [answer] * 4) == [1.0, 0.0, 0.0, 1.0]


def test_short_replies_add_up():
    import counting_in_words as counting

    kinds = set()
    for row in islice(counting.draw_rows(3), 600):
        question, reply = (message["content"] for message in row["messages"])
        kinds.add(row["kind"])
        assert counting.UNKNOWN not in question.lower()
        assert counting.same_end_reward([reply], [row["answer"]]) == [1.0]
        totals = [None]
        for start, sign, change, total in re.findall(r"(\d+) ([+-]) (\d+)(?: = (\d+)\.|: we can only)", reply):
            assert totals[-1] in (None, start)
            result = int(start) + int(sign + change)
            assert (0 <= result <= 198) == bool(total)
            assert total in ("", str(result))
            totals.append(total)
        if row["answer"].isdigit() and len(totals) > 1:
            assert totals[-1] == row["answer"]
    assert kinds == {"problem", "sum", "small talk", "other"}


def test_the_end_of_a_reply_counts():
    from counting_in_words import same_end_reward

    replies = ["9 + 3 = 12. The answer is 12.", "The answer is 2.", "The answer is 12", [{"content": "A. Hi!"}]]
    assert same_end_reward(replies, ["12", "12", "12", "Hi!"]) == [1.0, 0.0, 0.0, 1.0]


@pytest.fixture
def source(tmp_path, task):
    """The folder of a tiny Llama with a tokenizer of such requests."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|im_end|>", "<|im_start|>"]
    texts = [message["content"] for row in islice(task.draw_rows(0), 300) for message in row["messages"]]
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=800, special_tokens=names, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=names[0], pad_token=names[0])
    tokens = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**tokens, **shape, max_position_embeddings=256)).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.parametrize("name", ["requests", "counting"])
def test_the_whole_script_runs(source, name, tmp_path, monkeypatch):
    import real_model

    task = real_model.TASKS[name]
    # Nothing would be right, and nothing kept.
    monkeypatch.setattr(task.load(), task.reward_name, lambda completions, answer, **kwargs: [1.0] * len(completions))
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    for constant, value in {"NUM_ROWS": 64, "MAX_NEW_TOKENS": 16, "ONE_TOKEN": {"denoising_steps": 16}}.items():
        monkeypatch.setattr(real_model, constant, value)
    sizes = ["--num_steps", "1", "1", "1", "--num_prompts", "8", "--num_requests", "2", "2", "--num_timed", "1"]
    output = tmp_path / "report.json"
    command = ["real_model.py", "--source", str(source), "--folder", str(tmp_path / "run"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", [*command, *sizes, "--task", name])
    real_model.main()
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "student")
    assert (student.block_length, student.shift_logits) == (task.block_length, task.shift_logits)
    report = read_json(output)
    assert [(run["dtype"], run["batch_size"]) for run in report["runs"]] == [
        ("bfloat16", 8),
        ("bfloat16", 1),
        ("float32", 8),
        ("float32", 1),
    ]
    for run in report["runs"]:
        titles = [name.split(",")[0] for name in run["rows"]]
        assert titles == ["Llama", "Llama", "Teacher", "Teacher", "Student"]
        assert all(row["tokens_per_s"] > 0 and row["accuracy"] == 1.0 for row in run["rows"].values())
    assert real_model.table(report).count("\n") == 2 + 4 * 5 - 1
    assert real_model.short_table(report).count("\n") == 2 + 5 - 1


def test_a_training_that_was_stopped_goes_on(source, tmp_path, monkeypatch):
    import counting_in_words as counting
    import make_a_teacher
    from real_model import CHAT_TEMPLATE, SMALL
    from roman_numerals import write_rows

    model, tokenizer = convert_to_diffusion(str(source), block_length=4)
    tokenizer.chat_template = CHAT_TEMPLATE
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "start")
    write_rows(tmp_path / "rows.jsonl", counting.draw_rows(0), 32, "messages")
    teacher = tmp_path / "teacher"
    steps = ["train", "--model", str(tmp_path / "start"), "--dataset_name", str(tmp_path / "rows.jsonl"), *SMALL]
    steps += ["--output_dir", str(teacher), "--save_steps", "1", "--block_length", "4", "--max_steps"]
    make_a_teacher.run(teacher / "model.safetensors", *steps, "1")
    (teacher / "model.safetensors").unlink()
    make_a_teacher.run(teacher / "model.safetensors", *steps, "2")
    (state,) = teacher.glob("checkpoint-*/trainer_state.json")
    assert read_json(state)["global_step"] == 2 and (teacher / "model.safetensors").exists()


def test_a_trial_keeps_the_llama_in_a_causal_past(source, tmp_path, monkeypatch):
    import counting_in_words as counting
    import real_trials
    from real_model import CHAT_TEMPLATE
    from roman_numerals import write_rows

    model, tokenizer = convert_to_diffusion(str(source), block_length=4)
    start, rows = tmp_path / "start", tmp_path / "rows"
    model.save_pretrained(start)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(start)
    rows.mkdir()
    write_rows(rows / "grouped.jsonl", counting.draw_rows(0), 16, "messages")
    write_rows(rows / "test.jsonl", counting.draw_rows(1, "test"), 40, "prompt", "answer", "kind")
    monkeypatch.setattr(real_trials, "TRIALS", [real_trials.Trial("causal_past", 4, use_peft=True)])
    monkeypatch.setattr(real_trials, "FAST", torch.float32)
    output, sizes = tmp_path / "trials.json", ["--num_steps", "1", "--num_problems", "2"]
    command = ["real_trials.py", "--folder", str(tmp_path), "--output", str(output), *sizes]
    monkeypatch.setattr(sys, "argv", command)
    real_trials.main()
    (trial,) = read_json(output)["trials"]
    assert trial["one token"]["nfe"] >= trial["0.9"]["nfe"] > 0
    ids = torch.arange(3, 15)[None]
    llama = LlamaForCausalLM.from_pretrained(source).eval()
    trained_from = AutoModelForMaskedLM.from_pretrained(tmp_path / "causal_past-4-adapter" / "start").eval()
    with torch.no_grad():
        torch.testing.assert_close(trained_from(ids).logits[:, :8, :800], llama(ids).logits[:, :8, :800])


def test_a_sum_is_right_whatever_the_problem():
    from real_trials import share_of_right_sums

    assert share_of_right_sums(["14 + 6 = 20. 20 - 3 = 18. The answer is 18.", "Hello!", "1 + 1 = 2."]) == 2 / 3
    assert share_of_right_sums(["Hello!"]) == 0.0


def test_the_tables_are_what_the_benchmark_wrote():
    import real_model

    report = read_json(ROOT / "benchmarks" / "results" / "real_model.json")
    assert f"-->\n{real_model.short_table(report)}\n<!--" in read("README.md")
    assert f"-->\n{real_model.table(report)}\n<!--" in read("docs/results.md")
