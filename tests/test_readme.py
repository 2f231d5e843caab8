# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The README and every page of docs/: Python and commands run as pasted, links lead somewhere.

Pages are found by their names. The Python blocks of a page run one after the other in one namespace, which is empty
before: nothing is given to them, made smaller or replaced but names on the Hub.
"""

import json
import pydoc
import re
import runpy
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click import NoSuchOption
from markdown.extensions.toc import slugify
from mkdocs.commands.build import build
from mkdocs.config import load_config
from transformers import ModernBertConfig, ModernBertForMaskedLM

import demo
import hf_dparallel
from hf_dparallel_cli import main, program
from hf_dparallel_cli.models import read_published, read_ready
from hf_dparallel_rules.settings import SETTINGS

from .pages import PAGES, ROOT, arguments_of_ours, blocks, parse_only, python_blocks, read, run_blocks, shell_commands


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


def demo_means(metric: str) -> list[float]:
    runs = [run["rows"] for run in result("demo")["runs"]]
    return [statistics.mean(row[metric] for row in rows) for rows in zip(*runs, strict=True)]


def test_figures_of_the_bundled_model_are_those_of_its_runs():
    table, chart = demo.table(result("demo")), read("docs/images/results.svg")
    assert f"\n{table}\n" in read("README.md") and f"\n{table}\n" in read("docs/results.md")
    assert demo.chart(result("demo"), chart.partition("<rect")[0]) == chart
    (section,) = re.findall(r"^## Which method\n(.*?)^## ", read("docs/decoding.md"), flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"[\d.]+ passes", section)) <= {f"{nfe:.1f} passes" for nfe in demo_means("nfe")}


def claims_of_the_demo() -> Iterator[str]:
    recorded = result("demo")
    settings = recorded["runs"][0]["settings"]
    one, _, *teacher, student = demo_means("nfe")
    yield f"takes {student:.1f} passes an answer, where one token per pass takes {one:.1f}**"
    yield f"these are {demo_means('tokens_per_forward')[-1]:.0f} tokens of answer a pass"
    yield f"takes {min(teacher) / student:.1f} times as many passes as the student"
    for threshold, nfe, right in bolder_thresholds():
        yield f"of {threshold} takes {nfe / student:.1f} times as many ({nfe:.1f} passes, {right:.1f} % right)"
    yield "with the seeds {}, {} and {}".format(*(run["settings"]["seed"] for run in recorded["runs"]))
    minutes = sorted(run["seconds"] / 60 for run in recorded["runs"])
    yield f"{minutes[0]:.0f} to {minutes[-1]:.0f} minutes each on two CPU cores"
    yield f"answers {settings['num_trajectories']} problems"
    yield f"train a LoRA for {settings['num_train_steps']} steps"
    yield f"{settings['num_problems']} held-out ones for each seed"
    yield f"on {settings['num_tuning_problems']} others for each seed"
    repetitions = len(recorded["runs"][0]["rows"][0]["seconds"]["1"])
    yield f"the median of {repetitions} repetitions with {recorded['num_timed']} problems of each seed"


def bolder_thresholds() -> Iterator[tuple[float, float, float]]:
    """Yields thresholds that the demo does not try, with passes and percent right on held-out problems."""
    for points in zip(*(run["bolder"] for run in result("demo")["runs"]), strict=True):
        nfe, right = (statistics.mean(point["held_out"][metric] for point in points) for metric in ("nfe", "accuracy"))
        yield *points[0]["recipe"].values(), nfe, 100 * right


def passes_without_and_with_certainty() -> dict[float, tuple[float, float]]:
    """Returns passes on the tuning problems, without and with the certainty loss, by entropy threshold."""
    runs = result("demo")["runs"]
    without = zip(*(run["without_certainty"] for run in runs), strict=True)
    students = zip(*(run["tuning"]["student"] for run in runs), strict=True)
    return {
        controls[0]["recipe"]["entropy_threshold"]: (
            statistics.mean(point["tuning"]["nfe"] for point in controls),
            statistics.mean(point["nfe"] for point in points),
        )
        for controls, points in zip(without, students, strict=True)
    }


def claims_of_the_control() -> Iterator[str]:
    held_out = [run["without_certainty"][-1]["held_out"] for run in result("demo")["runs"]]
    nfe, right = (statistics.mean(point[metric] for point in held_out) for metric in ("nfe", "accuracy"))
    yield f"takes {nfe:.1f} passes, too, with a threshold of 1.1 ({100 * right:.1f} % right)"
    yield f"on the {result('demo')['runs'][0]['settings']['num_tuning_problems']} problems"
    passes = passes_without_and_with_certainty()
    yield "{1:.1f} instead of {0:.1f} at 0.3".format(*passes[0.3])
    yield "{1:.1f} instead of {0:.1f} at 0.5".format(*passes[0.5])


def claims_of_the_comparisons() -> Iterator[str]:
    llada, (dream,) = (result(f"decode_small_{name}against_official")["rows"] for name in ("", "dream_"))
    official, ours, *_ = result("train_small_against_official")["rows"]
    yield f"With LLaDA, {result('decode_small_against_official')['settings']['max_new_tokens']} tokens take"
    for row, cache in zip(llada, ("without a cache", "with the prefix cache", "with the dual cache"), strict=True):
        yield f"{row['ours']['seconds']:.1f} s instead of {row['official']['seconds']:.1f} s {cache}"
    per_pass = [f"{1000 * dream[code]['seconds'] / dream[code]['nfe']:.0f} ms" for code in ("ours", "official")]
    yield "A pass of Dream takes {} instead of {}".format(*per_pass)
    memory = f"in 1/{official['tensors_mb'] / ours['tensors_mb']:.0f} of the memory"
    yield f"of 2 rows takes {ours['seconds']:.2f} s instead of {official['seconds']:.2f} s, {memory}"


def claims_of_make_a_teacher() -> Iterator[str]:
    recorded = result("make_a_teacher")
    rows = [list(recorded[attention]["rows"].values())[1:] for attention in ("full", "block_causal")]
    ratios = [f"{student['nfe'] / teacher['nfe']:.2f}" for teacher, student in rows]
    yield "takes {} (full) and {} (block-causal) of its teacher's passes".format(*ratios)
    lost = [f"{100 * (teacher['accuracy'] - student['accuracy']):.1f}" for teacher, student in rows]
    yield "loses {} and {} points".format(*lost)
    yield f"of one seed ({recorded['seed']})"
    yield f"{recorded['num_steps'][0]:,} steps for each training"


def claims_of_the_gpu() -> Iterator[str]:
    plain, prefix, dual = result("gpu_h200_decode_llada_8b")["rows"]
    for row, cache in ((plain, "a pass without a"), (prefix, "with the prefix"), (dual, "with the dual")):
        low, _, high = sorted(1000 * seconds / row["passes"] for seconds in row["seconds"])
        yield f"{row['ms_per_pass']:.1f} ms {cache} cache ({low:.1f} to {high:.1f})"
    yield f"one prompt of {plain['prompt_length']} tokens, 256 new tokens in {plain['passes']} passes, three runs"
    yield f"the multiplications alone would take {plain['floor_ms_per_pass']:.1f} ms"
    yield "busy for {:.0f}, {:.0f} and {:.0f} % of the time".format(
        *(100 * row["busy"] for row in (plain, prefix, dual))
    )
    yield f"launches {plain['launches']:,.0f} to {dual['launches']:,.0f} kernels"


def exact_checks(dtype: str) -> list[dict]:
    """Returns what was checked in a dtype, by certainty weight."""
    rows = [row for row in result("exact_h100")["check"].values() if row["dtype"] == f"torch.{dtype}"]
    return sorted(rows, key=lambda row: row["run"]["certainty_weight"])


def claims_of_exact_decoding() -> Iterator[str]:
    plain, *_, certain = rows = exact_checks("float32")
    for row in rows:
        tokens = "{:.2f} ({:.2f} to {:.2f})".format(row["tokens_per_pass"], *row["interval"])
        yield f"| {row['run']['certainty_weight']:g} | {row['equal']:,} of {row['prompts']:,} | {tokens} |"
    yield f"{plain['right'] / plain['prompts']:.1%} of {plain['prompts']:,} test requests right".replace("%", " %")
    yield f"the last row has {certain['tokens_per_pass'] / plain['tokens_per_pass']:.3f} times the tokens of the first"
    yield f"In bfloat16 {exact_checks('bfloat16')[0]['equal']} answers are equal"


def claims_of_exact_decoding_on_a_cpu() -> Iterator[str]:
    recorded = result("exact_epyc")
    checks = {name.split("-float32")[0]: row for name, row in recorded["check"].items()}
    whole = checks["check-requests-k16-b2-r32-n150-s0"]
    tokens = "{:.2f} tokens a pass ({:.2f} to {:.2f})".format(whole["tokens_per_pass"], *whole["interval"])
    yield f"{whole['equal']:,} of {whole['prompts']:,} answers equal in float32, at {tokens}"
    yield f"in {recorded['train']['train-requests-k16-b2-r32-n150-s0']['seconds'] / 60:.0f} minutes"
    counting = checks["check-counting-k16-b2-r32-n120-s0"]
    yield f"{counting['equal']} of {counting['prompts']}, at {counting['tokens_per_pass']:.1f} tokens a pass"
    yield f"has {counting['right'] / counting['prompts']:.0%} right".replace("%", " %")
    of_60 = []
    for weight in (2, 0):
        outcomes = checks[f"check-requests-k16-b{weight}-r32-n120-s0"]["outcomes"]
        tokens, passes = (sum(map(int, outcomes[name].split()[:60])) for name in ("tokens", "passes"))
        of_60.append(tokens / passes)
    yield "60 requests at {:.2f} with the certainty loss, and at {:.2f} without".format(*of_60)
    for dtype in ("bfloat16", "float32"):
        one, eight = (recorded["time"][f"time-requests-k16-b2-r32-n150-s0-{dtype}-batch{n}"]["ratio"] for n in (1, 8))
        ratios = [one["exact"], one["prompt lookup"], eight["exact"]]
        yield f"| {dtype} | " + " | ".join(
            "{:.2f} ({:.2f} to {:.2f})".format(r["median"], *r["range"]) for r in ratios
        )
    agree = recorded["agree"]["agree-requests-k16-b2-r32-n150-s0"]
    yield "{exact} of ours and {prompt lookup} of prompt lookup's".format(**agree["equal"])


def claims_of_the_readme() -> Iterator[str]:
    *_, (_, nfe, right) = bolder_thresholds()
    yield f"takes the teacher {nfe:.1f} passes at {right:.1f} %"
    passes = passes_without_and_with_certainty()
    yield f"takes {passes[1.1][0]:.1f} passes, too, at the threshold of 1.1"
    yield "{:.1f} instead of {:.1f} at 0.3".format(*passes[0.3])
    row = exact_checks("float32")[-1]
    yield f"{row['equal']:,} of {row['prompts']:,} test answers in float32"
    yield f"at {row['tokens_per_pass']:.1f} tokens a pass"


# Of models and data, and the figures of docs/training.md.
SIZES = "0.46 1 12.0 16 2 200 3 300 32 384 512 8 9.0 95"
RESULTS = [*claims_of_the_demo(), *claims_of_the_control(), *claims_of_the_comparisons()]
RESULTS += [*claims_of_make_a_teacher(), *claims_of_the_gpu()]
CLAIMS = [("docs/results.md", claim) for claim in RESULTS]
CLAIMS += [("docs/exact.md", claim) for claim in claims_of_exact_decoding()]
CLAIMS += [("docs/exact.md", claim) for claim in claims_of_exact_decoding_on_a_cpu()]
CLAIMS += [("README.md", claim) for claim in claims_of_the_readme()]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_page_says_what_was_measured(page, claim):
    assert claim in " ".join(read(page).split())


def test_no_other_figure_is_among_the_results():
    text = " ".join(re.sub(r"^\|.*$", "", read("docs/results.md"), flags=re.MULTILINE).split())
    for claim in RESULTS:
        text = text.replace(claim, "")
    assert set(re.findall(r"\d[\d.,]*\b", re.sub(r"`[^`]*`|\]\(.*?\)", "", text))) == set(SIZES.split())


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
    for table, name in {"settings": "decoding", "models": "quickstart", "ready": "quickstart"}.items():
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
