# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Options, YAML files, refusals and exit codes of the commands, most of them without decoding anything."""

import dataclasses
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hf_dparallel
from hf_dparallel.demo.pipeline import DemoConfig
from hf_dparallel_cli import main, program
from hf_dparallel_cli.options import OUTPUT_FILE, OUTPUT_FOLDER
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
    assert all(name in out for name in ([command, "--config"] if command else program.commands))


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


def test_the_commands_that_measure_write_json():
    assert {name for name in program.commands if "json_file" in options(name)} == {
        *("generate", "evaluate", "calibrate", "demo")
    }


@pytest.mark.parametrize(
    "argv",
    [
        "generate ./missing x",
        "chat ./missing",
        "evaluate ./missing --dataset demo",
        "export ./missing --engine sglang --output_dir out",
        "convert ./missing --output_dir out",
        "train ./missing --dataset demo --output_dir out",
    ],
)
def test_commands_say_first_what_they_load(argv, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(argv.split()) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"Loading {'the libraries of the training' if argv.startswith('train') else './missing'} ..."


def test_without_a_command_there_is_the_overview(hf):
    assert hf() == hf("--help")
    assert hf("--version")[:2] == (0, f"hf-dparallel {hf_dparallel.__version__}\n")


def test_the_options_of_the_demo_are_its_settings():
    # Further settings are given in Python only.
    defaults = {field.name: field.default for field in dataclasses.fields(DemoConfig)}
    given = {name: param.to_info_dict()["default"] for name, param in options("demo").items() if name in defaults}
    assert given == {name: defaults[name] for name in given} and "num_problems" in given


@pytest.mark.parametrize(
    "command", ["generate", "chat", "serve", "evaluate", "inspect", "trajectories", "calibrate", "export", "push"]
)
def test_every_setting_of_decoding_is_an_option(command):
    # Words that are lists of lists of tokens are the only exception.
    names = {name for name, setting in SETTINGS.items() if setting.changes_answer} - {"bad_words_ids"}
    assert len(names) > 20 and names <= options(command).keys()


def test_help_of_training_describes_what_is_ours(hf, tmp_path):
    text = hf("train", "--help")[1]
    assert "--certainty_weight" in text and "--max_length" in text and "--ddp_backend" not in text
    (tmp_path / "train.yaml").write_text("dataset_name: d\nlora_target_modules: [q_proj]\nuse_cpu: true\n")
    data, _, student = read_arguments(["m", "--config", "train.yaml"])
    assert (student.model_name_or_path, data.dataset_name) == ("m", "d") and student.lora_target_modules == "q_proj"


@pytest.mark.parametrize("argv", ["serve --help", "--help", "models"])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(argv):
    """As `head` does."""
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    command = [sys.executable, "-m", "hf_dparallel_cli", *argv.split()]
    run = subprocess.run(command, stdout=reader.stdin, stderr=subprocess.PIPE)
    reader.stdin.close()
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_broken_pipe_of_something_else_is_a_failure(hf, monkeypatch):
    def fail():
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr("hf_dparallel.environment.describe_environment", fail)
    code, _, err = hf("env")
    assert code == 1 and last_line(err) == "hf-dparallel env: error: of a worker"


def test_characters_that_the_output_has_not_are_a_failure_with_a_remedy(hf, monkeypatch):
    monkeypatch.setattr("hf_dparallel.environment.describe_environment", lambda: "é".encode("ascii"))
    code, _, err = hf("env")
    assert code == 1 and "cannot be written as ascii. Set PYTHONIOENCODING=utf-8." in last_line(err)


# Refusals: one line, which names the option, its value and a remedy


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("chart", "No such command 'chart'"),
        ("generat", "Did you mean 'generate'?"),
        ("--foo", "No such option '--foo'. Options stand after the command."),
        ("-v", "No such option '-v'."),
        ("--entropy_threshold 0.3 generate demo-student x", "No such option '--entropy_threshold'. Options stand"),
        ("generate", "Missing argument 'MODEL'"),
        ("generate m n o p", "Got unexpected extra arguments (o p)"),
        ("generate m --max_tokens 8", "No such option '--max_tokens'. Use `max_new_tokens` for `max_tokens`."),
        ("generate m --entropy_treshold 1", "Did you mean `entropy_threshold`?"),
        ("generate m --steps 64", "Use `denoising_steps` for `steps`."),
        ("generate m --top_k x", "'--top_k': 'x' is not a valid integer"),
        ("generate m --cache_implementation dyn", "'dyn' is not one of 'none', 'prefix'"),
        ("generate m a --top_p 0", "`top_p` must be a probability above 0"),
        ("generate m a --entropy_threshold 1 --confidence_threshold 0.9", "are two commit rules"),
        ("evaluate m --dataset d --reward nice", "'--reward': 'nice' is not one of"),
        ("evaluate m", "Missing option '--dataset'"),
        ("evaluate demo --dataset demo --sweep threshold=0.5", "Use `confidence_threshold` or `entropy_threshold`"),
        ("evaluate m --dataset d --sweep entropy_threshold=1:0:1", "must be of the form"),
        ("calibrate m --dataset d --output_dir o --max_accuracy_drop 1", "1.0 is not in the range 0<x<1"),
        ("serve m --port 65536", "'--port': 65536 is not in the range 0<=x<=65535"),
        ("serve demo --port 0 --adapter a=x --adapter a=y", "`adapter` has 'a' twice"),
        ("trajectories m --dataset d", "Missing option '--output_dir'"),
        ("train m --dataset_name d --mask_ratio 2", "`mask_ratio` must be a number in"),
        ("train m --dataset_name d --eval_strategy now", "'now'"),
        ("train m n --dataset d", "No such option 'n'"),
        ("train --dataset_name d", "required: --model_name_or_path/"),
        ("train n --dataset d --learning-rat 1", "Did you mean `learning_rate`?"),
        ("train m --dataset d --config", "'--config' requires an argument"),
        ("train m --dataset d --config missing.yaml", "No such file or directory: 'missing.yaml'"),
        # Settings that do not go with the model's recipe
        ("generate demo 1 --max_new_tokens 32 --denoising_steps 33", "and at most `max_new_tokens"),
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
        ("model: [", "`config=config.yaml` must be a YAML mapping, `name: value`: while parsing"),
        (
            "model: m\nmax_tokens: 8\nblock: 2",
            "`config.yaml` has `max_tokens`, which is not an option of this command",
        ),
        ("model: m\nentropy_treshold: 8", "Did you mean `entropy_threshold`?"),
        ("model: m\nconfig: other.yaml", "`config.yaml` has `config`, which is not an option"),
        ("model: m\ndtype: float8", "'--dtype': 'float8' is not one of"),
        ("model: m\nprompt: [5, 6]", "`prompt` in `config.yaml` must be one value, got ['5', '6']"),
        ("model: m\ntop_k:", "'--top_k': '' is not a valid integer"),
        ("model: m\nstream: often", "'--stream': 'often' is not a valid boolean"),
        ("model: m\ntop_k: 2.5", "'--top_k': '2.5' is not a valid integer"),
        ("model: m\nprompt: a\nentropy_threshold: -1", "`entropy_threshold` must be a number of nats"),
    ],
)
def test_bad_files_are_2(hf, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    code, _, err = hf("generate", "--config", "config.yaml")
    assert code == 2 and message in err and err.count("\n") == 1


def test_words_of_a_file_are_texts_as_on_the_command_line(tmp_path):
    text = "model: 012\nprompt: no\ntop_k: 3\nchat_template_kwargs: {thinks: no}\nstop_strings: [1, off]"
    (tmp_path / "config.yaml").write_text(text)
    read = program.commands["generate"].make_context("generate", ["--config", "config.yaml"]).params
    assert (read["model"], read["prompt"], read["top_k"]) == ("012", "no", 3)
    assert json.loads(read["chat_template_kwargs"]) == {"thinks": False} and read["stop_strings"] == ("1", "off")


def test_options_override_the_file(hf, checkpoint, tmp_path):
    config = {"model": checkpoint, "prompt": "5 6", "max_new_tokens": 8, "block_length": 4, "denoising_steps": 8}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"json": "g.json"}))
    assert hf("generate", "--config", "config.yaml")[0] == 0
    by_file = read_json("g.json")
    assert hf("generate", "--config=config.yaml", "--denoising-steps", "2")[0] == 0
    assert read_json("g.json")["nfe"] == 2 < by_file["nfe"]


# Failures


@pytest.mark.parametrize(
    "command",
    [
        "generate MODEL 1",
        "evaluate MODEL --dataset questions.jsonl --prompt_column question",
        "train MODEL --dataset_name completions.jsonl",
    ],
)
@pytest.mark.parametrize("model", ["./missing", "no/such/folder"])
def test_missing_model_is_1(hf, questions, completions, command, model):
    code, out, err = hf(*command.replace("MODEL", model).split())
    assert code == 1 and not out
    assert last_line(err).startswith(f"hf-dparallel {command.split()[0]}: error: `model")
    assert f"={model}` cannot be loaded: " in last_line(err) and "Traceback" not in err


def test_missing_hub_model_and_adapter_are_1(hf):
    code, _, err = hf(*["generate", "nobody/nothing", "1"])
    assert code == 1 and "error: `model=nobody/nothing` cannot be loaded: " in last_line(err)
    code, _, err = hf("generate", "not-looked-at", "--adapter", "./nothing", "1")
    assert code == 1 and "`adapter=./nothing` cannot be loaded: " in last_line(err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--dataset missing.jsonl", "`dataset=missing.jsonl` cannot be loaded"),
        ("--dataset ./missing", "`dataset=./missing` cannot be loaded"),
        (
            "--dataset questions.jsonl --prompt_column text",
            "has no `text`, only ['question', 'answer']. Give its --prompt_column.",
        ),
        ("--dataset questions.jsonl", "has no `prompt` or `messages` or "),
        ("--dataset names.csv", "cannot be read: "),
        ("--dataset empty.jsonl", "empty.jsonl` cannot be read: it has no rows."),
        ("--dataset texts.xlsx", "`texts.xlsx` cannot be read: "),
        ("--dataset ./empty/", "`dataset=./empty/` cannot be loaded: "),
        ("--dataset questions.jsonl --prompt_column question --answer_column gold", "has no `gold`"),
        (
            "--dataset blank.jsonl --prompt_column text",
            "Row 1 of `dataset`: Message 0 of `prompt`, of the user, must not be empty",
        ),
        ("--dataset texts.jsonl", "Add --prompt_column prompt to send each text as a user's message, or --raw"),
        ("--dataset questions.jsonl --dataset_split dev", "dev"),
        ("--dataset questions.jsonl --prompt_column question --reward math", "no `solution`, only "),
    ],
)
def test_bad_datasets_are_1(hf, checkpoint, questions, flags, message):
    write_jsonl("texts.jsonl", [{"prompt": "1 2", "answer": 3}])
    Path("names.csv").write_text("prompt,my answer\n")
    Path("texts.xlsx").touch()
    Path("empty.jsonl").touch()
    Path("empty").mkdir()
    write_jsonl("blank.jsonl", [{"text": "1 2", "answer": 3}, {"text": " ", "answer": 3}])
    code, _, err = hf("evaluate", checkpoint, *flags.split())
    assert code == 1 and message in last_line(err)


def test_an_answer_column_needs_a_reward(hf, asked):
    code, _, err = hf("trajectories", *asked, "--reward", "none", "--answer_column", "answer", "--output_dir", "out")
    assert code == 1 and "`answer_column=answer` needs a `reward`" in last_line(err)


def test_what_is_not_there_is_named(hf, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "5 6"}')
    for path in (rows, tmp_path):
        assert hf("generate", path, "5 6")[2].count(f"`model={path}` cannot be loaded: ") == 1
    assert "but found gpu" in hf("generate", "demo", "5 6", "--device", "gpu")[2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "'{path}' is of the autoregressive type"),
        (
            {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}},
            "`model={path}` cannot be loaded: The repository {path} contains custom code",
        ),
    ],
)
def test_a_model_that_commands_cannot_load_is_refused_in_a_line(hf, tmp_path, config, message):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = hf("generate", str(tmp_path), "5 6")
    assert code == 1 and message.format(path=tmp_path) in last_line(err) and len(last_line(err)) < 700
    assert ("`convert_to_diffusion`" in err) == (config["model_type"] == "llama")


def test_an_output_folder_that_is_a_file_is_wrong_usage(hf):
    Path("file").write_text("")
    for command in ("evaluate", "calibrate", "trajectories"):
        code, _, err = hf(command, "demo", "--dataset", "demo", "--output_dir", "file")
        assert code == 2 and "'--output_dir': Directory 'file' is a file." in err


@pytest.mark.parametrize(
    "argv",
    [
        "generate demo x --json PATH",
        "evaluate demo --dataset demo --json PATH",
        "evaluate demo --dataset demo --output_dir PATH",
        "calibrate demo --dataset demo --output_dir PATH",
        "trajectories demo --dataset demo --output_dir PATH",
        "inspect demo x --output_file PATH",
        "demo --output_dir PATH",
        "demo --json PATH",
        "convert ./model --output_dir PATH",
        "export ./model --engine sglang --output_dir PATH",
        "train demo --dataset demo --output_dir PATH",
    ],
)
@pytest.mark.parametrize("path", ["file/x", "/proc/x/y", "x" * 300])
def test_what_cannot_be_written_is_refused_before_the_work(hf, argv, path):
    Path("file").touch()
    code, out, err = hf(*argv.replace("PATH", path).split())
    assert code == 2 and not out and path[:50] in last_line(err) and "cannot be written: " in last_line(err)
    assert os.listdir() == ["file"]


@pytest.mark.parametrize(
    "argv, path", [("generate demo x --json", ""), ("demo --output_dir", ""), ("demo --output_dir", os.devnull)]
)
def test_an_empty_output_or_a_device_for_a_folder_is_refused(hf, argv, path):
    """Empty as `json:` in a YAML file."""
    code, out, err = hf(*argv.split(), path)
    assert code == 2 and not out and f"{path!r} cannot be written: " in last_line(err)


@pytest.mark.parametrize("given, meant", [("--jsn", "json"), ("--imports", "import")])
def test_a_hint_names_an_option(hf, given, meant):
    code, _, err = hf("generate", "demo", "x", given, "file")
    assert code == 2 and f"Did you mean `{meant}`?" in last_line(err)


def test_checking_an_output_leaves_nothing_behind(tmp_path):
    (tmp_path / "old.json").write_text("{}")
    for name in ("old.json", "new.json", "new/new.json"):
        assert OUTPUT_FILE.convert(str(tmp_path / name), None, None) == str(tmp_path / name)
    for name in ("", "new", "new/folder"):
        OUTPUT_FOLDER.convert(str(tmp_path / name), None, None)
    assert OUTPUT_FILE.convert("/dev/null", None, None) == "/dev/null"
    assert os.listdir(tmp_path) == ["old.json"] and (tmp_path / "old.json").read_text() == "{}"


def test_unexpected_errors_name_their_type_and_debug_raises(hf, monkeypatch):
    def fail(config):
        raise KeyError("rows")

    monkeypatch.setattr("hf_dparallel.demo.pipeline.run_demo", fail)
    code, _, err = hf("demo")
    assert code == 1 and "hf-dparallel demo: error: KeyError: 'rows' (HF_DPARALLEL_DEBUG=1 shows the traceback)" in err
    monkeypatch.setenv("HF_DPARALLEL_DEBUG", "1")
    with pytest.raises(KeyError):
        hf("demo")


def test_an_interruption_is_130(hf, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_dparallel.environment.describe_environment", interrupt)
    code, _, err = hf("env")
    assert code == 130 and last_line(err) == "hf-dparallel env: interrupted"


def test_main_reads_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["hf-dparallel", "models"])
    assert main() == 0 and "GSAI-ML/LLaDA-8B-Instruct" in capsys.readouterr().out
