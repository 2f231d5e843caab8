# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The README and every page of docs/: Python runs, commands parse, links lead somewhere.

Pages are found by their names. The blocks of a page run one after the other in one namespace, on the bundled teacher
and a few problems. The pages in `AS_THEY_STAND` run so; on others the names in `GIVEN` and the public
names of the package may be used without saying where they come from.
"""

import ast
import functools
import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import transformers
import yaml
from markdown.extensions.toc import slugify

import hf_dparallel
from hf_dparallel.cli import COMMANDS, main
from hf_dparallel.cli.arguments import CommandParser
from hf_dparallel.demo.pipeline import load_teacher, word_problem_dataset
from hf_dparallel.demo.word_problems import generate_word_problems


ROOT = Path(__file__).parents[1]
TEACHER = Path(hf_dparallel.__file__).parent / "demo" / "teacher"
# What pages say and what is run: the bundled teacher answers in 64 tokens at most.
SMALLER = {
    "GSAI-ML/LLaDA-8B-Instruct": TEACHER.as_posix(),
    "max_new_tokens=256": "max_new_tokens=64",
    "max_new_tokens=128": "max_new_tokens=64",
}
# docs/index.md is the README.
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.stem != "index")]
AS_THEY_STAND = ["README.md", "docs/quickstart.md", "docs/inspect.md"]
# Pages that need more than is given here, such as a server, and the test that runs their blocks.
RUN_ELSEWHERE = {
    "docs/diffusers.md": "test_diffusers.py",
    "docs/evaluation.md": "harness/test_docs.py",
    "docs/hub.md": "hub/test_docs.py",
    "docs/metrics.md": "evaluation/test_metrics.py",
    "docs/serving.md": "serving/test_docs.py",
}
# Python blocks that cannot run here: (page, a line of the block) -> why.
NOT_RUN: dict[tuple[str, str], str] = {
    (
        "docs/decoding.md",
        'model = AutoModelForMaskedLM.from_pretrained("answerdotai/ModernBERT-base")',
    ): "a model of another class, which is not bundled; tests/models/test_foreign.py gives one `generate`",
}

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", flags=re.MULTILINE | re.DOTALL)


def read(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str | Path, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(read(page)) if found == language]


def python_blocks(page: str | Path) -> list[str]:
    return blocks(page, "python")


def run_blocks(page: str | Path, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs the Python blocks of a page in one namespace, which it returns."""
    namespace = {"__name__": "__main__", **(given or {})}
    for index, source in enumerate(python_blocks(page), start=1):
        if any(name == page and line in source.splitlines() for name, line in NOT_RUN):
            continue
        for said, run in SMALLER.items():
            source = source.replace(said, run)
        exec(compile(source, f"{page}, block {index}", "exec"), namespace)
    return namespace


def word_problems_as_gsm8k(*args, **kwargs) -> datasets.Dataset:
    """Stands for `load_dataset("openai/gsm8k", ...)`: the same columns, in the language of the bundled teacher."""
    problems = itertools.islice(generate_word_problems(seed=0, split="train"), 4)
    rows = [{"question": p.question, "answer": f"{p.solution}\n#### {p.answer}"} for p in problems]
    return datasets.Dataset.from_list(rows)


def tokenized_solutions(split: str) -> datasets.Dataset:
    """What `generate_trajectories` would make of a perfect teacher's answers."""
    _, tokenizer = load_teacher()
    rows = []
    for problem in itertools.islice(generate_word_problems(seed=0, split=split), 4):
        completion_ids = tokenizer(problem.solution)["input_ids"] + [tokenizer.eos_token_id]
        row = {"prompt_ids": tokenizer(problem.question)["input_ids"], "completion_ids": completion_ids}
        rows.append({**row, "commit_step": list(range(len(completion_ids))), "nfe": 64, "answer": problem.answer})
    return datasets.Dataset.from_list(rows)


@functools.wraps(hf_dparallel.CertaintyForcingConfig)
def small_training(*args, **kwargs) -> hf_dparallel.CertaintyForcingConfig:
    """The settings of a page, for one step on a CPU."""
    steps = {name: 1 for name in ("eval_steps", "save_steps") if name in kwargs}
    return small_training.__wrapped__(
        *args, **{**kwargs, **steps, "max_steps": 1, "max_length": 128, "use_cpu": True, "report_to": "none"}
    )


GIVEN: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch,
    "model": lambda: load_teacher()[0],
    "tokenizer": lambda: load_teacher()[1],
    "texts": lambda: [problem.question for problem in itertools.islice(generate_word_problems(seed=0), 3)],
    "problems": lambda: word_problem_dataset(2, seed=0, split="test"),
    "trajectories": lambda: tokenized_solutions("train"),
    "held_out": lambda: tokenized_solutions("test"),
    "LoraConfig": lambda: peft.LoraConfig,
    "AutoModelForMaskedLM": lambda: transformers.AutoModelForMaskedLM,
    "BitsAndBytesConfig": lambda: transformers.BitsAndBytesConfig,
}


PUBLIC_NAMES = {
    name
    for name in dir(hf_dparallel)
    if getattr(getattr(hf_dparallel, name), "__module__", "").startswith("hf_dparallel") and name[0] != "_"
}


def given_names(page: str) -> dict[str, Any]:
    """Those of the given and the public names that the page uses."""
    if page in AS_THEY_STAND:
        return {}
    trees = [ast.parse(source) for source in python_blocks(page)]
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    public = {name: getattr(hf_dparallel, name) for name in used & PUBLIC_NAMES}
    return public | {name: make() for name, make in GIVEN.items() if name in used}


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hf_dparallel, "CertaintyForcingConfig", small_training)
    monkeypatch.setattr(datasets, "load_dataset", word_problems_as_gsm8k)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in AS_THEY_STAND and python_blocks(page) and page not in RUN_ELSEWHERE],
)
def test_python_runs(page):
    run_blocks(page, given_names(page))


def test_readme_decodes_trains_and_loads_the_adapter(tmp_path, capsys):
    names = run_blocks("README.md")

    assert "forward passes" in capsys.readouterr().out
    assert 0 < len(names["trajectories"]) <= 4
    assert (tmp_path / "llada-dparallel" / "adapter_model.safetensors").is_file()
    assert names["sequences"].shape == names["out"].sequences.shape


def test_quickstart_decodes_a_batch(capsys):
    names = run_blocks("docs/quickstart.md")

    assert names["out"].nfe.shape == (2,)
    assert names["sequences"].equal(names["out"].sequences)
    assert capsys.readouterr().out.count("tokens per pass") == 2


def test_inspect_writes_a_page_and_figures(tmp_path):
    names = run_blocks("docs/inspect.md")

    assert [trace.nfe for trace in names["traces"]] == [int(out.nfe) for out in names["decodes"].values()]
    assert "One prompt, two recipes" in (tmp_path / "decode.html").read_text()
    assert len(list(tmp_path.glob("*.png"))) == 4


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_first_pages_use_public_names_only(page):
    for source in python_blocks(page):
        imported = re.findall(r"^from hf_dparallel(\S*) import (.+)$", source, flags=re.MULTILINE)
        assert all(submodule == "" for submodule, _ in imported)
        for _, names in imported:
            assert set(names.split(", ")) <= PUBLIC_NAMES


@pytest.mark.parametrize(("page", "test"), RUN_ELSEWHERE.items())
def test_pages_that_are_run_elsewhere_are(page, test):
    source = read(f"tests/{test}")
    assert f'"{Path(page).name}"' in source and re.search(r"run_blocks\(|python_blocks\(", source)


def test_blocks_that_are_not_run_exist():
    for page, line in NOT_RUN:
        assert any(line in source.splitlines() for source in python_blocks(page)), (page, line)


# Commands.


def shell_commands(page: str) -> list[list[str]]:
    """The words of every command in the bash blocks of a page."""
    lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(part, comments=True) for line in lines for part in re.split(r"&&|(?<!\|)\|(?!\|)", line)]
    return [words for words in commands if words]


def arguments_of_ours(words: list[str]) -> list[str] | None:
    """What follows `hf-dparallel`, or `hf_dparallel.cli` under a launcher."""
    words = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    if words[:1] == ["hf-dparallel"]:
        rest = words[1:]
    elif "hf_dparallel.cli" in words:
        rest = words[words.index("hf_dparallel.cli") + 1 :]
    else:
        return None
    return list(itertools.takewhile(lambda word: word not in ("<", ">", "&"), rest))


class _ParsedError(Exception):
    pass


@pytest.fixture
def parse_only(monkeypatch):
    """Parses the arguments of a command with its own parser, and does not run it."""
    parse = CommandParser.parse

    def parse_and_stop(self, argv):
        # Configurations ask for bfloat16, which the arguments of the Trainer refuse where there is no GPU.
        extra = ["--use_cpu", "true"] if self.prog.endswith(" train") else []
        parse(self, [*argv, *extra])
        raise _ParsedError

    monkeypatch.setattr(CommandParser, "parse", parse_and_stop)
    monkeypatch.chdir(ROOT)
    # Errors are raised, not printed.
    monkeypatch.setenv("HF_DPARALLEL_DEBUG", "1")

    def run(argv: list[str]) -> None:
        with pytest.raises(_ParsedError):
            main(argv)

    return run


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")])
def test_commands_parse(page, parse_only):
    makefile = read("Makefile")
    for words in shell_commands(page):
        argv = arguments_of_ours(words)
        if argv is not None and "--help" not in argv:
            parse_only(argv)
        elif words[0] == "make":
            assert f"\n{words[1]}:" in makefile, words
        for word in words:
            if word.endswith((".py", ".yaml")) and word.partition("/")[0] in ("examples", "scripts", "benchmarks"):
                assert (ROOT / word).is_file(), word


def test_a_flag_that_does_not_exist_is_noticed(parse_only):
    with pytest.raises(SystemExit):
        parse_only(["generate", "--model", "demo", "--prompt", "2", "--treshold", "0.5"])


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page):
    named = re.findall(r"`hf-dparallel ([a-z]+)", read(page))
    assert set(named) <= set(COMMANDS)


# Links.


def anchors(page: str) -> set[str]:
    text = read(page)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    return {slugify(heading.replace("`", ""), "-") for heading in headings} | set(
        re.findall(r"^::: (\S+)$", text, re.M)
    )


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    wrong = []
    for target in _LINK.findall(_CODE.sub("", read(page))):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.is_file():
            wrong.append(f"{target}: no such file")
            continue
        linked = path.resolve().relative_to(ROOT).as_posix().replace("docs/index.md", "README.md")
        if anchor and anchor not in anchors(linked):
            wrong.append(f"{target}: no such heading")
    assert not wrong


def test_every_page_can_be_reached():
    (nav,) = re.findall(r"^nav:\n((?: .*\n)+)", read("mkdocs.yml"), flags=re.MULTILINE)
    in_the_menu = {f"docs/{name}" for entry in yaml.safe_load(nav) for name in entry.values()}
    assert in_the_menu - {"docs/index.md"} == set(PAGES) - {"README.md"}
    linked = set(_LINK.findall(read("README.md").partition("## Documentation")[2]))
    assert linked >= set(PAGES) - {"README.md"}
