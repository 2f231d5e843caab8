# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A page to step through decodes, in one HTML file that needs nothing else."""

import html
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from .trace import DecodeTrace


def write_page(traces: Sequence[DecodeTrace], path: str | os.PathLike, title: str = "Parallel decoding") -> None:
    """Writes a page that steps through decodes pass by pass, side by side if there are several.

    Args:
        traces (`Sequence[DecodeTrace]`): of [`trace_decode`].
        path (`str` or `os.PathLike`): the HTML file to write. Its folder is created.
        title (`str`, *optional*): title of the page.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(make_html(traces, title), encoding="utf-8", errors="replace")


def make_html(traces: Sequence[DecodeTrace], title: str, plays: bool = False) -> str:
    """Returns the page of [`write_page`], which with `plays` plays the decodes as soon as it is shown."""
    decodes = []
    for trace in traces:
        blocks = [[block.start, block.stop] for block in trace.blocks]
        decodes.append({**vars(trace), "blocks": blocks})
    data = json.dumps(decodes, separators=(",", ":"))

    parts = {
        "__TITLE__": html.escape(title),
        # Without `<`, no text of a model can end the element that holds it, by `</script>`.
        "__DATA__": data.replace("<", "\\u003c"),
        "__PLAYS__": json.dumps(plays),
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub("|".join(parts), lambda found: parts[found[0]], template)
