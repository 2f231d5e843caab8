# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""MkDocs hooks.

The first page of the documentation is the README, with its links made relative to docs/. Defaults of arguments are
told once: docstrings have them, and mkdocstrings would add those of the signatures.
"""

import re
from pathlib import Path


_DEFAULT = re.compile(r",\s*default:\s*<code>.*?</code>\s*(?=\))", flags=re.DOTALL)


def on_page_markdown(markdown: str, page, config, files) -> str:
    if page.file.src_uri != "index.md":
        return markdown
    readme = Path(config["config_file_path"]).with_name("README.md").read_text(encoding="utf-8")
    return readme.replace("](docs/", "](")


def on_page_content(html: str, page, config, files) -> str:
    return _DEFAULT.sub("", html)


def on_serve(server, config, builder):
    server.watch(str(Path(config["config_file_path"]).with_name("README.md")))
    return server
