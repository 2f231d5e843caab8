# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The paper's benchmarks and methods: settings, prompts, scores and tables."""

import itertools
import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from examples.paper.__main__ import main
from examples.paper.presets import METHODS, PRESETS, choose_benchmarks, method_settings
from examples.paper.tables import TASKS_FOLDER, Comparison
from examples.paper.tasks.chat_answers import complete_from_chat, extract_from_chat

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.intervals import wilson_interval
from hf_dparallel.evaluation.lm_eval import DiffusionHarnessLM
from hf_dparallel.generation.configuration import resolve
from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.generation.mixin import DiffusionGenerationMixin

from .evaluation.lm_eval.helpers import DATASETS, make_lm
from .helpers import make_llada, make_tokenizer, read_json, read_jsonl, save_two_students


COMMON = {"max_new_tokens": 256, "block_length": 32, "stop_at_eos": False}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("original", {"denoising_steps": 256}),
        ("dual-cache", {"denoising_steps": 256, "cache_implementation": "dual"}),
        ("few-step", {"denoising_steps": 64}),
        ("conf-threshold", {"confidence_threshold": 0.9}),
        ("consistency-distillation", {"denoising_steps": 64}),
    ],
)
def test_methods_are_those_of_the_paper(method, settings):
    preset = PRESETS["paper-llada"]
    for benchmark in preset.benchmarks:
        assert method_settings(method, preset, benchmark) == COMMON | settings
    dream = PRESETS["paper-dream"]
    if method == "original":
        settings = settings | {"block_length": 256, "do_sample": True, "temperature": 0.1, "top_p": 0.9}
    assert method_settings(method, dream, dream.benchmarks[0]) == COMMON | settings


@pytest.mark.parametrize(
    ("preset", "thresholds", "shots"),
    [("paper-llada", [0.5, 0.5, 0.5, 0.45], [0, 4, 0, 3]), ("paper-dream", [0.45, 0.45, 0.5, 0.5], [0, 0, 0, 0])],
)
def test_thresholds_and_examples_are_those_of_the_paper(preset, thresholds, shots):
    benchmarks = PRESETS[preset].benchmarks
    settings = [method_settings("dparallel", PRESETS[preset], benchmark) for benchmark in benchmarks]
    assert settings == [COMMON | {"entropy_threshold": threshold} for threshold in thresholds]
    groups = [(TASKS_FOLDER / f"{preset}-{benchmark.task}.yaml").read_text() for benchmark in benchmarks]
    assert [int(re.search(r"num_fewshot: (\d)", group)[1]) for group in groups] == shots


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("changes", [{}, {"max_new_tokens": 64, "block_length": 16}])
def test_all_settings_can_be_decoded_with(preset, changes, tiny_llada):
    for method, benchmark in itertools.product(METHODS, PRESETS[preset].benchmarks):
        settings = method_settings(method, PRESETS[preset], benchmark, changes)
        assert settings.items() >= changes.items()
        resolve(tiny_llada, **settings)


def test_benchmarks_are_chosen_by_task():
    assert [b.task for b in choose_benchmarks("paper-dream", ["mbpp_instruct"])] == ["mbpp_instruct"]
    with pytest.raises(ValueError, match="paper-llada. has the tasks gsm8k_cot_zeroshot.*and not mbpp_instruct"):
        choose_benchmarks("paper-llada", ["mbpp_instruct"])


def read_rows(path: str) -> list[dict]:
    return [json.loads(line) for line in (DATASETS / path).read_text().splitlines()]


def right_answers(task: str) -> list[str]:
    """What a model that knows everything answers in a chat, in the order of the samples."""
    if task == "gsm8k_cot_zeroshot":
        answers = [row["answer"].split("#### ")[1] for row in read_rows("openai/gsm8k/main/test.jsonl")]
        return [rf"So it is \boxed{{{answer}}}." for answer in answers]
    if task == "minerva_math":
        # In the order of the group's tasks.
        names = "algebra counting_and_probability geometry intermediate_algebra number_theory prealgebra precalculus"
        return [read_rows(f"EleutherAI/hendrycks_math/{name}/test.jsonl")[0]["solution"] for name in names.split()]
    if task.startswith("humaneval"):
        rows = read_rows("openai/openai_humaneval/openai_humaneval/test.jsonl")
        if task == "humaneval":
            return [f"Sure:\n```python\n{row['prompt']}{row['canonical_solution']}```\nDone." for row in rows]
        return [f"{row['canonical_solution']}```" for row in rows]
    rows = read_rows("google-research-datasets/mbpp/full/test.jsonl")
    return [f"```python\n{row['code']}\n```" if task == "mbpp" else f"{row['code']}\n```" for row in rows]


def script_answers(monkeypatch, answers: list[str]):
    """The model of the harness gives these answers, in the order in which it is asked."""
    remaining = iter(answers)

    def decode(lm, config, until, prompts):
        steps = config.denoising_steps or 8
        for name in prompts:
            yield name, next(remaining), DecodingCost(steps, 13, 12, steps / 100)

    monkeypatch.setattr(DiffusionHarnessLM, "_decode", decode)
    # To the tiny tokenizer all words are the same.
    monkeypatch.setattr(DiffusionHarnessLM, "tok_encode", lambda lm, text, **kwargs: list(text.encode()))


@pytest.mark.usefixtures("_in_datasets", "_few_tasks")
@pytest.mark.parametrize("preset", [pytest.param("paper-llada", marks=pytest.mark.slow), "paper-dream"])
def test_right_answers_to_the_benchmarks_are_right(monkeypatch, tmp_path, preset):
    benchmarks = choose_benchmarks(preset)
    answers = [answer for benchmark in benchmarks for answer in right_answers(benchmark.task)]
    wrong = ["I do not know."] * len(answers)
    script_answers(monkeypatch, answers + wrong[:-1] + answers[-1:])
    methods, options = ["original", "few-step"], {"apply_chat_template": True, "confirm_run_unsafe_code": True}
    comparison = Comparison("tiny", tmp_path, preset, benchmarks, methods, {"max_new_tokens": 64}, **options)
    lm = make_lm()
    for method in methods:
        comparison.measure(lm, method)
    rows = comparison.rows()
    assert [(row["title"], row["accuracy"]) for row in rows] == [
        *[("Original", 1.0), ("Few-step Decoding", 0.0)] * 3,
        *[("Original", 1.0), ("Few-step Decoding", 0.5)],
    ]
    # As for all other accuracies; the last one is one of two.
    scores = [[1] * 3, [0] * 3, [1] * 7, [0] * 7, [1] * 2, [0] * 2, [1] * 2, [0, 1]]
    assert [row["accuracy_interval"] for row in rows] == [
        list(wilson_interval(fmean(values), len(values))) for values in scores
    ]
    assert [row["num_samples"] for row in rows[::2]] == [3, 7, 2, 2]
    few_step = rows[1]
    assert (few_step["nfe"], few_step["speedup"]) == (16, pytest.approx(4.0))
    assert few_step["answer_tokens_per_forward"] == 12 / 16
    assert json.loads((tmp_path / "report.json").read_text())["rows"] == json.loads(json.dumps(rows))
    report = (tmp_path / "report.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("###")] == [f"### {b.title}" for b in benchmarks]
    assert report.count("| Original ") == report.count("| Few-step Decoding |") == 4
    check_reports(tmp_path, preset, [benchmark.task for benchmark in benchmarks])
    check_prompts(preset, tmp_path / "original" / "tiny")


def check_reports(folder: Path, preset: str, tasks: list[str]) -> None:
    """Each benchmark has a report with what its figures depend on."""
    first = read_json(folder / tasks[0] / "report.json")
    asked = {"preset": preset, "task": tasks[0], "system_instruction": None, "fewshot_as_multiturn": False}
    assert first["conditions"].items() >= {**asked, "max_new_tokens": 64, "num_samples": 3}.items()
    assert first["hardware"].items() >= {"batch_size": 1, "dtype": "torch.float32", "num_processes": 1}.items()


def prompt_of(folder: Path, task: str) -> str:
    (file,) = folder.glob(f"samples_{task}_2*.jsonl")
    return json.loads(file.read_text().splitlines()[0])["arguments"]["gen_args_0"]["arg_0"]


@pytest.mark.usefixtures("_in_datasets", "_few_tasks")
@pytest.mark.parametrize("method", ["original", "dparallel"])
def test_a_row_is_decoded_with_the_settings_of_its_method_alone(monkeypatch, tmp_path, method):
    recipe = {"cache_implementation": "dual", "cache_refresh_interval": 3, "entropy_threshold": 9.0}
    recipe |= {"do_sample": True, "temperature": 2.0, "stop_strings": ["27"], "eos_token_id": [1, 5]}
    decoders, rows = [], []

    def make_decoder(model, config, *args, **kwargs):
        decoders.append(config)
        return Decoder(model, config, *args, **kwargs)

    monkeypatch.setattr(DiffusionGenerationMixin, "make_decoder", make_decoder)
    for settings in ({"eos_token_id": [1, 5]}, recipe | {"max_active_blocks": 2, "block_add_threshold": 0.1}):
        model = make_llada()
        model.generation_config = DiffusionGenerationConfig(**settings)
        benchmarks = choose_benchmarks("paper-llada", ["gsm8k_cot_zeroshot"])
        changes = {"max_new_tokens": 16, "block_length": 8}
        given = ("tiny", tmp_path, "paper-llada", benchmarks, [method], changes)
        comparison = Comparison(*given, apply_chat_template=True)
        comparison.measure(DiffusionHarnessLM(model, tokenizer=make_tokenizer(), batch_size=2), method)
        rows += comparison.rows()
    assert decoders[0] == decoders[1]
    assert rows[0]["nfe"] == rows[1]["nfe"] and rows[0]["num_tokens"] == rows[1]["num_tokens"]
    assert decoders[0].cache_implementation == "none" and decoders[0].max_active_blocks == 1
    assert decoders[0].eos_token_ids == [1, 5] and decoders[0].temperature == 0


def check_prompts(preset: str, folder: Path) -> None:
    """One turn of the user, with what the published scripts ask."""
    gsm8k, math = prompt_of(folder, "gsm8k_cot_zeroshot"), prompt_of(folder, "minerva_math_algebra")
    assert gsm8k.count("<s>") == math.count("<s>") == 1
    if preset == "paper-llada":
        assert gsm8k.strip().endswith(
            "Answer: Please reason step by step, and put your final answer within \\boxed{}."
        )
        assert math.count("Problem:") == 5
        assert "make sure that it passes the tests:\n```python\ndef double" in prompt_of(folder, "humaneval")
        mbpp = prompt_of(folder, "mbpp")
        assert mbpp.count("<s>") == 1 and mbpp.count("You are an expert Python programmer") == 4
    else:
        assert gsm8k.strip().endswith("A: Let's think step by step.")
        assert math.count("Problem:") == 1
        assert "Here is the completed function:\n```python" in prompt_of(folder, "humaneval_instruct")
        mbpp = prompt_of(folder, "mbpp_instruct")
        assert mbpp.count("You are an expert Python programmer") == 1 and mbpp.rstrip().endswith("```python")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """A checkpoint and two adapters."""
    folder = tmp_path_factory.mktemp("paper")
    save_two_students(folder)
    return folder


@pytest.fixture
def measure(checkpoints, tmp_path):
    """Runs `python -m examples.paper`; returns the rows of its report, and what it printed."""

    def run(*argv, model="base"):
        where = ["--model", checkpoints / model, "--output_dir", tmp_path]
        done = CliRunner().invoke(main, [*map(str, where), *map(str, argv)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return read_json(tmp_path / "report.json")["rows"], done.output

    return run


SHORT = ("--tasks", "gsm8k_cot_zeroshot", "--gen_kwargs", "max_new_tokens=16,block_length=8")


@pytest.mark.usefixtures("_few_tasks", "_in_datasets")
def test_the_methods_of_the_paper_beside_one_another(measure, checkpoints, tmp_path):
    adapters = ("--adapter", checkpoints / "dparallel", "--consistency_adapter", checkpoints / "consistency")
    rows, out = measure("--preset", "paper-llada", "--methods", ",".join(METHODS), *adapters, *SHORT)
    assert "### GSM8K-CoT (0-shot)" in out and [row["method"] for row in rows] == list(METHODS)
    nfe = {row["method"]: row["nfe"] for row in rows}
    assert (nfe["original"], nfe["dual-cache"], nfe["few-step"], nfe["consistency-distillation"]) == (16, 16, 4, 4)
    assert read_texts(tmp_path, "few-step") != read_texts(tmp_path, "consistency-distillation")


def read_texts(folder, method) -> list:
    (file,) = (folder / method).rglob("samples_*.jsonl")
    return [row["resps"] for row in read_jsonl(file)]


@pytest.mark.usefixtures("_few_tasks", "_in_datasets")
def test_a_preset_alone_decodes_the_model_as_it_is_given(measure):
    tasks = ("--tasks", "humaneval_instruct", "--gen_kwargs", "max_new_tokens=32")
    (row,), _ = measure("--preset", "paper-dream", *tasks, "--limit", "1", model="dparallel")
    assert (row["method"], row["num_samples"], row["accuracy"]) == ("dparallel", 1, 0.0)
    assert row["settings"]["entropy_threshold"] == 0.5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--gen_kwargs entropy_threshold=1", "Remove entropy_threshold"),
        ("--methods orginal", "`methods` must be among original"),
        ("--methods original,dparallel", "which needs an adapter. Add --adapter"),
        ("--methods dparallel --adapter ./no", "./no"),
        ("--tasks mbpp_instruct", "and not mbpp_instruct"),
        ("--limit nan", "`limit` must be above 0 and finite, got nan"),
        ("--methods original --adapter ./no", "Add dparallel to --methods, or leave it out"),
        ("--methods original --consistency_adapter ./no", "Add consistency-distillation to --methods"),
        ("--consistency_adapter ./no", "Add consistency-distillation to --methods"),
    ],
)
@pytest.mark.usefixtures("_few_tasks")
def test_mistakes_are_named_before_the_model_is_loaded(monkeypatch, tmp_path, argv, message):
    monkeypatch.setattr("examples.paper.__main__.DiffusionHarnessLM", lambda *args: pytest.fail("loads the model"))
    given = ["--preset", "paper-llada", "--model", "m", "--output_dir", str(tmp_path), *argv.split()]
    done = CliRunner().invoke(main, given)
    assert done.exit_code != 0 and message in f"{done.output} {done.exception}"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\na = 1\n```\nand\n```\nb\n```", "a = 1\n"),
        ("```\na = 1\n", "a = 1\n"),
        ("    return 1", None),
    ],
)
def test_programs_are_found_in_chats(answer, code):
    doc = {"prompt": "def f():\n"}
    completed = "def f():\n" + answer if code is None else f"def f():\n\n{code}"
    assert complete_from_chat([[answer]], [doc]) == [[completed]]
    assert extract_from_chat([[answer]], [doc]) == [[code or answer]]
