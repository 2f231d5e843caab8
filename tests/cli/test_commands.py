# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The command line: every command end to end on tiny random checkpoints, and how it fails."""

import dataclasses
import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import huggingface_hub
import peft
import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM

import hf_dparallel
from hf_dparallel import DiffusionGenerationConfig, cli, demo
from hf_dparallel.cli import generate_command, loading, train_command, trajectories_command
from hf_dparallel.cli.loading import load_split, load_tokenizer
from hf_dparallel.data.trajectories import generate_trajectories
from hf_dparallel.demo.pipeline import DemoConfig
from hf_dparallel.evaluation.cost import DecodingCost
from hf_dparallel.evaluation.decoding import Evaluation
from hf_dparallel_rules.settings import SETTINGS

from ..helpers import make_llada, make_prompts, make_tokenizer, read_json, read_jsonl, write_jsonl
from .helpers import DECODING, answer, write_questions


ROOT = Path(__file__).parents[2]
TRAINING = ["--max_length", "16", "--block_length", "4", "--report_to", "none", "--use_cpu", "--logging_steps", "1"]


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.fixture
def questions(tmp_path, checkpoint) -> str:
    return write_questions(tmp_path, checkpoint, [f"{number} 5 {number + 1}" for number in range(8)])


@pytest.fixture
def asked(checkpoint, questions) -> list[str]:
    return ["--model", checkpoint, "--dataset", questions, "--prompt_column", "question"]


@pytest.fixture
def completions(tmp_path) -> str:
    rows = [{"prompt_ids": [0, n + 2], "completion_ids": [n + 3, n + 4, n + 5, 1]} for n in range(20)]
    return write_jsonl(tmp_path / "completions.jsonl", rows)


# Usage


@pytest.mark.parametrize("command", [None, *cli.COMMANDS])
def test_help(hf, command):
    code, out, err = hf(*filter(None, [command]), "--help")
    assert code == 0 and not err
    # Two screens, and one more for fields of transformers.
    assert len(out.splitlines()) <= (200 if command == "train" else 106)
    if command is None:
        assert all(name in out for name in cli.COMMANDS)
    else:
        assert f"sage: hf-dparallel {command}" in out and "--config FILE" in out and "--json " in out
        assert f"Example: hf-dparallel {command} " in out


@pytest.mark.parametrize("command", [*cli.COMMANDS.values()])
def test_examples_of_help_are_right_usage(command):
    words = shlex.split(command.help.partition("Example: ")[2] or train_command.EXAMPLE.removeprefix("Example: "))
    if words[1] == "train":
        assert train_command.read_arguments(words[2:])[0].dataset_name == "runs/data"
        return
    with command.make_context(words[1], words[2:]) as ctx:
        assert ctx.obj.quiet is False


_WITHOUT_LIBRARIES = """
import sys
from hf_dparallel_cli import main
for argv in {argvs}:
    print("exit", *argv, main(argv))
print("loaded", sorted({{"torch", "transformers", "hf_dparallel", "numpy", "yaml"}} & set(sys.modules)))
"""


def test_help_and_wrong_usage_load_no_library():
    # The flags of `train` are those of its libraries.
    right = [["--help"], ["--version"], [], *([command, "--help"] for command in cli.COMMANDS if command != "train")]
    right += [["models"]]
    wrong = [["chart"], ["generate", "m", "--top_k", "x"], ["evaluate", "m", "--reward", "nice"]]
    wrong += [["chat", "m", "--top_p", "0"], ["chat", "m", "--top_p", "nan"], ["chat", "m", "--max_post_steps", "257"]]
    program = _WITHOUT_LIBRARIES.format(argvs=[*right, *wrong])
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    codes = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("exit")]
    assert codes == ["0"] * len(right) + ["2"] * len(wrong) and result.stdout.endswith("loaded []\n")


def test_without_a_command_there_is_the_overview(hf):
    assert hf() == hf("--help")


def test_the_flags_of_the_demo_are_its_settings():
    defaults = cli.COMMANDS["demo"].make_context("demo", []).obj
    for field in dataclasses.fields(DemoConfig):
        has_default = field.default not in (dataclasses.MISSING, None)
        assert getattr(defaults, field.name) == (field.default if has_default else None)


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "evaluate", "inspect", "trajectories", "push"])
def test_every_setting_of_decoding_is_a_flag(command):
    flags = [name for name, setting in SETTINGS.items() if setting.has_flag]
    assert len(flags) > 20 and set(flags) <= cli.COMMANDS[command].flags.keys()


def test_help_is_grouped_and_has_the_positional_arguments(hf):
    help_text = hf("generate", "--help")[1]
    assert (
        "Usage: hf-dparallel generate MODEL PROMPT [options]" in help_text
        and "  MODEL, or --model MODEL " in help_text
    )
    titles = re.findall(r"^(\w[\w ]+):$", help_text, flags=re.MULTILINE)
    assert titles == ["model", "prompt", "generation settings", "output", "options", "others"]
    assert "--entropy_bound" not in help_text and " entropy_bound," in help_text
    assert "--entropy_bound FLOAT" in hf("generate", "--help_all")[1]
    assert (
        "(default: 256)" in help_text
        and "default: None" not in help_text
        and "  --max_new_tokens INTEGER " in help_text
    )
    # What must be given comes first.
    pushing = hf("push", "--help")[1]
    assert pushing.index("  PATH, or --path DIR") < pushing.index("generation settings:")
    assert "[required]" in hf("calibrate", "--help")[1] and "[required]" not in pushing
    training = hf("train", "--help")[1]
    assert "--certainty_weight" in training and "--help_all" in training
    assert "--num_train_epochs" in training and "--ddp_backend" not in training
    assert "--ddp_backend {nccl," in hf("train", "--help_all")[1]


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ("generat", "Did you mean 'generate'?"),
        ("generate m --entropy_treshold 1", "Did you mean `entropy_threshold`?"),
        ("generate m --entropy-treshold=1", "Did you mean `entropy_threshold`?"),
        ("train --model n --dataset d --learning-rat 1", "Did you mean `learning_rate`?"),
        ("generate m --steps 64", "Use `denoising_steps` for `steps`."),
        ("train --model n --dataset d --use_lora", "Use `use_peft` for `use_lora`."),
        ("generate m --gen-length=64", "Use `max_new_tokens` for `gen_length`."),
        ("generate m --threshold 0.9", "Use `confidence_threshold` or `entropy_threshold` for `threshold`."),
        ("generate m --max_length 64", "Use `max_new_tokens=max_length - prompt_length` for `max_length`."),
        ("generate m --cfg_scale 1", "Remove `cfg_scale`."),
        ("evaluate demo --dataset demo --sweep threshold=0.5", "Use `confidence_threshold` or `entropy_threshold`"),
        ("train --model n --dataset d --lr 1e-4", "Use `learning_rate` for `lr`."),
        ("train --model n --dataset d --batch_size 4", "Use `per_device_train_batch_size` for `batch_size`."),
    ],
)
def test_what_was_meant(hf, argv, meant):
    code, out, err = hf(*argv.split())
    assert code == 2 and not out and meant in err


def test_completion_in_a_shell(hf, monkeypatch):
    for shell in ("bash", "zsh"):
        assert "_HF_DPARALLEL_COMPLETE=" + shell in hf("--completion", shell)[1]
    monkeypatch.setenv("_HF_DPARALLEL_COMPLETE", "bash_complete")
    cases = {
        "gen": ["plain,generate"],
        "serve demo --adap": ["plain,--adapter"],
        "generate m --top_k 3 --dtype bf": ["plain,bfloat16"],
        "generate de": ["plain,demo", "plain,demo-student"],
        "generate demo --adapter demo-": ["plain,demo-student"],
        "serve demo --adapter runs/": ["dir,runs/"],
        "calibrate demo --dataset ": ["plain,demo"],
        "export runs/stu": ["dir,runs/stu"],
        "push runs/student user/": [""],
    }
    for words, meant in cases.items():
        words = f"hf-dparallel {words}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert hf()[1].splitlines() == meant


_ASK = ["generate", "demo", "--prompt", "Mia has 3 pens.", "--max_new_tokens", "8", "--block_length", "8"]


def test_quiet_writes_errors_only(hf):
    code, _, err = hf(*_ASK, "--quiet", "--device", "cpu")
    # The bars of libraries that were imported before cannot be turned off.
    assert code == 0 and all("Loading weights" in line for line in err.split("\n") if line)
    assert "`prompt` is empty" in hf("generate", "demo", "--prompt", " ", "--quiet")[2]


def test_there_are_no_bars_and_no_noise_in_a_file():
    program = f"import sys; from hf_dparallel_cli import main; sys.exit(main({_ASK}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"(Empty answer: )?\d+ forward passes?, \d\.\d\d tokens per forward pass\n", result.stderr)


def test_output_that_nobody_reads_to_its_end():
    program = "import sys; from hf_dparallel_cli import main; sys.exit(main({}))"
    for argv in (["generate", "--help"], ["train", "--help_all"]):
        reader = subprocess.Popen(["head", "-c", "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        writer = subprocess.Popen(
            [sys.executable, "-c", program.format(argv)], stdout=reader.stdin, stderr=subprocess.PIPE
        )
        reader.stdin.close()
        assert writer.communicate()[1] == b"" and writer.returncode == 0
        reader.wait()


def test_version(hf):
    assert hf("--version")[:2] == (0, f"hf-dparallel {hf_dparallel.__version__}\n")


TRAJECTORIES = "trajectories demo --dataset demo --output_dir out"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("chart", "No such command 'chart'"),
        ("generate", "the following flags are required: --model"),
        ("generate --model m --max_tokens 8", "No such option '--max_tokens'"),
        ("generate --model m --max_new 8", "No such option '--max_new'"),
        ("generate --model m --prompt --raw", "'--prompt' requires an argument"),
        ("generate m n o p", "Unexpected arguments: 'o p'. Add the name of the flag, or put quotes around"),
        ("generate m --stream now --seed 2 o", "Unexpected arguments: 'o'"),
        ("train m --model n --dataset d", "Unexpected argument 'm'"),
        ("generate --model m --top_k x", "'--top_k': 'x' is not a valid integer"),
        ("generate m --entropy_threshold 1 --confidence_threshold 0.9", "are two commit rules"),
        ("generate --model m --block_length 0", "`block_length` must be a positive integer"),
        ("generate --model m --prompt a --prompt_file b", "Remove one"),
        ("evaluate --model m --dataset d --reward nice", "'--reward': 'nice' is not one of"),
        ("evaluate --model m", "required: --dataset, or --tasks"),
        ("inspect --model m --figures f", "`figures` needs `dataset`"),
        ("inspect --model m --dataset d", "`dataset` needs `figures`"),
        ("evaluate --model m --dataset d --batch_size 0", "'--batch_size': 0 is not in the range x>="),
        ("serve m --port 65536", "'--port': 65536 is not in the range 0<=x<=65535"),
        ("serve m --max_waiting -1", "'--max_waiting': -1 is not in the range x>="),
        ("serve m --grace_seconds -1", "'--grace_seconds': -1.0 is not in the range x>="),
        ("serve m --num_workers 2", "No such option '--num_workers'"),
        ("serve m --seed 1", "No such option '--seed'"),
        ("trajectories --model m --dataset d", "required: --output_dir"),
        (f"{TRAJECTORIES} --ray_actors 0", "'--ray_actors': 0 is not in the range x>="),
        (f"{TRAJECTORIES} --ray_actors 1 --ray_gpus_per_actor -1", "'--ray_gpus_per_actor': -1.0 is not in the range"),
        (f"{TRAJECTORIES} --ray_gpus_per_actor 1", "`ray_gpus_per_actor` needs `ray_actors`. Add --ray_actors."),
        ("train --model m --dataset_name d --mask_ratio 2", "`mask_ratio` must be a number in"),
        ("train --model m --dataset_name d --eval_strategy now", "'now'"),
        ("train --dataset_name d", "required: --model_name_or_path/"),
        ("env --config", "'--config' requires an argument"),
        ("env --config missing.yaml", "cannot be read: [Errno 2] No such file or directory: 'missing.yaml'"),
    ],
)
def test_wrong_usage_is_2(hf, argv, message):
    (code, out, err), command = hf(*argv.split()), argv.split()[0]
    assert code == 2 and not out
    assert message in last_line(err)
    if command in cli.COMMANDS:
        assert err.count("\n") == 1 and err.startswith(f"hf-dparallel {command}: error: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("generate demo --prompt 1 --denoising_steps 161", "and at most `max_new_tokens"),
        ("evaluate demo --dataset demo --min_new_tokens 161", "`min_new_tokens` must be at most"),
        ("chat demo --max_active_blocks 2", "`max_active_blocks=2` needs a commit rule with a threshold"),
        ("serve demo --port 0 --adapter a=x a=y", "`adapter` has 'a' twice"),
        ("serve demo --port 0 --denoising_steps 1000", "`denoising_steps` must be at least"),
    ],
)
def test_settings_that_contradict_a_recipe_are_wrong_usage(hf, argv, message):
    code, out, err = hf(*argv.split())
    assert code == 2 and not out and message in last_line(err)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "must be YAML"),
        ("- model", "must be a YAML mapping"),
        ("model: m\nmax_tokens: 8\nblock: 2", "`config.yaml` has `max_tokens`, which is not a flag of this command"),
        ("model: m\nentropy_treshold: 8", "Did you mean `entropy_threshold`?"),
        ("model: m\nsteps: 8", "Use `denoising_steps` for `steps`."),
        ("model: m\nconfig: other.yaml", "`config.yaml` has `config`, which is not a flag"),
        ("model:", "`model` in `config.yaml` needs one value"),
        ("model: m\ndtype: float8", "'--dtype': 'float8' is not one of"),
        ("model: m\nprompt: [5, 6]", "`prompt` in `config.yaml` needs one value, got [5, 6]"),
        ("model: m\nstream: often", "'--stream': 'often' is not a valid boolean"),
        ("model: m\ntop_k: 2.5", "'--top_k': '2.5' is not a valid integer"),
        ("model: m\ntop_p: high", "'--top_p': 'high' is not a valid float"),
        ("model: m\nentropy_threshold: -1", "`entropy_threshold` must be a number of nats"),
    ],
)
def test_bad_files_are_2(hf, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    code, _, err = hf("generate", "--config", "config.yaml")
    assert code == 2 and message in err and err.count("\n") == 1


# Failures


@pytest.mark.parametrize(
    "command",
    [
        "generate --prompt 1",
        "evaluate --dataset questions.jsonl --prompt_column question",
        "trajectories --dataset demo --output_dir out",
        "train --dataset_name completions.jsonl",
    ],
)
@pytest.mark.parametrize("model", ["./missing", "no/such/folder"])
def test_missing_model_is_1(hf, questions, completions, command, model):
    code, out, err = hf(*command.split(), "--model", model)
    assert code == 1 and not out
    assert last_line(err).startswith(f"hf-dparallel {command.split()[0]}: error: `model")
    assert f"={model}` does not exist" in last_line(err) and "Traceback" not in err


def test_missing_hub_model_and_adapter_are_1(hf, checkpoint, monkeypatch, caplog):
    # Nobody listens there, which is found once, instead of six times for each of four files.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    # What transformers makes for an endpoint, it keeps.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
    code, _, err = hf("generate", "--model", "nobody/nothing", "--prompt", "1")
    assert code == 1 and "error: `model=nobody/nothing` is not a local folder, and cannot be loaded: " in last_line(
        err
    )
    assert "Retrying" not in err + caplog.text and not huggingface_hub.constants.HF_HUB_OFFLINE
    code, _, err = hf("export", "runs/nothing", "--engine", "sglang", "--output_dir", "exported")
    assert code == 1 and "error: `student=runs/nothing` is not a local folder, and cannot be loaded: " in last_line(
        err
    )
    code, _, err = hf("generate", "--model", "not-looked-at", "--adapter", "./nothing", "--prompt", "1")
    assert code == 1 and "`adapter=./nothing` does not exist" in last_line(err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dataset", "missing.jsonl"], "`dataset=missing.jsonl` does not exist"),
        (["--dataset", "./missing"], "`dataset=./missing` does not exist"),
        (["--dataset", "questions.jsonl", "--prompt_column", "text"], "lacks `text` (--prompt_column)"),
        (["--dataset", "questions.jsonl"], "lacks `prompt` or `messages` (or name the column"),
        (["--dataset", "texts.csv"], "Its columns are ['text']"),
        (["--dataset", "names.csv"], "`names.csv` cannot be read as a csv file"),
        (["--dataset", "empty.jsonl"], "`empty.jsonl` cannot be read as a json file"),
        (["--dataset", "texts.xlsx"], "`dataset=texts.xlsx` has an unsupported file type. Supported: .csv, "),
        (["--dataset", "./empty/"], "`dataset=./empty/` cannot be loaded: "),
        (["--dataset", "questions.jsonl", "--prompt_column", "question", "--answer_column", "gold"], "lacks `gold`"),
        (["--dataset", "blank.jsonl", "--prompt_column", "text"], "Row 1 of `dataset`: `prompt` has an empty prompt"),
        (["--dataset", "texts.jsonl"], "Add --prompt_column prompt to send each text as a user's message, or --raw"),
        (["--dataset", "questions.jsonl", "--dataset_split", "dev"], "dev"),
        (
            ["--dataset", "questions.jsonl", "--reward", "math"],
            "(or name the column of the texts: --prompt_column NAME), and `solution` for "
            "`reward=math` (or name the column of the answers: --answer_column NAME). Its columns are "
            "['question', 'answer'].",
        ),
    ],
)
def test_bad_datasets_are_1(hf, checkpoint, questions, flags, message):
    write_jsonl("texts.jsonl", [{"prompt": "1 2", "answer": 3}])
    for name, text in {"texts.csv": "text\n1 2\n", "names.csv": "prompt,my answer\n", "empty.jsonl": ""}.items():
        Path(name).write_text(text)
    Path("texts.xlsx").touch()
    Path("empty").mkdir()
    write_jsonl("blank.jsonl", [{"text": "1 2", "answer": 3}, {"text": " ", "answer": 3}])
    code, _, err = hf("evaluate", "--model", checkpoint, *flags)
    assert code == 1 and message in last_line(err)


def test_a_missing_extra_is_named_before_a_missing_column(hf, checkpoint, questions, monkeypatch):
    """Otherwise each try would name one of them, and the first remedy would be for nothing."""
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    code, _, err = hf("evaluate", checkpoint, "--dataset", "questions.jsonl", "--reward", "math")
    assert code == 1 and "`reward=math` needs math_verify: `pip install math_verify`." in last_line(err)


@pytest.mark.parametrize("sharegpt", [True, False])
def test_data_as_others_have_them(hf, checkpoint, questions, asked, tmp_path, sharegpt):
    expected = hf("evaluate", *asked, *DECODING)[1]
    rows = [
        {"messages": [{"role": "user", "content": row["question"]}], "answer": "no", "gold": row["answer"]}
        for row in read_jsonl(questions)
    ]
    if sharegpt:
        for row in rows:
            row["conversations"] = [
                {"from": "human", "value": row.pop("messages")[0]["content"]},
                {"from": "gpt", "value": "9"},
            ]
    dataset = write_jsonl(tmp_path / "rows.jsonl", rows)
    found = hf("evaluate", "--model", checkpoint, "--dataset", dataset, "--answer_column", "gold", *DECODING)
    assert found[0] == 0 and found[1].split("Latency")[0] == expected.split("Latency")[0]


def test_an_answer_column_needs_a_reward(hf, asked):
    flags = ["trajectories", *asked, "--reward", "none", "--answer_column", "answer", "--output_dir", "out"]
    code, _, err = hf(*flags)
    assert code == 1 and "`answer_column=answer` needs a `reward`" in last_line(err)


def test_math_reward_needs_chats(hf, tmp_path, checkpoint):
    dataset = write_jsonl(tmp_path / "math.jsonl", [{"prompt": "1 2", "solution": "$3$"}])
    code, _, err = hf("evaluate", "--model", checkpoint, "--dataset", dataset, "--reward", "math")
    assert code == 1 and "Add --prompt_column prompt" in last_line(err)


def test_unexpected_errors_name_their_type_and_debug_raises(hf, monkeypatch):
    def fail(config):
        raise KeyError("rows")

    monkeypatch.setattr("hf_dparallel.cli.demo_command.run_demo", fail)
    code, _, err = hf("demo")
    assert code == 1 and "hf-dparallel demo: error: KeyError: 'rows' (HF_DPARALLEL_DEBUG=1 shows the traceback)" in err
    monkeypatch.setenv("HF_DPARALLEL_DEBUG", "1")
    with pytest.raises(KeyError):
        hf("demo")


def test_interrupt_is_130(hf, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_dparallel.cli.env_command.describe_environment", interrupt)
    assert hf("env") == (130, "", "hf-dparallel env: interrupted\n")
    monkeypatch.setattr("hf_dparallel.cli.train_command.run", lambda *parsed: interrupt())
    assert hf("train", "--model", "demo", "--dataset_name", "x")[2].endswith("continue from the last checkpoint\n")
    monkeypatch.setattr("hf_dparallel.cli.trajectories_command.join_processes", interrupt)
    code, _, err = hf("trajectories", "demo", "--dataset", "demo", "--output_dir", "out")
    assert code == 130 and err.endswith("hf-dparallel trajectories: interrupted. The same command continues the run\n")
    monkeypatch.setattr("hf_dparallel.cli.evaluate_tasks.run", lambda flags: interrupt())
    tasks = ["evaluate", "demo", "--tasks", "gsm8k"]
    assert hf(*tasks)[2].endswith("hf-dparallel evaluate: interrupted\n")
    assert hf(*tasks, "--output_dir", "out")[2].endswith("interrupted. The same command continues the run\n")


# Commands


def test_env(hf, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.15.0+cu132")
    code, out, _ = hf("env", "--json", "figures/env.json")
    figures = read_json("figures/env.json")
    assert code == 0
    assert "- torch: 2.15.0+cu132" in out and f"- hf_dparallel: {hf_dparallel.__version__}" in out
    assert set(figures) >= {"transformers", "peft", "trl", "datasets", "evaluate", "accelerate", "huggingface_hub"}
    assert set(figures) >= {"python", "platform", "cpu_count", "gpus", "bf16_on_gpu"}


def test_demo_passes_its_settings_on(hf, monkeypatch, tmp_path):
    seen = []

    def run_demo(config):
        seen.append(config)
        return {"rows": [{"method": "original"}]}

    monkeypatch.setattr("hf_dparallel.cli.demo_command.run_demo", run_demo)
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


def test_how_a_model_is_loaded(hf, checkpoint, monkeypatch):
    def from_pretrained(name, **given):
        seen.update(given)
        return make_llada()

    seen = {}
    monkeypatch.setattr("hf_dparallel.cli.loading.AutoModelForMaskedLM.from_pretrained", from_pretrained)
    flags = ["--device", "cpu", "--attn_implementation", "eager", "--revision", "v1", "--dtype", "bfloat16"]
    ask = ["generate", checkpoint, "--prompt", "5", *DECODING]
    assert hf(*ask, *flags)[0] == 0 and seen.pop("device_map") == torch.device("cpu")
    expected = {"attn_implementation": "eager", "revision": "v1", "dtype": "bfloat16", "trust_remote_code": False}
    assert seen == expected
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    code, _, err = hf(*ask, "--load_in_4bit")
    assert code == 1 and "`pip install bitsandbytes`" in err
    assert hf(*ask, "--device", "nowhere")[0] == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "is not a masked language model"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}}, "needs code from its repository"),
    ],
)
def test_what_is_no_model_for_commands_is_told_in_a_line(hf, tmp_path, config, message):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = hf("generate", str(tmp_path), "5 6")
    assert code == 1 and f"`model={tmp_path}` {message}" in last_line(err) and len(last_line(err)) < 500
    assert ("`hf-dparallel convert`" in err) == (config["model_type"] == "llama")


@pytest.mark.parametrize(
    "variable, size, expected",
    [(None, 10**7, 1), ("OMP_NUM_THREADS", 10**7, 2), ("MKL_NUM_THREADS", 10**7, 2), (None, 1, 2)],
)
def test_a_small_model_shares_the_cores(hf, checkpoint, monkeypatch, variable, size, expected):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(loading, "_SMALL_MODEL", size)
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(
        generate_command,
        "answer",
        lambda *args: seen.append(torch.get_num_threads()) or {"text": "", "nfe": 1, "tokens_per_forward": 1.0},
    )
    torch.set_num_threads(2)
    try:
        hf("generate", "--model", checkpoint, "--prompt", "5 6")
        assert (seen, torch.get_num_threads()) == ([expected], 2)
    finally:
        torch.set_num_threads(before)


def test_generate_reads_files_and_stdin_and_streams(hf, checkpoint, tmp_path, monkeypatch):
    flags = ["generate", "--model", checkpoint, *DECODING]
    expected = hf(*flags, "--prompt", "5 6")[1]
    (tmp_path / "prompt.txt").write_text("5 6\n")
    assert hf(*flags, "--prompt_file", "prompt.txt")[1] == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO("5 6\n"))
    assert hf(*flags)[1] == expected
    # The prompt needs no name, wherever it stands; a switch has no value.
    model, *settings = flags[2:]
    for words in ([model, *settings, "--stream", "5 6"], [model, "5 6", *settings, "--no-stream"]):
        assert hf("generate", *words)[:2] == (0, expected)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "`prompt` is missing" in hf(*flags)[2]
    # Drafts, in yellow, are for terminals.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, _ = hf(*flags, "--prompt", "5 6", "--stream")
    assert code == 0 and "\033[33m" in out and out.endswith("\n\033[?25h")


def test_generate_raw_leaves_the_chat_template_out(hf, checkpoint):
    flags = ["generate", "--model", checkpoint, *DECODING]
    assert hf(*flags, "--prompt", "<s> 5 6", "--raw")[1] == hf(*flags, "--prompt", "5 6")[1]
    assert any(hf(*flags, "--prompt", p, "--raw")[1] != hf(*flags, "--prompt", p)[1] for p in ("5 6", "7", "8 9"))


def test_flags_override_the_file(hf, checkpoint, tmp_path):
    environment, filters = dict(os.environ), list(warnings.filters)
    config = {"model": checkpoint, "prompt": "5 6", "max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"json": "g.json", "env": {"A_VARIABLE": "1"}}))
    assert hf("generate", "--config", "config.yaml")[0] == 0
    by_file = read_json("g.json")
    assert hf("generate", "--config=config.yaml", "--denoising_steps", "2")[0] == 0
    by_flag = read_json("g.json")
    assert by_flag["nfe"] == 2 < by_file["nfe"]
    assert (os.environ, warnings.filters) == (environment, filters)  # of this process, which goes on


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
    sweeps = ["--sweep", "entropy_threshold=1:3:1", "denoising_steps=8,4"]
    code, out, _ = hf("evaluate", *flags, *sweeps, "--output_dir", "a", "--json", "a.json")
    assert code == 0 and read_json("a.json") == read_json("a/report.json")
    rows = read_json("a/report.json")["rows"]
    methods = [f"entropy_threshold {n}.0" for n in (1, 2, 3)] + ["denoising_steps 8", "denoising_steps 4"]
    assert [row["method"] for row in rows] == methods
    assert [row["nfe"] for row in rows[3:]] == [8, 4] and rows[0]["nfe"] > rows[2]["nfe"]
    assert rows[3]["recipe"] == {"max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}
    assert out.splitlines()[2].startswith("| entropy_threshold 1.0 |") and Path("a/curves.png").is_file()

    assert hf("evaluate", *flags, "--num_workers", "2", "--batch_size", "3", "--output_dir", "b")[0] == 0
    assert read_json("b/report.json")["rows"][-1]["nfe"] == rows[0]["nfe"]  # whatever the batch


def test_calibrate(hf, asked):
    flags = ["calibrate", *asked, "--max_new_tokens", "8", "--block_lengths", "4", "8", "--output_dir", "out"]
    loosely = [*flags, "--max_accuracy_drop", "0.9", "--confidence", "0.5"]
    code, out, _ = hf(*loosely, "--sweep", "entropy_threshold=1,3", "--json", "c.json")
    figures = read_json("c.json")
    assert code == 0 and len(figures["trials"]) == 4
    assert figures["num_prompts"] == {"calibration": 4, "confirmation": 4}
    recipe = DiffusionGenerationConfig.from_pretrained("out")
    assert recipe.max_new_tokens == 8
    assert figures["recipe"] == {name: getattr(recipe, name) for name in ("block_length", "entropy_threshold")}
    assert f"block_length {recipe.block_length}, entropy_threshold {recipe.entropy_threshold} keeps" in out
    record = read_json("out/calibration.json")
    assert record == {name: value for name, value in figures.items() if name not in ("recipe", "trials")}
    assert record["max_accuracy_drop"] == 0.9 and record["reference"] == {"block_length": 4, "denoising_steps": 8}

    code, _, err = hf(*flags, "--model", "none")
    assert code == 1 and "here 4. Fewer than 230 cannot show" in err and "Give 460 prompts or more" in err
    code, _, err = hf(*flags, "--num_samples", "1")
    assert code == 1 and "`dataset` must have at least 2 prompts" in err
    code, _, err = hf(*flags, "--max_accuracy_drop", "1")
    assert code == 2 and "`max_accuracy_drop` must be above 0 and below 1, got 1.0" in err


def test_inspect_shows_the_decode_of_generate(hf, checkpoint):
    flags = ["--model", checkpoint, "--prompt", "5 6", "--temperature", "1.0", "--max_new_tokens", "16", "--seed", "3"]
    flags += ["--block_length", "8"]
    assert hf("generate", *flags, "--json", "g.json")[0] == 0
    code, out, _ = hf("inspect", *flags)
    shown = [word for word in out.strip().splitlines()[-1].split() if not word.startswith("<")]
    assert code == 0 and shown == read_json("g.json")["text"].split()


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

    flags = ["--model", tmp_path / "cached", "--dataset", questions, "--prompt_column", "question"]
    flags += ["--sweep", "entropy_threshold=0.5", "--max_accuracy_drop", "0.9", "--output_dir", "out"]
    monkeypatch.setattr("hf_dparallel.cli.calibrate_command.evaluate_answers", evaluate_answers)
    assert hf("calibrate", *flags)[0] == 0
    reference, candidate = seen[:2]
    assert reference.denoising_steps == 8 and reference.cache_implementation == "none"
    assert reference.temperature == 0 and reference.max_active_blocks == 1
    assert candidate.cache_implementation == "dual" and candidate.max_active_blocks == 2
    assert DiffusionGenerationConfig.from_pretrained("out").cache_implementation == "dual"
    code, _, err = hf("calibrate", *flags, "--sweep", "entropy_threshold=3", "--output_dir", "none")
    assert code == 1 and not list(Path("none").iterdir())
    assert "For no setting could it be confirmed on 4 prompts that it loses at most 90 points" in last_line(err)


def test_an_output_folder_that_cannot_be_made_is_found_before_decoding(hf, checkpoint):
    Path("file").write_text("")
    for command, flag in (("evaluate", "output_dir"), ("calibrate", "output_dir"), ("inspect", "figures")):
        code, out, err = hf(command, checkpoint, "--dataset", "demo", f"--{flag}", "file")
        assert code == 1 and f"`{flag}=file` cannot be made: File exists. Name another folder." in err
        assert "it/s" not in out


def test_bad_sweeps(hf, questions):
    flags = ["--model", "none", "--dataset", questions, "--sweep"]
    code, _, err = hf("evaluate", *flags, "entropy_threshold=1:0:1")
    assert code == 2 and "`sweep=entropy_threshold=1:0:1` must be of the form" in err


def test_inspect_in_the_terminal(hf, checkpoint):
    code, out, _ = hf("inspect", "--model", checkpoint, "--prompt", "5 6", *DECODING, "--json", "i.json")
    (figures,) = read_json("i.json")["decodes"]
    lines = out.strip().splitlines()
    answer = hf("generate", "--model", checkpoint, "--prompt", "5 6", *DECODING)[1].strip()
    assert code == 0 and "\033" not in out
    assert len(lines) == figures["nfe"] + 2
    assert all(line.startswith(f"pass {n}/{figures['nfe']}  +") for n, line in enumerate(lines[:-2], start=1))
    assert lines[-2] == f"{checkpoint}, {figures['nfe']} passes, {figures['tokens_per_forward']:.2f} tokens per pass"
    assert lines[-1].removesuffix(" </s>") == answer and lines[-3].endswith(lines[-1])


def test_inspect_shows_both_with_an_adapter_and_draws(hf, checkpoint, questions):
    adapted = peft.get_peft_model(
        AutoModelForMaskedLM.from_pretrained(checkpoint), peft.LoraConfig(r=2, target_modules=["q_proj"])
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    adapted.save_pretrained("adapter")
    flags = ["inspect", "--model", checkpoint, *DECODING, "--json", "i.json"]
    one = ["--adapter", "adapter", "--compare", "--prompt", "5 6", "--output_file", "out/page.html"]
    data = ["--figures", "figures", "--dataset", questions, "--prompt_column", "question", "--reward", "numeric"]
    code, out, err = hf(*flags, *one, *data, "--num_samples", 4)
    report = read_json("i.json")
    assert code == 0, err
    assert "pass 1/" not in out and "Page: out/page.html\n" in out
    page = Path("out/page.html").read_text()
    without, with_it = report["decodes"]
    assert (without["name"], with_it["name"]) == ("Without adapter", "With adapter")
    assert f'"name":"{with_it["name"]}"' in page
    base = hf("generate", "--model", checkpoint, "--prompt", "5 6", *DECODING)[1].strip()
    student = hf("generate", "--model", checkpoint, "--adapter", "adapter", "--prompt", "5 6", *DECODING)[1].strip()
    assert base != student and out.index(base) < out.index(student)
    assert [Path(file).name for file in report["figures"]["files"]] == ["confidence_maps.png", "tradeoff.png"]
    assert all(Path(file).read_bytes().startswith(b"\x89PNG") for file in report["figures"]["files"])
    methods = report["figures"]["methods"]
    assert list(methods) == ["one token per pass", "entropy_threshold=1.0", "entropy_threshold=1.0, with adapter"]
    # The end of an answer may come before the last pass.
    assert methods["one token per pass"]["nfe"] > methods["entropy_threshold=1.0"]["nfe"]
    for name, adapter in (("without adapter", []), ("with adapter", ["--adapter", "adapter"])):
        point = report["figures"]["answers"][name][1]
        evaluate = ["evaluate", "--model", checkpoint, *adapter, *data[2:-2], *DECODING[:4], "--num_samples", 4]
        assert hf(*evaluate, "--confidence_threshold", point["confidence_threshold"], "--json", "e.json")[0] == 0
        assert point["accuracy"] == read_json("e.json")["accuracy"]

    # Without a prompt there are figures only, and stdin is left alone; without an adapter there is less to compare.
    code, out, _ = hf(*flags, *data[:-2], "--num_samples", 2)
    assert code == 0 and "Page" not in out and list(read_json("i.json")) == ["figures"]
    assert list(read_json("i.json")["figures"]["methods"]) == ["one token per pass", "entropy_threshold=1.0"]
    code, _, err = hf(*flags, "--compare", "--prompt", "5")
    assert code == 1 and "`compare` shows the model with and without its adapter, and it has none" in last_line(err)
    code, _, err = hf(*flags[:3], *data[:-2], "--max_new_tokens", 0)
    assert code == 1 and "`figures` draws answers, and `max_new_tokens=0` appends none" in last_line(err)


def test_trajectories(hf, questions, asked):
    flags = ["trajectories", *asked, *DECODING, "--output_dir", "out", "--json", "t.json"]
    code, out, err = hf(*flags)
    figures = read_json("t.json")
    kept = datasets.Dataset.from_parquet("out/filtered.parquet")
    assert code == 0
    assert (figures["num_prompts"], figures["num_kept"], figures["num_dropped"]) == (8, 4, 4)
    assert figures["nfe"] > 0 and figures["file"] == "out/filtered.parquet"
    assert "num_kept            4\n" in out
    assert kept["answer"][:] == [row["answer"] for row in read_jsonl(questions)[1::2]]
    assert kept[0]["prompt"] == [{"role": "user", "content": "1 5 2"}] and kept[0]["completion_ids"]
    # Trained on are the rows that were kept.
    assert load_split("out")[:] == kept[:]
    # Two of the others are shown.
    shown = err[err.index("Dropped, for example:\n") :].splitlines()
    assert shown[1:4:2] == ["  0 5 1", "    answer: -1 (reward 0.0)"] and shown[2].startswith("    answered: ")
    assert len(shown) == 7

    assert hf(*flags, "--reward", "none")[0] == 0 and read_json("t.json")["num_kept"] == 8


def test_the_cluster_loads_the_model_and_this_process_filters(hf, checkpoint, monkeypatch, tmp_path):
    asked = {}

    def on_ray(load, dataset, generation_config, batch_size, output_dir, seed, **of_cluster):
        asked.update(of_cluster)
        return generate_trajectories(*load(), dataset, generation_config, batch_size, output_dir, seed)

    monkeypatch.setattr(trajectories_command, "generate_trajectories_on_ray", on_ray)
    make_prompts(3).to_parquet(tmp_path / "prompts.parquet")
    command = ["trajectories", checkpoint, "--dataset", "prompts.parquet", "--output_dir", "out", "--reward", "none"]
    command += [*DECODING, "--raw", "--ray_actors", "5", "--ray_gpus_per_actor", "0.5"]
    code, out, _ = hf(*command)
    assert code == 0 and "num_kept            3" in out
    assert asked == {"max_actors": 5, "gpus_per_actor": 0.5}
    assert len(datasets.Dataset.from_parquet("out/filtered.parquet")) == 3


def test_what_is_not_there_is_named(hf, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "5 6"}')
    assert f"`model={rows}` is a file. Give its folder." in hf("generate", rows, "5 6")[2]
    rule = "cannot be loaded: it has neither config.json nor adapter_config.json. Give another folder."
    assert f"`model={tmp_path}` {rule}" in hf("generate", tmp_path, "5 6")[2]
    assert "`nofile.txt`: No such file or directory." in hf("generate", "demo", "--prompt_file", "nofile.txt")[2]
    assert "`device=gpu` cannot be used: " in hf("generate", "demo", "5 6", "--device", "gpu")[2]


def test_an_infilled_prompt_is_the_answer(hf):
    prompt = "We start with 5. Then we take 3 away: 5 - 3 = <|mdm_mask|>. The answer is <|mdm_mask|>."
    code, out, err = hf("generate", "demo", prompt, "--raw", "--max_new_tokens", 0)
    assert (code, out.strip()) == (0, prompt.replace("<|mdm_mask|>", "2"))
    assert "Empty" not in err


@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 100_000])
def test_broken_adapters_are_named(tmp_path, content):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ValueError, match="adapter_config.json` must name the base model of the adapter"):
        load_tokenizer(str(tmp_path))


def test_trajectories_that_are_all_wrong_are_1(hf, checkpoint, tmp_path):
    dataset = write_jsonl(tmp_path / "wrong.json", [{"messages": [{"role": "user", "content": "5"}], "answer": "-1"}])
    code, out, err = hf("trajectories", "--model", checkpoint, "--dataset", dataset, "--output_dir", "out", *DECODING)
    assert code == 1 and not out
    assert "error: None of 1 trajectories has a reward of at least `min_reward=1.0`" in last_line(err)


def test_train_then_decode_with_the_adapter(hf, checkpoint, completions, tmp_path):
    config = {"model_name_or_path": checkpoint, "dataset_name": completions, "use_peft": True, "lora_r": 4}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config | {"learning_rate": "1e-2", "num_train_epochs": 9}))
    flags = ["train", "--config", "train.yaml", "--output_dir", "out", *TRAINING]
    code, out, err = hf(*flags, "--num_train_epochs", "2", "--json", "t.json")
    figures = read_json("t.json")
    adapter = read_json("out/adapter_config.json")
    assert code == 0, err
    assert re.search(r"Training [\d.]+k of [\d.]+k parameters with batches of 8 sequences\.\n", err)
    assert "Training: 100% 6/6 [" in err
    code, _, err = hf(*flags)
    assert code == 1 and "`output_dir=out` holds a model already" in last_line(err)
    assert "--resume_from_checkpoint true" in last_line(err) and read_json("out/adapter_config.json") == adapter
    again = hf("train", "--model", "out", "--dataset_name", completions, "--output_dir", "more", *TRAINING)
    assert again[0] == 1 and "`model=out` is an adapter already. Give its base model." in again[2]
    assert figures["epoch"] == 2 and figures["output_dir"] == "out" and "total_flos" not in out
    assert out.endswith("\nNext: hf-dparallel chat --model out\n")
    assert {"loss", "consistency_loss", "certainty_loss", "masked_entropy", "masked_accuracy"} <= set(figures)
    assert "consistency_loss" in out
    assert adapter["r"] == 4 and adapter["task_type"] is None and len(adapter["target_modules"]) == 7

    base = hf("generate", "--model", checkpoint, "--prompt", "5 6", *DECODING)[1]
    student = hf("generate", "--model", checkpoint, "--adapter", "out", "--prompt", "5 6", *DECODING)
    by_adapter = hf("generate", "--model", "out", "--prompt", "5 6", *DECODING)
    assert student[0] == by_adapter[0] == 0
    assert student[1] == by_adapter[1] != base


def test_train_resumes_evaluates_and_drops_long_rows(hf, checkpoint, tmp_path):
    rows = [{"prompt": "5", "completion": "6 7"}] * 4 + [{"prompt": "5", "completion": "6 " * 20}]
    dataset = write_jsonl(tmp_path / "rows.jsonl", rows)
    flags = ["train", "--model", checkpoint, "--dataset_name", dataset, "--output_dir", "out", *TRAINING]
    flags += ["--per_device_train_batch_size", "1"]
    code, _, err = hf(*flags)
    assert code == 1 and "1 of the 5 rows of `train_dataset` are longer than max_length=16" in last_line(err)
    assert "--drop_long_rows" in last_line(err)
    code, _, err = hf(*flags, "--max_length", "64", "--max_steps", "1", "--output_dir", "short")
    assert code == 0
    assert re.search(r"Training (\S+) of \1 parameters .*--use_peft trains an adapter", err)
    code, _, err = hf(*flags, "--eval_strategy", "epoch")
    assert code == 1 and '--dataset_train_split "train[:90%]" --dataset_test_split "train[90%:]"' in last_line(err)

    flags += ["--drop_long_rows", "--save_steps", "2", "--eval_strategy", "epoch", "--dataset_test_split", "train"]
    code, _, err = hf(*flags, "--num_train_epochs", "1", "--json", "t.json")
    assert code == 0 and "Dropped 1 of 5 rows longer than max_length=16." in err
    assert "eval_loss" in read_json("t.json")
    flags += ["--resume_from_checkpoint", "true"]
    code, _, err = hf(*flags, "--num_train_epochs", "2", "--json", "t.json")
    figures = read_json("t.json")
    assert code == 0 and figures["step"] == 8


def test_demo_names_the_bundled_model_and_problems(hf, monkeypatch, checkpoint):
    monkeypatch.setitem(demo.NAMES, "demo", checkpoint)
    flags = ["--model", "demo", "--dataset", "demo", *DECODING]
    assert hf("evaluate", *flags, "--num_samples", "3", "--json", "e.json")[0] == 0
    assert read_json("e.json")["num_prompts"] == 3
    assert hf("trajectories", *flags, "--num_samples", "2", "--reward", "none", "--output_dir", "out")[0] == 0
    assert load_split("out")["prompt"][0] == demo.word_problem_dataset(1, seed=0)["prompt"][0]
    flags = ["--model", "demo", "--dataset_name", "out/filtered.parquet", "--max_steps", "1", *TRAINING]
    assert hf("train", *flags, "--max_length", "64")[0] == 0


@pytest.mark.parametrize("flags", [["demo-student"], ["demo", "--adapter", "demo-student"]])
def test_the_bundled_student_by_its_name(hf, flags):
    question = "Mia has 14 pens. Then Mia finds 6 more. Later Mia sells 5 pens. How many pens are left?"
    code, out, _ = hf("generate", *flags, "--prompt", question, "--json", "g.json")
    assert code == 0 and "The answer is 15" in out
    assert read_json("g.json")["nfe"] < 20  # with its recipe
