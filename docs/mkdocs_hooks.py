# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""MkDocs hooks, and the tables of what the package declares, which `python docs/mkdocs_hooks.py` writes into pages.

The first page of the documentation is the README, with its links made relative to docs/. Docstrings have the defaults
of arguments, so those of the signatures are left out.
"""

import re
from pathlib import Path

from transformers import CONFIG_MAPPING

from hf_dparallel.models.a2d.modeling_a2d import FROM_CAUSAL
from hf_dparallel_cli.models import (
    describe_attention,
    describe_recipe,
    read_published,
    read_ready,
)
from hf_dparallel_rules.settings import GROUPS, SETTINGS, settings_of


_DEFAULT = re.compile(r",\s*default:\s*<code>.*?</code>\s*(?=\))", flags=re.DOTALL)


def settings_table() -> str:
    """Returns name, default and first sentence of each setting that changes answers, by group."""
    lines = ["| Setting | Default | Meaning |", "|---|---|---|"]
    for group, title in GROUPS.items():
        settings = [
            SETTINGS[name]
            for name in settings_of(group)
            if SETTINGS[name].changes_answer
        ]
        lines += [f"| **{title}** | | |"] if settings else []
        for setting in settings:
            default = "–" if setting.default is None else f"`{setting.default!r}`"
            source = f" ([source]({setting.source}))" if setting.source else ""
            text = setting.help.partition(". ")[0].removesuffix(".")
            lines.append(f"| `{setting.name}` | {default} | {text}{source} |")
    return "\n".join(lines)


def models_table() -> str:
    """Returns the published checkpoints by family."""
    lines = [
        "| Family | Checkpoints | Attention | Checked against |",
        "|---|---|---|---|",
    ]
    for row in read_published():
        names = ", ".join(
            f"`{each['name']}` ({each['size']}, {each['license']})"
            for each in row["checkpoints"]
        )
        lines.append(
            f"| {row['family']} | {names} | {describe_attention(row)} | {row['checked_against']} |"
        )
    return "\n".join(lines)


def ready_table() -> str:
    """Returns the ready students with their recipes, and what was published of them."""
    lines = [
        "| Student | Size | Recipe | Published figures |",
        "|---|---|---|---|",
    ]
    for row in read_ready():
        recipe = f"`{describe_recipe(row)}` ([source]({row['source']}))"
        figures = "–"
        if "published" in row:
            figures = f"{row['published']} ([source]({row['published_in']}))"
        lines.append(f"| `{row['name']}` | {row['size']} | {recipe} | {figures} |")
    return "\n".join(lines)


def support_table() -> str:
    """Returns what works with each family."""
    caches = {
        "full": '`"prefix"`, `"dual"`: approximate',
        "block-causal": '`"block"`: exact',
        "causal-past": '`"block"`: exact',
    }
    engines = {"sglang": "SGLang", "lmdeploy": "LMDeploy"}
    lines = [
        "| Family | Load | Decode | Caches | Train | Exact decoding | Export |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in read_published():
        load = f"with {row['load_with']}" if "load_with" in row else "by name"
        attention = row["attention"]
        is_exact = "yes" if attention == "causal-past" else "no"
        served = CONFIG_MAPPING[row["model_type"]].served_as
        export = ", ".join(engines[name] for name in served) or "no"
        lines.append(
            f"| {row['family']} | {load} | {attention} | {caches[attention]} "
            f"| yes | {is_exact} | {export} |"
        )

    names = [each.__name__.removesuffix("Config") for each in FROM_CAUSAL]
    load = "[`convert_to_diffusion`](exact.md)"
    lines.append(
        f"| {', '.join(names)} | {load} | causal-past | {caches['causal-past']} "
        "| an adapter | yes | no |"
    )
    return "\n".join(lines)


TABLES = {
    "settings": settings_table,
    "models": models_table,
    "ready": ready_table,
    "support": support_table,
}
_TABLE = re.compile(r"(<!-- (\w+):start -->\n).*?(<!-- \2:end -->)", flags=re.DOTALL)


def with_tables(markdown: str) -> str:
    """Returns a page with its tables as the package declares them now."""

    def write(match: re.Match) -> str:
        start, name, end = match.groups()
        if name not in TABLES:
            return match[0]
        return f"{start}\n{TABLES[name]()}\n\n{end}"

    return _TABLE.sub(write, markdown)


def on_page_markdown(markdown: str, page, config, files) -> str:
    if page.file.src_uri != "index.md":
        return markdown
    readme = (
        Path(config["config_file_path"])
        .with_name("README.md")
        .read_text(encoding="utf-8")
    )
    # Sources are no pages of the site.
    readme = re.sub(r"\[[\w.]+\]\((src/\S+)\)", r"`\1`", readme)
    return readme.replace("](docs/", "](")


def on_page_content(html: str, page, config, files) -> str:
    return _DEFAULT.sub("", html)


def on_serve(server, config, builder):
    server.watch(str(Path(config["config_file_path"]).with_name("README.md")))
    return server


if __name__ == "__main__":
    for path in Path(__file__).parent.glob("*.md"):
        before = path.read_text(encoding="utf-8")
        after = with_tables(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
