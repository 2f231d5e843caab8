# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The README and every page of docs/: Python and commands run as pasted, links lead somewhere.

Pages are found by their names. The Python blocks of a page run one after the other in one namespace, which is empty
before: nothing is given to them, made smaller or replaced but names on the Hub.
"""

import json
import pydoc
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import curves
import methods
import promise
import pytest
import yaml
from click import NoSuchOption
from markdown.extensions.toc import slugify
from mkdocs.commands.build import build
from mkdocs.config import load_config
from transformers import ModernBertConfig, ModernBertForMaskedLM

import hf_dparallel
from hf_dparallel_cli import main, program
from hf_dparallel_cli.models import read_published, read_ready
from hf_dparallel_rules.settings import SETTINGS, settings_of

from .pages import (
    PAGES,
    ROOT,
    arguments_of_ours,
    blocks,
    parse_only,
    python_blocks,
    read,
    rules_of_files,
    run_blocks,
    shell_commands,
)


# Pages that need more, such as a server or a Hub, or must be undone, and the test that runs their blocks.
RUN_ELSEWHERE = {
    "docs/add_a_rule.md": "generation/test_add_a_rule.py",
    "docs/exact.md": "cli/test_exact.py",
    "docs/evaluation.md": "evaluation/lm_eval/test_docs.py",
    "docs/fine_tune.md": "test_fine_tune.py",
    "docs/hub.md": "hub/test_docs.py",
    "docs/make_a_teacher.md": "test_make_a_teacher.py",
    "docs/reference/hub.md": "hub/test_docs.py",
    "docs/read_the_code.md": "generation/test_read_the_code.py",
    "docs/serving.md": "serving/test_docs.py",
}

# Packages of others that pages name.
NOT_OURS = ("deepspeed", "gguf", "gradio", "openai")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", flags=re.MULTILINE | re.DOTALL)


PUBLIC_NAMES = {
    name
    for name in dir(hf_dparallel)
    if getattr(getattr(hf_dparallel, name), "__module__", "").startswith("hf_dparallel") and name[0] != "_"
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def modern_bert(tmp_path_factory) -> str:
    """The folder of a tiny ModernBERT with the published vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    ModernBertForMaskedLM(ModernBertConfig(**shape)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page) and page not in RUN_ELSEWHERE])
def test_python_runs(page, modern_bert, golden_dir, capsys, tmp_path):
    gemma = str(golden_dir / "diffusion_gemma" / "model")
    hub = {"answerdotai/ModernBERT-base": modern_bert, "google/diffusiongemma-26B-A4B-it": gemma}
    names = run_blocks(page, hub)
    check = CHECKS.get(page)
    if check is not None:
        check(names, capsys.readouterr().out, tmp_path)


def check_readme(names, printed, folder):
    assert blocks("README.md", "text")[0] == printed


def check_quickstart(names, printed, folder):
    assert printed.count("The answer is 15.") == 2 and printed.count("] passes\n") == 2


def check_inspect(names, printed, folder):
    assert "Entropy threshold 0.5" in (folder / "decode.html").read_text()


def check_metrics(names, printed, folder):
    assert printed == "1.5 6.0\n358.14\n"


CHECKS = {
    "README.md": check_readme,
    "docs/quickstart.md": check_quickstart,
    "docs/inspect.md": check_inspect,
    "docs/metrics.md": check_metrics,
}


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
    assert f'{Path(page).name}"' in source and re.search(r"run_blocks\(|python_blocks\(", source)


def test_the_text_on_installing_is_the_same_everywhere():
    """Every extra is in the table of the README, and pages and messages install what it says."""
    section = read("README.md").partition("<!-- install:start -->")[2].partition("<!-- install:end -->")[0]
    (table,) = re.findall(r"^EXTRAS = \{\n(.*?)^\}", read("setup.py"), flags=re.MULTILINE | re.DOTALL)
    extras = set(re.findall(r"^    \"(\w+)\":", table, flags=re.MULTILINE))
    assert set(re.findall(r"`(\w+)` \(", section)) == extras
    optional = set(re.findall(r"\"([\w-]+)(?:\[\w+\])?>=", table))
    sources = [path.relative_to(ROOT) for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".md", ".html")]
    texts = {page: read(page) for page in [*PAGES, *sources]} | {"README.md": read("README.md").replace(section, "")}
    for page, text in texts.items():
        for package in re.findall(r"pip install +(?:-c constraints\.txt +|-e +|--no-deps +)*['\"]?([^'\"`\s]+)", text):
            name, _, extra = package.rstrip("].").partition("[")
            # One message is for several libraries, whose names its callers give.
            assert name in ("", ".", "./hf-dparallel", "{", *NOT_OURS, *optional), (page, package)
            assert name in optional or extras.issuperset(filter(None, extra.split(","))), (page, package)
        for library in re.findall(r"(?<![.\w])require\(\"[^\"]+\", \"(\w+)\"", text):
            assert library.replace("_", "-") in {name.replace("_", "-") for name in optional}, (page, library)


# Commands.


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")])
def test_commands_parse(page):
    makefile = read("Makefile")
    for words in shell_commands(page):
        argv = arguments_of_ours(words)
        if argv is not None and "--help" not in argv:
            with rules_of_files():
                parse_only(argv)
        elif words[0] == "make":
            assert f"\n{words[1]}:" in makefile, words
        for word in words:
            if word.endswith((".py", ".yaml")) and word.partition("/")[0] in ("examples", "scripts", "benchmarks"):
                assert (ROOT / word).is_file(), word


def runs_here(argv: list[str]) -> bool:
    """Whether a command needs only what comes with the package, and ends by itself within minutes."""
    is_bundled = "GSAI-ML/LLaDA-8B-Instruct" not in argv and not any(text.startswith("examples/") for text in argv)
    return is_bundled and argv[0] not in ("chat", "demo", "play", "push", "serve")


OWN_COMMANDS = {
    page: [argv for argv in map(arguments_of_ours, shell_commands(page)) if argv and runs_here(argv)]
    for page in ("README.md", "docs/quickstart.md", "docs/inspect.md", "docs/evaluation.md")
}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_first_commands_run(page, capsys):
    argv = next(argv for argv in OWN_COMMANDS[page] if argv[0] == "generate")
    assert main(argv) == 0
    assert "The answer is 15." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", OWN_COMMANDS)
def test_commands_run(page, capfd):
    """In the folder in which the Python of the page has run."""
    if page not in RUN_ELSEWHERE:
        run_blocks(page)
    for argv in OWN_COMMANDS[page]:
        assert main(argv) == 0, (argv, capfd.readouterr().err)


def test_a_flag_that_does_not_exist_is_noticed():
    with pytest.raises(NoSuchOption, match="--treshold"):
        parse_only(["generate", "demo", "2", "--treshold", "0.5"])


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page):
    named = re.findall(r"`hf-dparallel ([a-z]+)", read(page))
    assert set(named) <= set(program.commands)


@pytest.mark.parametrize("page", PAGES)
def test_code_fits_the_site(page):
    """At most 88 columns: longer lines are cut on the page."""
    code = "".join(text for language in ("bash", "python", "text", "yaml") for text in blocks(page, language))
    assert not [line for line in code.splitlines() if len(line) > 88]


# Figures.


def result(name: str) -> dict:
    return json.loads(read(f"benchmarks/results/{name}.json"))


def test_tables_and_picture_of_the_results_are_those_of_the_runs():
    page, chart = read("docs/results.md"), read("docs/images/certainty.svg")
    study = curves.Curves(result("certainty"))
    for table in (
        curves.table_at_equal_accuracy(study),
        curves.table_of_others(result("transfer")),
        promise.table(result("promise")["rows"]),
    ):
        assert f"\n{table}\n" in page
    assert f"\n{curves.table_at_equal_accuracy(study)}\n" in read("README.md")
    rules = methods.table(result("methods")["points"], "consistency", methods.ACCURACIES)
    assert f"\n{rules}\n" in read("docs/research/experiments.md")
    assert curves.chart(study, chart.partition("<rect")[0], floor=2) == chart


def claims_of_the_study() -> Iterator[str]:
    """What distillation brings, and what the certainty loss adds, at three points less than the teacher."""
    study = curves.Curves(result("certainty"))
    for model, other, unit in (("consistency", "teacher", "of the passes"), ("both", "consistency", "times those")):
        ratio = study.ratio(model, other, 3)["ratio"]
        yield "{:.2f} {} ({:.2f} to {:.2f})".format(ratio, unit, *study.ratio_intervals(model, other)[1])


def claims_of_the_comparison() -> Iterator[str]:
    plain, *_ = result("decode_small_against_official")["rows"]
    seconds = [plain[code]["seconds"] for code in ("ours", "official")]
    yield "64 tokens take {:.1f} s instead of {:.1f} s without a cache".format(*seconds)


def exact_checks() -> list[dict]:
    """Returns what was checked in float32, by certainty weight."""
    rows = [row for row in result("exact_h100")["check"].values() if row["dtype"] == "torch.float32"]
    return sorted(rows, key=lambda row: row["run"]["certainty_weight"])


def claims_of_exact_decoding() -> Iterator[str]:
    for row in exact_checks():
        tokens = "{:.2f} ({:.2f} to {:.2f})".format(row["tokens_per_pass"], *row["interval"])
        yield f"| {row['run']['certainty_weight']:g} | {row['equal']:,} of {row['prompts']:,} | {tokens} |"


LOSSES = {
    "decay-0.8": "0.8 of the mask before",
    "dpace-0.1": "[D-PACE](https://huggingface.co/papers/2605.18810)",
    "auf": "[accept until fail](https://huggingface.co/papers/2607.01893)",
    "uniform": "all the same",
}


def claims_of_the_losses() -> Iterator[str]:
    """Tokens a pass of exact adapters by loss and seed, and what the certainty loss adds."""
    study = result("exact_losses")
    setting = "{}, certainty {}, rate 0.003, 250 steps"
    usual = setting.format("decay-0.8", 2)
    for loss, name in LOSSES.items():
        rows = [row for row in study["rows"] if (row["loss"], row["certainty_weight"], row["steps"]) == (loss, 2, 250)]
        assert all(row["equal"] == row["prompts"] for row in rows)
        found = study["comparisons"].get(f"{setting.format(loss, 2)} against {usual}")
        ratio = "{:.2f} ({:.2f} to {:.2f})".format(found["ratio"], *found["interval"]) if found else "1"
        tokens = ", ".join("{:.2f}".format(row["tokens_per_pass"]) for row in rows)
        yield f"| {name} | {tokens} | {ratio} |"

    long = [setting.format(loss, 2).replace("250", "600") for loss in ("dpace-0.1", "decay-0.8")]
    found = study["comparisons"][" against ".join(long)]
    yield "{:.2f} ({:.2f} to {:.2f}) times".format(found["ratio"], *found["interval"])

    found = study["comparisons"][f"{usual} against {setting.format('decay-0.8', 0)}"]
    yield "{:.3f} times the tokens ({:.3f} to {:.3f})".format(found["ratio"], *found["interval"])


def claims_of_the_windows() -> Iterator[str]:
    """Tokens a pass of exact adapters by where masks stand, and how fast their batches are answered."""
    study = result("exact_windows_epyc")
    text = "{tokens_per_pass:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"
    for seed, row in study["seeds"].items():
        before = text.format(**row["window_after_last_draft"])
        yield f"| {seed} | {row['equal']:,} of {row['prompts']:,} | {text.format(**row)} | {before} |"
    yield "{:.2f} ({:.2f} to {:.2f}) times as many".format(study["paired"]["ratio"], *study["paired"]["interval"])

    timed = result("exact_batches_epyc")["results"]
    for size in (1, 2, 4, 8, 16):
        cells = [f"{size}"]
        for row in (timed[f"{dtype} batch {size}"] for dtype in ("bfloat16", "float32")):
            ratios = [theirs / ours for theirs, ours in zip(row["transformers"], row["exact"], strict=True)]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            cells.append(f"{row['tokens'] / row['passes']:.2f}")
        yield f"| {' | '.join(cells)} |"


CLAIMS = [(page, claim) for page in ("README.md", "docs/results.md") for claim in claims_of_the_study()]
CLAIMS += [("docs/results.md", claim) for claim in claims_of_the_comparison()]
CLAIMS += [("docs/exact.md", claim) for claim in (*claims_of_exact_decoding(), *claims_of_the_losses())]
CLAIMS += [("docs/exact.md", claim) for claim in claims_of_the_windows()]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_page_says_what_was_measured(page, claim):
    assert claim in " ".join(read(page).split())


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


def test_methods_link_their_files():
    """Which exist, as all links."""
    (section,) = re.findall(r"^## Methods\n(.*?)^## ", read("README.md"), flags=re.MULTILINE | re.DOTALL)
    _, _, *rows = section.strip().splitlines()
    files = [re.search(r"\[(\w+\.py)\]\(src/\S*/(\w+\.py)\) \|$", row).groups() for row in rows]
    assert all(name == file for name, file in files) and len(files) > len(settings_of("rule"))
    assert all(f"\n| `{rule}` |" in section for rule in settings_of("rule"))


def test_every_page_can_be_reached():
    (nav,) = re.findall(r"^nav:\n((?: .*\n)+)", read("mkdocs.yml"), flags=re.MULTILINE)
    tabs = [pages for entry in yaml.safe_load(nav) for pages in entry.values()]
    in_the_menu = {f"docs/{name}" for pages in tabs for entry in pages for name in entry.values()}
    assert in_the_menu - {"docs/index.md"} == set(PAGES) - {"README.md"}
    linked = set(_LINK.findall(read("README.md").partition("## Documentation")[2]))
    assert linked >= set(PAGES) - {"README.md"}


REFERENCE = [page for page in PAGES if page.startswith("docs/reference/")]


def test_the_reference_is_what_can_be_imported():
    """Each entry once, by its shortest path; those of the package itself are its own functions and classes."""
    entries = [entry for page in REFERENCE for entry in re.findall(r"^::: (\S+)$", read(page), flags=re.MULTILINE)]
    assert len({*entries}) == len(entries) and all(pydoc.locate(entry) is not None for entry in entries)
    named = {name: getattr(hf_dparallel, name) for name in dir(hf_dparallel) if not name.startswith("_")}
    public = {name for name, value in named.items() if getattr(value, "__module__", "").startswith("hf_dparallel")}
    assert {entry.partition(".")[2] for entry in entries if entry.count(".") == 1} == public
    assert not [entry for entry in entries if entry.count(".") > 1 and entry.rpartition(".")[2] in public]


def test_a_configuration_shows_the_help_of_its_fields():
    sys.path.insert(0, str(ROOT / "docs"))
    from griffe_docstrings import parameters_of_fields

    text = parameters_of_fields(hf_dparallel.CertaintyForcingConfig)
    assert all(f"    {name} (" in text for name in ("mask_ratio", "certainty_weight"))
    assert "output_dir" not in text


def test_tables_of_the_site_show_everything_that_is_declared():
    hooks = runpy.run_path(str(ROOT / "docs" / "mkdocs_hooks.py"))
    for table, name in {
        "settings": "decoding",
        "models": "quickstart",
        "ready": "quickstart",
        "support": "quickstart",
    }.items():
        page = read(f"docs/{name}.md")
        assert f"\n{hooks['TABLES'][table]()}\n" in page, "run `python docs/mkdocs_hooks.py`"
        assert hooks["with_tables"](page) == page
    names = [name for name, setting in SETTINGS.items() if setting.changes_answer]
    assert all(f"\n| `{name}` |" in hooks["settings_table"]() for name in names)
    assert all(f"`{row['name']}`" in hooks["ready_table"]() for row in read_ready())
    assert all(
        f"`{each['name']}`" in hooks["models_table"]() for row in read_published() for each in row["checkpoints"]
    )


@pytest.mark.slow
def test_the_site_shows_no_placeholder_and_no_raw_reference(tmp_path):
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    pages = [tmp_path / Path(page).relative_to("docs").with_suffix("") / "index.html" for page in REFERENCE]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "block_length" in text and not re.findall(r"\{settings\}|`\]\[|<code>`|default:\s", text)
