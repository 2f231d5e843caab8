# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""MkDocs hook: the first page of the documentation is the README, with its links made relative to docs/."""

from pathlib import Path


def on_page_markdown(markdown: str, page, config, files) -> str:
    if page.file.src_uri != "index.md":
        return markdown
    readme = Path(config["config_file_path"]).with_name("README.md").read_text(encoding="utf-8")
    return readme.replace("](docs/", "](")


def on_serve(server, config, builder):
    server.watch(str(Path(config["config_file_path"]).with_name("README.md")))
    return server
