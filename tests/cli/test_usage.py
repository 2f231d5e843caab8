# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Options, YAML files, refusals and exit codes of the commands, most of them without decoding anything."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import huggingface_hub
import pytest
import yaml

import hf_dparallel
from hf_dparallel.demo.pipeline import DemoConfig
from hf_dparallel_cli import main, program
from hf_dparallel_cli.loading import load_tokenizer
from hf_dparallel_cli.training import Parser, read_arguments
from hf_dparallel_rules.settings import SETTINGS

from ..helpers import make_tokenizer, read_json, write_jsonl
from .helpers import last_line


# Help


def options(command: str) -> dict:
    return {param.name: param for param in program.commands[command].params}


@pytest.mark.parametrize("command", [None, *program.commands])
def test_help(hf, command):
    code, out, err = hf(*filter(None, [command]), "--help")
    assert code == 0 and not err
    assert all(name in out for name in ([command, "--config", "--json", "--quiet"] if command else program.commands))


@pytest.mark.parametrize("command", program.commands)
def test_examples_of_help_are_right_usage(command):
    text = Parser().epilog if command == "train" else program.commands[command].help
    words = shlex.split(text.partition("Example: hf-dparallel ")[2])
    if command == "train":
        words = ["train", "--model_name_or_path", *words[1:]]
        assert read_arguments(words[1:])[0].dataset_name == "runs/data"
    elif words:
        program.commands[command].make_context(words[0], words[1:])


_WITHOUT_LIBRARIES = """
import sys
from hf_dparallel_cli import main
for argv in {argvs}:
    print("exit", *argv, main(argv))
print("loaded", sorted({{"torch", "transformers", "hf_dparallel", "numpy", "yaml"}} & set(sys.modules)))
"""


def test_help_and_wrong_usage_load_no_library():
    # The options of `train` are those of its libraries.
    right = [["--help"], ["--version"], [], *([name, "--help"] for name in program.commands if name != "train")]
    right += [["models"]]
    wrong = [["chart"], ["generate", "m", "--top_k", "x"], ["evaluate", "m", "--reward", "nice"]]
    source = _WITHOUT_LIBRARIES.format(argvs=[*right, *wrong])
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    codes = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("exit")]
    assert codes == ["0"] * len(right) + ["2"] * len(wrong) and result.stdout.endswith("loaded []\n")


def test_without_a_command_there_is_the_overview(hf):
    assert hf() == hf("--help")
    assert hf("--version")[:2] == (0, f"hf-dparallel {hf_dparallel.__version__}\n")


def test_the_options_of_the_demo_are_its_settings():
    for field in dataclasses.fields(DemoConfig):
        default = None if field.default is dataclasses.MISSING else field.default
        assert (options("demo")[field.name].to_info_dict()["default"] or None) == (default or None)


@pytest.mark.parametrize(
    "command", ["generate", "chat", "serve", "evaluate", "inspect", "trajectories", "calibrate", "export", "push"]
)
def test_every_setting_of_decoding_is_an_option(command):
    # Words that are lists of lists of tokens are the only exception.
    names = {name for name, setting in SETTINGS.items() if setting.changes_answer} - {"bad_words_ids"}
    assert len(names) > 20 and names <= options(command).keys()


def test_help_of_training_describes_what_is_ours(hf):
    text = hf("train", "--help")[1]
    assert "--certainty_weight" in text and "--num_train_epochs" in text and "--ddp_backend" not in text


def test_options_of_training_mean_what_is_said_of_them(hf, tmp_path):
    text = " ".join(hf("train", "--help")[1].split())
    assert "Turns --complementary_masking off." in text and "'true' continues from the last checkpoint" in text
    # One name is no pattern, and short names are as good in a file.
    (tmp_path / "train.yaml").write_text("model: m\ndataset: d\nlora_target_modules: [q_proj]\nuse_cpu: true\n")
    data, _, student = read_arguments(["--config", "train.yaml"])
    assert (student.model_name_or_path, data.dataset_name) == ("m", "d") and student.lora_target_modules == ["q_proj"]
    for pattern in ("all-linear", "(q|v)_proj"):
        words = ["m", "--dataset", "d", "--use_cpu", "--lora_target_modules", pattern]
        assert read_arguments(words)[2].lora_target_modules == pattern


def test_completion_in_a_shell(hf, monkeypatch, capsys):
    monkeypatch.setenv("_HF_DPARALLEL_COMPLETE", "bash_complete")
    for words, meant in {"gen": "plain,generate", "serve demo --adap": "plain,--adapter"}.items():
        words = f"hf-dparallel {words}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert hf()[1].splitlines() == [meant]


# What is written


_ASK = ["generate", "demo", "--prompt", "Mia has 3 pens.", "--max_new_tokens", "8", "--block_length", "8"]


def test_quiet_writes_errors_only(hf):
    code, _, err = hf(*_ASK, "--quiet", "--device", "cpu")
    # The bars of libraries that were imported before cannot be turned off.
    assert code == 0 and all("Loading weights" in line for line in err.split("\n") if line)
    assert "`prompt` is empty" in hf("generate", "demo", "--prompt", " ", "--quiet")[2]


def test_there_are_no_bars_and_no_noise_in_a_file():
    result = subprocess.run([sys.executable, "-m", "hf_dparallel_cli", *_ASK], capture_output=True, text=True)
    assert result.returncode == 0
    assert re.fullmatch(r"(Empty answer: )?\d+ forward passes?, \d\.\d\d tokens per forward pass\n", result.stderr)


def test_progress_is_told_in_lines_where_no_terminal_shows_a_bar():
    command = [sys.executable, "-m", "hf_dparallel_cli", "evaluate", "demo", "--dataset", "demo", "--num_samples", "9"]
    often = os.environ | {"TQDM_MININTERVAL": "0", "TQDM_DELAY": "0"}
    result = subprocess.run([*command, "--batch_size", "1"], capture_output=True, text=True, env=often)
    lines = [line for line in result.stderr.splitlines() if line.startswith("the model's recipe: ")]
    assert result.returncode == 0 and len(lines) > 2 and "100%" in lines[-1] and "9/9 [" in lines[-1]


def test_a_broken_pipe_is_silent():
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    command = [sys.executable, "-m", "hf_dparallel_cli", "serve", "--help"]
    assert subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE).stderr == b""
    reader.stdin.close()


# Refusals: one line, which names the option, its value and a remedy


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("chart", "No such command 'chart'"),
        ("generat", "Did you mean 'generate'?"),
        ("generate", "Missing argument 'MODEL'"),
        ("generate m n o p", "Got unexpected extra arguments (o p)"),
        ("generate m --max_tokens 8", "No such option '--max_tokens'. Use `max_new_tokens` for `max_tokens`."),
        ("generate m --entropy_treshold 1", "Did you mean `--entropy_threshold`?"),
        ("generate m --entropy-treshold=1", "Did you mean `--entropy_threshold`?"),
        ("generate m --steps 64", "Use `denoising_steps` for `steps`."),
        ("generate m --threshold 0.9", "Use `confidence_threshold` or `entropy_threshold` for `threshold`."),
        ("generate m --cfg_scale 1", "Remove `cfg_scale`."),
        ("generate m --top_k x", "'--top_k': 'x' is not a valid integer"),
        ("generate m --cache_implementation dyn", "'dyn' is not one of 'none', 'prefix'"),
        ("generate m a --top_p 0", "`top_p` must be a probability above 0"),
        ("generate m a --entropy_threshold 1 --confidence_threshold 0.9", "are two commit rules"),
        ("generate m a --block_length 0", "`block_length` must be a positive integer"),
        ("generate m --prompt a --prompt_file b", "The prompt is given twice"),
        ("evaluate m --dataset d --reward nice", "'--reward': 'nice' is not one of"),
        ("evaluate m", "Missing option '--dataset'"),
        ("evaluate m --dataset d --batch_size 0", "'--batch_size': 0 is not in the range x>="),
        ("evaluate demo --dataset demo --sweep threshold=0.5", "Use `confidence_threshold` or `entropy_threshold`"),
        ("evaluate m --dataset d --sweep entropy_threshold=1:0:1", "must be of the form"),
        ("inspect m --dataset d", "`dataset` needs `figures`"),
        ("inspect m a --dataset demo --figures f", "`figures` are of a dataset, not of a prompt"),
        ("inspect demo --dataset demo --figures f --max_new_tokens 0", "`max_new_tokens=0` appends none"),
        ("calibrate m --dataset d --output_dir o --max_accuracy_drop 1", "1.0 is not in the range 0<x<1"),
        ("chat demo --max_new_tokens 0", "`max_new_tokens` must be a positive integer, got 0."),
        ("serve m --port 65536", "'--port': 65536 is not in the range 0<=x<=65535"),
        ("serve m --seed 1", "No such option '--seed'"),
        ("serve demo --port 0 --adapter a=x --adapter a=y", "`adapter` has 'a' twice"),
        ("trajectories m --dataset d", "Missing option '--output_dir'"),
        ("train m --dataset_name d --mask_ratio 2", "`mask_ratio` must be a number in"),
        ("train m --dataset_name d --eval_strategy now", "'now'"),
        ("train m n --dataset d", "Unexpected argument 'n'"),
        ("train --dataset_name d", "required: --model_name_or_path/"),
        ("train n --dataset d --learning-rat 1", "Did you mean `learning_rate`?"),
        ("train n --dataset d --lr 1e-4", "Use `learning_rate` for `lr`."),
        ("train m --dataset d --config", "'--config' requires an argument"),
        ("train m --dataset d --config missing.yaml", "cannot be read: [Errno 2] No such file or directory"),
        ("env --config", "'--config' requires an argument"),
        ("env --config missing.yaml", "cannot be read: [Errno 2] No such file or directory: 'missing.yaml'"),
        # Settings that do not go with the model's recipe
        ("generate demo 1 --denoising_steps 161", "and at most `max_new_tokens"),
        ("evaluate demo --dataset demo --min_new_tokens 161", "`min_new_tokens` must be at most"),
        ("chat demo --max_active_blocks 2", "`max_active_blocks=2` needs a commit rule with a threshold"),
    ],
)
def test_wrong_usage_is_2(hf, argv, message):
    (code, out, err), command = hf(*argv.split()), argv.split()[0]
    assert code == 2 and not out and message in last_line(err)
    if command in program.commands:
        assert last_line(err).startswith(f"hf-dparallel {command}: error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "must be YAML"),
        ("- model", "must be a YAML mapping"),
        (
            "model: m\nmax_tokens: 8\nblock: 2",
            "`config.yaml` has `max_tokens`, which is not an option of this command",
        ),
        ("model: m\nentropy_treshold: 8", "Did you mean `entropy_threshold`?"),
        ("model: m\nconfig: other.yaml", "`config.yaml` has `config`, which is not an option"),
        ("model:", "`model` in `config.yaml` needs one value"),
        ("model: m\ndtype: float8", "'--dtype': 'float8' is not one of"),
        ("model: m\nprompt: [5, 6]", "`prompt` in `config.yaml` needs one value, got [5, 6]"),
        ("model: m\nprompt: no", "`prompt` in `config.yaml` must be a text, got False. Put it in quotes."),
        ("model: 012", "`model` in `config.yaml` must be a text, got 10. Put it in quotes."),
        ("model: m\nstream: often", "'--stream': 'often' is not a valid boolean"),
        ("model: m\ntop_k: 2.5", "'--top_k': '2.5' is not a valid integer"),
        ("model: m\nprompt: a\nentropy_threshold: -1", "`entropy_threshold` must be a number of nats"),
    ],
)
def test_bad_files_are_2(hf, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    code, _, err = hf("generate", "--config", "config.yaml")
    assert code == 2 and message in err and err.count("\n") == 1


def test_options_override_the_file(hf, checkpoint, tmp_path):
    environment, filters = dict(os.environ), list(warnings.filters)
    config = {"model": checkpoint, "prompt": "5 6", "max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"json": "g.json"}))
    assert hf("generate", "--config", "config.yaml")[0] == 0
    by_file = read_json("g.json")
    assert hf("generate", "--config=config.yaml", "--denoising-steps", "2")[0] == 0
    assert read_json("g.json")["nfe"] == 2 < by_file["nfe"]
    assert (os.environ, warnings.filters) == (environment, filters)  # of this process, which goes on


# Failures


@pytest.mark.parametrize(
    "command",
    [
        "generate MODEL --prompt 1",
        "evaluate --model MODEL --dataset questions.jsonl --prompt_column question",
        "train MODEL --dataset_name completions.jsonl",
    ],
)
@pytest.mark.parametrize("model", ["./missing", "no/such/folder"])
def test_missing_model_is_1(hf, questions, completions, command, model):
    code, out, err = hf(*command.replace("MODEL", model).split())
    assert code == 1 and not out
    assert last_line(err).startswith(f"hf-dparallel {command.split()[0]}: error: `model")
    assert f"={model}` does not exist" in last_line(err) and "Traceback" not in err


def test_missing_hub_model_and_adapter_are_1(hf, monkeypatch, caplog):
    # Nobody listens there, which is found once, instead of six times for each of four files.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    # What transformers makes for an endpoint, it keeps.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
    for argv, argument in (
        ("generate nobody/nothing --prompt 1", "model=nobody/nothing"),
        ("export runs/nothing --engine sglang --output_dir exported", "student=runs/nothing"),
    ):
        code, _, err = hf(*argv.split())
        assert code == 1
        assert f"error: `{argument}` is not a local folder, and cannot be loaded: " in last_line(err)
        assert "Retrying" not in err + caplog.text and not huggingface_hub.constants.HF_HUB_OFFLINE
    code, _, err = hf("generate", "not-looked-at", "--adapter", "./nothing", "--prompt", "1")
    assert code == 1 and "`adapter=./nothing` does not exist" in last_line(err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dataset missing.jsonl", "`dataset=missing.jsonl` does not exist"),
        ("--dataset ./missing", "`dataset=./missing` does not exist"),
        ("--dataset questions.jsonl --prompt_column text", "has no `text` (--prompt_column)"),
        ("--dataset questions.jsonl", "has neither `prompt` nor `messages` (name the column of the texts with"),
        ("--dataset texts.csv", "Its columns are ['text']"),
        ("--dataset names.csv", "Check that it has rows"),
        ("--dataset texts.xlsx", "`dataset=texts.xlsx` has an unsupported file type. Supported: .csv, "),
        ("--dataset ./empty/", "`dataset=./empty/` cannot be loaded: "),
        ("--dataset questions.jsonl --prompt_column question --answer_column gold", "has no `gold`"),
        ("--dataset blank.jsonl --prompt_column text", "Row 1 of `dataset`: `prompt` has an empty prompt"),
        ("--dataset texts.jsonl", "Add --prompt_column prompt to send each text as a user's message, or --raw"),
        ("--dataset questions.jsonl --dataset_split dev", "dev"),
        ("--dataset questions.jsonl --reward math", ", and no `solution` for `reward=math` (name the column of the"),
    ],
)
def test_bad_datasets_are_1(hf, checkpoint, questions, flags, message):
    write_jsonl("texts.jsonl", [{"prompt": "1 2", "answer": 3}])
    for name, text in {"texts.csv": "text\n1 2\n", "names.csv": "prompt,my answer\n"}.items():
        Path(name).write_text(text)
    Path("texts.xlsx").touch()
    Path("empty").mkdir()
    write_jsonl("blank.jsonl", [{"text": "1 2", "answer": 3}, {"text": " ", "answer": 3}])
    code, _, err = hf("evaluate", checkpoint, *flags.split())
    assert code == 1 and message in last_line(err)


def test_a_missing_extra_is_named_before_a_missing_column(hf, checkpoint, questions, monkeypatch):
    """Otherwise each try would name one of them, and the first remedy would be for nothing."""
    monkeypatch.setattr("hf_dparallel.environment.find_spec", lambda name: None)
    code, _, err = hf("evaluate", checkpoint, "--dataset", "questions.jsonl", "--reward", "math")
    assert code == 1 and "`reward=math` needs math_verify: `pip install math_verify`." in last_line(err)


def test_an_answer_column_needs_a_reward(hf, asked):
    code, _, err = hf("trajectories", *asked, "--reward", "none", "--answer_column", "answer", "--output_dir", "out")
    assert code == 1 and "`answer_column=answer` needs a `reward`" in last_line(err)


def test_what_is_not_there_is_named(hf, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "5 6"}')
    assert f"`model={rows}` is a file. Give its folder." in hf("generate", rows, "5 6")[2]
    rule = "cannot be loaded: it has neither config.json nor adapter_config.json. Give another folder."
    assert f"`model={tmp_path}` {rule}" in hf("generate", tmp_path, "5 6")[2]
    assert "`nofile.txt`: No such file or directory." in hf("generate", "demo", "--prompt_file", "nofile.txt")[2]
    assert "`device=gpu` cannot be used: " in hf("generate", "demo", "5 6", "--device", "gpu")[2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "'{path}' is of the autoregressive type"),
        (
            {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}},
            "`model={path}` needs code",
        ),
    ],
)
def test_a_model_that_commands_cannot_load_is_refused_in_a_line(hf, tmp_path, config, message):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = hf("generate", str(tmp_path), "5 6")
    assert code == 1 and message.format(path=tmp_path) in last_line(err) and len(last_line(err)) < 700
    assert ("`convert_to_diffusion`" in err) == (config["model_type"] == "llama")


@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 100_000])
def test_broken_adapters_are_named(tmp_path, content):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ValueError, match="adapter_config.json` must name the base model of the adapter"):
        load_tokenizer(str(tmp_path))


def test_an_output_folder_that_cannot_be_made_is_found_before_decoding(hf, checkpoint):
    Path("file").write_text("")
    for command, flag in (("evaluate", "output_dir"), ("calibrate", "output_dir"), ("inspect", "figures")):
        code, _, err = hf(command, checkpoint, "--dataset", "demo", f"--{flag}", "file")
        assert code == 1 and f"`{flag}=file` cannot be made: File exists. Name another folder." in err


def test_unexpected_errors_name_their_type_and_debug_raises(hf, monkeypatch):
    def fail(config):
        raise KeyError("rows")

    monkeypatch.setattr("hf_dparallel.demo.pipeline.run_demo", fail)
    code, _, err = hf("demo")
    assert code == 1 and "hf-dparallel demo: error: KeyError: 'rows' (HF_DPARALLEL_DEBUG=1 shows the traceback)" in err
    monkeypatch.setenv("HF_DPARALLEL_DEBUG", "1")
    with pytest.raises(KeyError):
        hf("demo")


@pytest.mark.parametrize(
    ("argv", "place", "advice"),
    [
        ("env", "hf_dparallel.environment.describe_environment", ""),
        ("train demo --dataset_name x", "hf_dparallel_cli.training.train", ". Add --resume_from_checkpoint true to"),
        (
            "trajectories demo --dataset demo --output_dir out",
            "hf_dparallel.environment.join_processes",
            ". The same command continues the run",
        ),
    ],
)
def test_an_interruption_is_130(hf, monkeypatch, argv, place, advice):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupt)
    code, _, err = hf(*argv.split())
    assert code == 130 and f"hf-dparallel {argv.split()[0]}: interrupted{advice}" in last_line(err)


def test_main_reads_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hf-dparallel", "models", "--quiet"])
    assert main() == 0 and "GSAI-ML/LLaDA-8B-Instruct" in capsys.readouterr().out
