# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The demo from end to end, small, and the bundled teacher."""

import json
from pathlib import Path

import pytest
import torch
from counting_teacher import TYPED, asked, evaluate
from datasets import Dataset
from peft import PeftModel
from teacher.tokenizer import MEMORY, build_tokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from hf_dparallel import DiffusionGenerationConfig, numeric_answer_reward
from hf_dparallel.data.dataset import tokenize_row
from hf_dparallel.data.prompts import tokenize_prompts
from hf_dparallel.demo import STUDENT, TEACHER, pipeline, word_problem_dataset
from hf_dparallel.demo.duel import show_duel
from hf_dparallel.demo.pipeline import DemoConfig, _conclude, load_teacher, run_demo
from hf_dparallel.evaluation.decoding import evaluate_decoding
from hf_dparallel.inspection.play import QUESTIONS


@pytest.mark.slow
def test_bundled_teacher_is_right_nine_times_out_of_ten():
    """On more held-out problems than benchmarks/regression.py takes."""
    teacher, tokenizer = load_teacher()
    figures = evaluate_decoding(
        teacher, tokenizer, word_problem_dataset(64, seed=3, split="test"), numeric_answer_reward, batch_size=32
    )
    assert figures["accuracy"] >= 0.9
    # Few answers end a block early.
    assert 63 < figures["nfe"] <= 64


def test_bundled_student_takes_a_fifth_of_the_passes():
    """With the recipe that it carries."""
    model = AutoModelForMaskedLM.from_pretrained(STUDENT, dtype="float32")
    problems = word_problem_dataset(8, seed=3, split="test")
    tokenizer = AutoTokenizer.from_pretrained(STUDENT)
    figures = evaluate_decoding(model, tokenizer, problems, numeric_answer_reward)
    assert figures["accuracy"] >= 0.9
    assert figures["nfe"] < 64 / 5


@pytest.mark.parametrize(
    ("questions", "end"),
    [
        *zip(([question] for question in QUESTIONS), ("15.", "25.", "31.", "take away."), strict=True),
        (["Gia has 18 apples and eats 7 of them. How many are left?", "And if she finds 9 more?"], "20."),
    ],
)
def test_bundled_student_answers_the_examples_of_the_page(questions, end):
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(STUDENT), AutoTokenizer.from_pretrained(STUDENT)
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        tokens = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
        messages.append({"role": "assistant", "content": tokenizer.decode(tokens, skip_special_tokens=True)})
    assert messages[-1]["content"].endswith(end)


def test_bundled_student_never_babbles():
    """On what visitors of its page typed."""
    model = AutoModelForMaskedLM.from_pretrained(STUDENT, dtype="float32")
    figures, _ = evaluate(model, AutoTokenizer.from_pretrained(STUDENT), asked(TYPED["visitors"]))
    assert figures["garbled"] == 0.0, figures["wrong"]
    assert figures["right"] >= 0.85, figures["wrong"]


def test_the_folder_of_the_student_is_that_of_an_adapter_and_of_a_model():
    """`python scripts/train_demo_student.py --bundle` writes it."""
    teacher, student = Path(TEACHER), Path(STUDENT)
    assert (student / "config.json").read_text() == (teacher / "config.json").read_text()
    assert AutoConfig.from_pretrained(TEACHER).dtype == torch.float32
    assert (student / "tokenizer.json").read_text() == (teacher / "tokenizer.json").read_text()
    model = AutoModelForMaskedLM.from_pretrained(STUDENT)
    base = AutoModelForMaskedLM.from_pretrained(TEACHER)
    assert set(json.loads((student / "model.safetensors.index.json").read_text())["weight_map"].values()) == {
        "teacher/model.safetensors"
    }
    base.load_adapter(STUDENT)
    ids = torch.arange(3, 20)[None]
    assert model(ids).logits.equal(base(ids).logits)
    model.disable_adapters()
    assert not model(ids).logits.equal(base(ids).logits)


def test_a_saved_copy_of_the_student_is_loaded_again(tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(STUDENT)
    weight = next(weight for name, weight in model.named_parameters() if "lora_B" in name)
    weight.data += 1.0
    model.save_pretrained(tmp_path)
    ids = torch.arange(3, 20)[None]
    assert AutoModelForMaskedLM.from_pretrained(tmp_path)(ids).logits.equal(model(ids).logits)


def test_the_bundled_model_reads_the_last_two_questions_and_learns_its_own_ending():
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    assert AutoTokenizer.from_pretrained(STUDENT).chat_template == tokenizer.chat_template
    chat = [
        {"role": role, "content": text.format(number)}
        for number in range(5)
        for role, text in (("user", "How many are {}?"), ("assistant", "The answer is {}."))
    ]
    for row in ({"messages": chat}, {"prompt": chat[:-1]}):
        (prompt_ids,) = tokenize_prompts(Dataset.from_list([row]), tokenizer)
        assert prompt_ids == tokenizer.apply_chat_template(chat[6:-1], add_generation_prompt=True)["input_ids"]
    row = tokenize_row({"messages": chat}, tokenizer)
    assert row["prompt_ids"] == prompt_ids
    reply = tokenizer("The answer is 4.", add_special_tokens=False)["input_ids"]
    assert row["completion_ids"] == [*reply, tokenizer.eos_token_id]


@pytest.mark.parametrize(
    ("text", "is_alone"), [("Thank you!", True), ("And three more?", False), ("And 3 more?", False)]
)
def test_what_has_no_number_is_asked_as_at_the_beginning_of_a_chat(text, is_alone):
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    assert tokenizer.chat_template == MEMORY + build_tokenizer().chat_template
    asked = [{"role": "user", "content": text}]
    chat = [{"role": "user", "content": "2 + 3"}, {"role": "assistant", "content": "The answer is 5."}, *asked]
    alone, later = (tokenizer.apply_chat_template(messages, tokenize=False) for messages in (asked, chat))
    assert (alone == later) == is_alone


def test_bundled_teacher_is_small():
    teacher, _ = load_teacher(torch.float32)
    assert 1e6 < teacher.num_parameters() < 3e6
    assert sum(file.stat().st_size for file in Path(STUDENT).rglob("*") if file.is_file()) < 8e6


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("demo")
    numbers = {"num_trajectories": 4, "num_train_steps": 1, "num_tuning_problems": 1, "num_problems": 2}
    config = DemoConfig(str(output_dir), batch_size=4, **numbers)
    with pytest.MonkeyPatch.context() as monkeypatch:
        few = {rule: values[-1:] for rule, values in pipeline.TUNING_GRID.items()}
        monkeypatch.setattr(pipeline, "TUNING_GRID", few)
        monkeypatch.setattr(pipeline, "STUDENT_GRID", pipeline.STUDENT_GRID[-1:])
        return run_demo(config), output_dir


def test_report_has_the_rows_of_the_contract(demo):
    report, output_dir = demo
    assert report == json.loads((output_dir / "report.json").read_text())
    assert len(report["rows"]) == 6
    for row in report["rows"]:
        assert list(row) == ["method", "accuracy", "nfe", "tokens_per_forward", "latency_s", "speedup"]
    original, few_step, *_, control, student = report["rows"]
    assert (original["nfe"], few_step["nfe"], original["speedup"]) == (64.0, 16.0, 1.0)
    assert control["method"] == "Control, without the certainty loss, entropy threshold 0.8"
    assert student["method"].startswith("Student (dParallel), entropy threshold")
    assert report["trajectories_kept"] + report["trajectories_dropped"] == 4
    table = (output_dir / "report.md").read_text()
    assert all(row["method"] in table for row in report["rows"])
    assert " Passes (95 %) |" in table and " Accuracy (95 %) |" in table
    for row in report["rows"]:
        low, high = report["intervals"][row["method"]]["nfe_interval"]
        assert low <= row["nfe"] <= high
    assert (output_dir / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_killed_leaves_no_report_of_another(tmp_path, monkeypatch):
    for name in ("report.json", "report.md", "curves.png"):
        (tmp_path / name).write_text("of another run")

    def stop(**kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "load_teacher", stop)
    with pytest.raises(KeyboardInterrupt):
        run_demo(DemoConfig(str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_the_adapter_and_its_recipe_load_again(demo):
    report, output_dir = demo
    teacher, tokenizer = load_teacher(torch.float32)
    student = PeftModel.from_pretrained(teacher, output_dir / "adapter")
    recipe = DiffusionGenerationConfig.from_pretrained(output_dir / "adapter")
    assert f"{recipe.entropy_threshold}" in report["rows"][-1]["method"]
    problems = word_problem_dataset(1, seed=5, split="test")
    figures = evaluate_decoding(student, tokenizer, problems, numeric_answer_reward, recipe)
    assert figures["nfe"] < 64


def test_the_table_says_whether_it_tells_a_student_from_the_control():
    row = {"accuracy": 1.0, "nfe": 2.0}
    rows = [{**row, "method": f"Teacher, {number}", "nfe": 8.0 - number} for number in range(4)] + [row, row]
    assert "+0.00 passes (95 % interval -0.10 to +0.10), at 100.0%: this table cannot tell" in _conclude(
        rows, (-0.1, 0.1)
    )
    assert "this table tells them apart" in _conclude(rows, (0.1, 0.3))
    assert "teacher's best threshold of those tried (3)" in _conclude(rows, (0.1, 0.3))


def test_no_two_seeds_and_no_two_purposes_share_problems():
    """Neither do thresholds and figures of one seed, nor those of several that are averaged."""
    drawn = [
        [row["prompt"][0]["content"] for row in DemoConfig(seed=seed).problems(purpose)]
        for seed in range(3)
        for purpose in ("trajectories", "tuning", "comparison")
    ]
    questions = [question for each in drawn for question in set(each)]
    assert len(set(questions)) > 0.99 * len(questions)  # by chance, some are drawn twice


def test_the_first_thing_to_see_is_a_question_to_teacher_and_student(capsys):
    passes = show_duel()
    out = capsys.readouterr().out
    assert passes["Student"] <= 4 and passes["Teacher"] >= 40
    assert "Teacher, pass  1: " in out and "Teacher, pass  9: " in out
    assert out.count("14 + 6 = 20. Then we take 5 away: 20 - 5 = 15. The answer is 15.") >= 2
