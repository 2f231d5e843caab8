# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every command end to end on tiny random checkpoints."""

import io
import sys
from pathlib import Path

import datasets
import pytest
import torch
import yaml
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForMaskedLM

import hf_dparallel
from hf_dparallel import DiffusionGenerationConfig, demo
from hf_dparallel.data.trajectories import generate_trajectories
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel_cli.loading import load_split

from ..helpers import (
    make_llada,
    make_modernbert,
    make_prompts,
    make_sdar,
    make_tokenizer,
    read_json,
    read_jsonl,
    save_two_students,
    write_jsonl,
)
from .helpers import DECODING, answer, last_line


TRAINING = ["--max_length", "16", "--block_length", "4", "--report_to", "none", "--use_cpu", "--logging_steps", "1"]


def test_env(hf, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.15.0+cu132")
    code, out, _ = hf("env")
    names = {"transformers", "peft", "trl", "datasets", "accelerate", "python", "cpu_count", "gpus", "bf16_on_gpu"}
    assert code == 0 and names <= {line.split()[1].rstrip(":") for line in out.splitlines()}
    assert "- torch: 2.15.0+cu132" in out and f"- hf_dparallel: {hf_dparallel.__version__}" in out


def test_demo_passes_its_settings_on(hf, monkeypatch, tmp_path):
    seen = []

    def run_demo(config):
        seen.append(config)
        return {"rows": [{"method": "original"}]}

    monkeypatch.setattr("hf_dparallel.demo.pipeline.run_demo", run_demo)
    (tmp_path / "demo.yaml").write_text("seed: 3\nnum_problems: 7\n")
    code, *_ = hf("demo", "--config", "demo.yaml", "--output_dir", "out", "--num_problems", 5, "--json", "demo.json")
    assert code == 0
    assert (seen[0].output_dir, seen[0].seed, seen[0].num_problems) == ("out", 3, 5)
    assert read_json("demo.json") == {"rows": [{"method": "original"}]}


def test_generate(hf, checkpoint):
    code, out, err = hf("generate", checkpoint, "5 6", *DECODING, "--json", "g.json")
    figures = read_json("g.json")
    assert code == 0 and (figures["text"], figures["nfe"]) == answer(checkpoint, "5 6")
    assert figures["tokens_per_forward"] > 0 and figures["latency_s"] > 0
    assert out == figures["text"] + "\n"
    assert last_line(err).startswith(f"{figures['nfe']} forward passes, ")


@pytest.mark.parametrize("make", [make_sdar, make_modernbert])
def test_generate_inspect_and_chat_show_one_answer(hf, make, monkeypatch, tmp_path):
    """With the blocks and the cache that a model has by default; ModernBERT is of another class."""
    make().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    text, nfe = answer(str(tmp_path / "model"), "5 6 7", max_new_tokens=9, block_length=None)
    decoding = ["--max_new_tokens", "9", "--entropy_threshold", "1.0"]
    assert hf("generate", "model", "5 6 7", *decoding, "--stream", "--json", "g.json")[:2] == (0, text + "\n")
    assert read_json("g.json")["nfe"] == nfe
    code, out, _ = hf("inspect", "model", "5 6 7", *decoding)
    assert code == 0 and out.startswith(f"{nfe} passes, ")
    monkeypatch.setattr(sys, "stdin", io.StringIO("5 6 7"))
    assert hf("chat", "model", *decoding)[:2] == (0, text + "\n")


def test_how_a_model_is_loaded(hf, checkpoint, monkeypatch):
    def from_pretrained(name, **given):
        seen.update(given)
        return make_llada()

    seen = {}
    monkeypatch.setattr("hf_dparallel_cli.loading.AutoModelForMaskedLM.from_pretrained", from_pretrained)
    flags = ["--device", "cpu", "--attn_implementation", "eager", "--revision", "v1", "--dtype", "bfloat16"]
    ask = ["generate", checkpoint, "5", *DECODING]
    assert hf(*ask, *flags)[0] == 0 and seen.pop("device_map") == "cpu"
    expected = {"attn_implementation": "eager", "revision": "v1", "dtype": "bfloat16", "trust_remote_code": False}
    assert seen == expected
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    code, _, err = hf(*ask, "--load_in_4bit")
    assert code == 1 and "`pip install bitsandbytes`" in err


def test_generate_reads_stdin_and_streams(hf, checkpoint, monkeypatch):
    flags = ["generate", checkpoint, *DECODING]
    expected = hf(*flags, "5 6")[1]
    monkeypatch.setattr(sys, "stdin", io.StringIO("5 6\n"))
    assert hf(*flags)[1] == expected
    # Wherever it stands; a switch has no value.
    model, *settings = flags[1:]
    for words in ([model, *settings, "--stream", "5 6"], [model, "5 6", *settings]):
        assert hf("generate", *words)[:2] == (0, expected)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "`prompt` is empty" in hf(*flags)[2]


def test_generate_raw_leaves_the_chat_template_out(hf, checkpoint):
    flags = ["generate", checkpoint, *DECODING]
    assert hf(*flags, "<s> 5 6", "--raw")[1] == hf(*flags, "5 6")[1]
    assert any(hf(*flags, p, "--raw")[1] != hf(*flags, p)[1] for p in ("5 6", "7", "8 9"))


def test_evaluate(hf, asked):
    code, out, _ = hf("evaluate", *asked, *DECODING, "--num_samples", 6, "--json", "e.json")
    figures = read_json("e.json")
    assert code == 0
    assert {"accuracy", "nfe", "tokens_per_forward", "latency_s", "num_prompts", "dataset"} <= set(figures)
    assert figures["num_prompts"] == 6 and figures["accuracy"] == 0.5
    assert figures["recipe"]["entropy_threshold"] == 1.0
    header, _, row = out.splitlines()
    assert "Passes" in header and "Speed-up" not in header
    assert row.startswith("| entropy_threshold 1.0 |") and "50.0% [" in row


def test_sweeps(hf, asked):
    flags = [*asked, *DECODING]
    sweeps = ["--sweep", "entropy_threshold=1,2,3", "--sweep", "denoising_steps=8,4"]
    code, out, _ = hf("evaluate", *flags, *sweeps, "--output_dir", "a", "--json", "a.json")
    assert code == 0 and read_json("a.json") == read_json("a/report.json")
    rows = read_json("a/report.json")["rows"]
    methods = [f"entropy_threshold {n}.0" for n in (1, 2, 3)] + ["denoising_steps 8", "denoising_steps 4"]
    assert [row["method"] for row in rows] == methods
    assert [row["nfe"] for row in rows[3:]] == [8, 4] and rows[0]["nfe"] > rows[2]["nfe"]
    assert rows[3]["recipe"] == {"max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}
    assert out.splitlines()[2].startswith("| entropy_threshold 1.0 |") and Path("a/curves.png").is_file()

    assert hf("evaluate", *flags, "--batch_size", "3", "--output_dir", "b")[0] == 0
    assert read_json("b/report.json")["rows"][-1]["nfe"] == rows[0]["nfe"]  # whatever the batch


def test_calibrate(hf, asked):
    flags = [*asked[1:], "--max_new_tokens", "8", "--block_length", "4", "--output_dir", "out"]
    loosely = ["calibrate", *asked[:1], *flags, "--max_accuracy_drop", "0.9", "--confidence", "0.5"]
    code, out, _ = hf(*loosely, "--sweep", "entropy_threshold=1,3", "--json", "c.json")
    figures = read_json("c.json")
    assert code == 0 and len(figures["trials"]) == 2 and figures["num_prompts"] == 8
    recipe = DiffusionGenerationConfig.from_pretrained("out")
    assert (recipe.max_new_tokens, recipe.block_length) == (8, 4)
    assert figures["settings"] == {"entropy_threshold": recipe.entropy_threshold}
    assert f"entropy_threshold {recipe.entropy_threshold} keeps the accuracy" in out
    assert figures["max_accuracy_drop"] == 0.9
    code, _, err = hf("calibrate", *asked[:1], *flags)
    assert code == 1 and "here 4. Fewer than 230 cannot show" in err and "Give 460 prompts or more" in err


def test_the_reference_of_a_calibration_is_plain(hf, tmp_path, checkpoint, questions, monkeypatch):
    """Whatever the model's own recipe says of caches, draws and open blocks."""
    model = AutoModelForMaskedLM.from_pretrained(checkpoint)
    model.generation_config = DiffusionGenerationConfig(
        max_new_tokens=8, block_length=4, cache_implementation="dual", temperature=0.7, max_active_blocks=2
    )
    model.save_pretrained(tmp_path / "cached")
    make_tokenizer().save_pretrained(tmp_path / "cached")
    seen = []

    def evaluate_answers(answerer, dataset, *args):
        seen.append(answerer.config)
        is_right = answerer.config.entropy_threshold != 3
        return Evaluation([is_right] * len(dataset), [DecodingCost(4, 8, 8)] * len(dataset), seconds=1.0)

    flags = [tmp_path / "cached", "--dataset", questions, "--prompt_column", "question"]
    flags += ["--sweep", "entropy_threshold=0.5", "--max_accuracy_drop", "0.9", "--output_dir", "out"]
    monkeypatch.setattr("hf_dparallel.evaluation.decoding.evaluate_answers", evaluate_answers)
    assert hf("calibrate", *flags)[0] == 0
    reference, candidate = seen[:2]
    assert reference.denoising_steps == 8 and reference.cache_implementation == "none"
    assert reference.temperature == 0 and reference.max_active_blocks == 1
    assert candidate.cache_implementation == "dual" and candidate.max_active_blocks == 2
    assert DiffusionGenerationConfig.from_pretrained("out").cache_implementation == "dual"
    code, _, err = hf("calibrate", *flags, "--sweep", "entropy_threshold=3", "--output_dir", "none")
    assert code == 1 and not list(Path("none").iterdir())
    assert "No setting was confirmed, on 4 prompts, to lose at most 90 points" in last_line(err)


def test_a_calibration_keeps_the_accuracy_of_the_teacher(hf, tmp_path, questions, monkeypatch):
    """Not that of the student at one token per pass, which may have lost most of it."""
    save_two_students(tmp_path)
    rates = {"teacher": 1.0, "student": 0.25, "student, entropy_threshold 3.0": 1.0}
    decoded = []

    def evaluate_answers(answerer, dataset, reward, description):
        layer = next(module for module in answerer.model.modules() if isinstance(module, BaseTunerLayer))
        who = "teacher" if layer.disable_adapters else "student"
        decoded.append((who, answerer.config.denoising_steps))
        number = round(len(dataset) * rates.get(f"{who}, {description.partition(', ')[2]}", rates[who]))
        is_correct = [row < number for row in range(len(dataset))]
        return Evaluation(is_correct, [DecodingCost(4, 8, 8)] * len(dataset), seconds=1.0)

    monkeypatch.setattr("hf_dparallel.evaluation.decoding.evaluate_answers", evaluate_answers)
    flags = ["--dataset", questions, "--prompt_column", "question", "--max_new_tokens", "8", "--block_length", "4"]
    flags += ["--max_accuracy_drop", "0.7", "--confidence", "0.5", "--output_dir", "out", "--json", "c.json"]
    for how in ([tmp_path / "dparallel"], [tmp_path / "base", "--adapter", tmp_path / "dparallel"]):
        code, out, err = hf("calibrate", *how, *flags, "--sweep", "entropy_threshold=1")
        assert code == 1 and "70 points of the accuracy of the base model without its adapter" in last_line(err)
        assert "entropy_threshold 1.0: 4.0 passes, accuracy 100.0% -> 25.0% on half 1" in out
        assert decoded == [("teacher", 8), ("student", None)]
        decoded.clear()

    code, out, _ = hf("calibrate", *how, *flags, "--sweep", "entropy_threshold=3")
    assert code == 0 and [who for who, _ in decoded] == ["teacher", "student"] * 2
    assert "keeps the accuracy of the base model without its adapter" in out and "100.0% -> 100.0% on half 2" in out
    figures = read_json("c.json")
    assert figures["reference"] == "the base model without its adapter, one token per pass"
    assert figures["reference_accuracy"] == figures["accuracy"] == {"calibration": 1.0, "confirmation": 1.0}


def test_a_calibration_says_that_a_model_without_an_adapter_is_its_own_reference(hf, asked):
    flags = ["--max_new_tokens", "8", "--block_length", "4", "--max_accuracy_drop", "0.9", "--confidence", "0.5"]
    code, out, _ = hf("calibrate", *asked, *flags, "--output_dir", "out", "--json", "c.json")
    assert code == 0 and "that of the model itself, one token per pass" in out and "There is no adapter" in out
    assert read_json("c.json")["reference"] == "the model itself, one token per pass"


@pytest.mark.parametrize(("dtype", "merged"), [("float32", True), ("bfloat16", False)])
def test_an_evaluation_merges_an_adapter_where_that_changes_no_answer(
    hf, tmp_path, questions, monkeypatch, dtype, merged
):
    def evaluate_answers(answerer, *args):
        seen.append(answerer.model.model.layers[0].self_attn.q_proj.merged)
        return Evaluation([True], [DecodingCost(4, 8, 8)], seconds=1.0)

    seen: list[bool] = []
    save_two_students(tmp_path)
    monkeypatch.setattr("hf_dparallel.evaluation.decoding.evaluate_answers", evaluate_answers)
    flags = ["--dataset", questions, "--prompt_column", "question", "--dtype", dtype, *DECODING]
    code, _, err = hf("evaluate", tmp_path / "base", "--adapter", tmp_path / "dparallel", *flags)
    assert (code, seen, "The adapter is merged" in err) == (0, [merged], merged)


def test_inspect_writes_a_page_of_the_decode_of_generate(hf, checkpoint):
    flags = [checkpoint, "5 6", "--temperature", "1.0", *DECODING]
    assert hf("generate", *flags, "--json", "g.json")[0] == 0
    code, out, err = hf("inspect", *flags, "--output_file", "out/page.html")
    assert code == 0, err
    nfe = read_json("g.json")["nfe"]
    assert out.startswith(f"{nfe} passes, ") and out.endswith(" Page: out/page.html\n")
    page = Path("out/page.html").read_text()
    assert f'"name":"{checkpoint}"' in page and f'"nfe":{nfe},' in page


def test_trajectories(hf, questions, asked):
    flags = ["trajectories", *asked, *DECODING, "--output_dir", "out"]
    code, out, _ = hf(*flags)
    kept = datasets.Dataset.from_parquet("out/filtered.parquet")
    assert code == 0 and out.startswith("4 of 8 answers were kept, 0 prompts failed. ")
    assert "passes for each answer. Written to out/filtered.parquet.\n" in out
    assert kept["answer"][:] == [row["answer"] for row in read_jsonl(questions)[1::2]]
    assert kept[0]["prompt"] == [{"role": "user", "content": "1 5 2"}] and kept[0]["completion_ids"]
    # Trained on are the rows that were kept.
    assert load_split("out")[:] == kept[:]
    assert hf(*flags, "--reward", "none")[0] == 0 and len(load_split("out")) == 8


def test_an_infilled_prompt_is_the_answer(hf):
    prompt = "We start with 5. Then we take 3 away: 5 - 3 = <|mdm_mask|>. The answer is <|mdm_mask|>."
    code, out, err = hf("generate", "demo", prompt, "--raw", "--max_new_tokens", 0)
    assert (code, out.strip()) == (0, prompt.replace("<|mdm_mask|>", "2"))
    assert "Empty" not in err


def test_trajectories_that_are_all_wrong_are_1(hf, checkpoint, tmp_path):
    dataset = write_jsonl(tmp_path / "wrong.json", [{"messages": [{"role": "user", "content": "5"}], "answer": "-1"}])
    code, out, err = hf("trajectories", checkpoint, "--dataset", dataset, "--output_dir", "out", *DECODING)
    assert code == 1 and not out
    assert "error: None of 1 trajectories has a reward of at least `min_reward=1.0`" in last_line(err)
    # What an earlier reward has kept does not stay.
    flags = ("trajectories", checkpoint, "--dataset", dataset, "--output_dir", "out", *DECODING)
    assert hf(*flags, "--reward", "none")[0] == 0 and Path("out/filtered.parquet").is_file()
    assert hf(*flags)[0] == 1 and not Path("out/filtered.parquet").exists()


def test_train_then_decode_with_the_adapter(hf, checkpoint, completions, tmp_path):
    config = {"model_name_or_path": checkpoint, "dataset_name": completions, "use_peft": True, "lora_r": 4}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config | {"learning_rate": "1e-2", "num_train_epochs": 9}))
    flags = ["train", "--config", "train.yaml", "--output_dir", "out", *TRAINING]
    code, out, err = hf(*flags, "--num_train_epochs", "2")
    adapter = read_json("out/adapter_config.json")
    assert code == 0, err
    assert out.endswith("\nNext: hf-dparallel chat out\n") and "total_flos" not in out
    figures = {line.split()[0]: line.split()[1] for line in out.splitlines()[:-2]}
    assert {"loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy"} <= set(figures)
    assert figures["epoch"] == "2" and adapter["r"] == 4 and adapter["task_type"] is None
    code, _, err = hf(*flags)
    assert code == 1 and "`output_dir=out` holds a model already" in last_line(err)
    assert "--resume_from_checkpoint true" in last_line(err) and read_json("out/adapter_config.json") == adapter
    again = hf("train", "out", "--dataset_name", completions, "--output_dir", "more", *TRAINING)
    assert again[0] == 1 and "`model=out` is an adapter already. Give its base model." in again[2]

    base = hf("generate", checkpoint, "5 6", *DECODING)[1]
    student = hf("generate", checkpoint, "--adapter", "out", "5 6", *DECODING)
    by_adapter = hf("generate", "out", "5 6", *DECODING)
    assert student[0] == by_adapter[0] == 0
    assert student[1] == by_adapter[1] != base


def test_train_resumes_and_evaluates_without_long_rows(hf, checkpoint, tmp_path, caplog):
    rows = [{"prompt": "5", "completion": "6 7"}] * 2 + [{"prompt": "5", "completion": "6 " * 20}]
    dataset = write_jsonl(tmp_path / "rows.jsonl", rows)
    flags = ["train", checkpoint, "--dataset_name", dataset, "--output_dir", "out", *TRAINING]
    flags += ["--per_device_train_batch_size", "1"]
    code, _, err = hf(*flags, "--max_length", "1")
    assert code == 1 and "All rows of `train_dataset` are longer than max_length=1" in last_line(err)
    code, _, err = hf(*flags, "--eval_strategy", "epoch")
    assert code == 1 and 'Unknown split "test". Should be one of' in last_line(err)

    flags += ["--save_steps", "2", "--eval_strategy", "epoch", "--dataset_test_split", "train"]
    code, out, err = hf(*flags, "--num_train_epochs", "1")
    assert code == 0 and "1 of 3 rows of `eval_dataset` are left out" in caplog.text and "eval_loss" in out
    # As a run that was killed leaves it.
    for path in Path("out").glob("*.*"):
        path.unlink()
    code, _, err = hf(*flags, "--num_train_epochs", "1")
    assert code == 1 and "`output_dir=out` holds checkpoints already" in last_line(err)
    code, out, err = hf(*flags, "--num_train_epochs", "2", "--resume_from_checkpoint", "true")
    assert code == 0 and read_json("out/checkpoint-4/trainer_state.json")["global_step"] == 4


def test_demo_names_the_bundled_model_and_problems(hf, monkeypatch, checkpoint):
    monkeypatch.setitem(demo.NAMES, "demo", checkpoint)
    flags = ["demo", "--dataset", "demo", *DECODING]
    assert hf("evaluate", *flags, "--num_samples", "3", "--json", "e.json")[0] == 0
    assert read_json("e.json")["num_prompts"] == 3
    assert hf("trajectories", *flags, "--num_samples", "2", "--reward", "none", "--output_dir", "out")[0] == 0
    assert load_split("out")["prompt"][0] == demo.word_problem_dataset(1, seed=0)["prompt"][0]
    flags = ["demo", "--dataset_name", "out/filtered.parquet", "--max_steps", "1", *TRAINING]
    assert hf("train", *flags, "--max_length", "64")[0] == 0


@pytest.mark.parametrize("flags", [["demo-student"], ["demo", "--adapter", "demo-student"]])
def test_the_bundled_student_by_its_name(hf, flags):
    question = "Mia has 14 pens. Then Mia finds 6 more. Later Mia sells 5 pens. How many pens are left?"
    code, out, _ = hf("generate", *flags, question, "--json", "g.json")
    assert code == 0 and "The answer is 15" in out
    assert read_json("g.json")["nfe"] < 20  # with its recipe


def test_data_as_others_have_them(hf, checkpoint, questions, asked, tmp_path):
    expected = hf("evaluate", *asked, *DECODING)[1]
    rows = [
        {
            "conversations": [{"from": "human", "value": row["question"]}, {"from": "gpt", "value": "9"}],
            "answer": "no",
            "gold": row["answer"],
        }
        for row in read_jsonl(questions)
    ]
    dataset = write_jsonl(tmp_path / "rows.jsonl", rows)
    found = hf("evaluate", checkpoint, "--dataset", dataset, "--answer_column", "gold", *DECODING)
    assert found[0] == 0 and found[1].split("Latency")[0] == expected.split("Latency")[0]


def test_the_cluster_loads_the_model_and_this_process_filters(hf, checkpoint, monkeypatch, tmp_path):
    asked = {}

    def on_ray(load, dataset, generation_config, batch_size, output_dir, seed, **of_cluster):
        asked.update(of_cluster)
        return generate_trajectories(*load(), dataset, generation_config, batch_size, output_dir, seed)

    monkeypatch.setattr("hf_dparallel.data.on_ray.generate_trajectories_on_ray", on_ray)
    make_prompts(3).to_parquet(tmp_path / "prompts.parquet")
    command = ["trajectories", checkpoint, "--dataset", "prompts.parquet", "--output_dir", "out", "--reward", "none"]
    code, out, _ = hf(*command, *DECODING, "--raw", "--ray_actors", "5")
    assert code == 0 and out.startswith("3 of 3 answers were kept")
    assert asked == {"max_actors": 5}
    assert len(datasets.Dataset.from_parquet("out/filtered.parquet")) == 3
