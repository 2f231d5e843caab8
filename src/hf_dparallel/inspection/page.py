# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A page to step through decodes, in one HTML file that needs nothing else."""

import html
import json
import os
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from .trace import DecodeTrace, Prediction


def write_page(traces: Sequence[DecodeTrace], path: str | os.PathLike, title: str = "Parallel decoding") -> None:
    """Writes a page that steps through decodes pass by pass, side by side if there are several.

    Args:
        traces (`Sequence[DecodeTrace]`): of [`trace_decode`].
        path (`str` or `os.PathLike`): the HTML file to write. Its folder is created.
        title (`str`, *optional*): title of the page.
    """
    data = json.dumps(page_data(traces), separators=(",", ":"))
    # Without `<`, no text of a model can end the element that holds it, by `</script>`.
    parts = {"__TITLE__": html.escape(title), "__DATA__": data.replace("<", "\\u003c")}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    page = re.sub("|".join(parts), lambda found: parts[found[0]], template)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(page, encoding="utf-8", errors="replace")


def page_data(traces: Sequence[DecodeTrace]) -> list[dict[str, Any]]:
    """Returns the data of the page, as its script reads them: an object for each decode.

    A prediction is the list `[position, entropy, confidence, text, probability, text, probability, ...]`, with
    probabilities in thousandths. Candidates below half a thousandth are left out, and blocks behind the end of the
    answer.
    """

    def compact(position: int, prediction: Prediction) -> list[Any]:
        likely = [(text, round(1000 * p)) for text, p in prediction.candidates if p >= 0.0005]
        return [position, round(prediction.entropy, 2), round(1000 * prediction.confidence), *chain(*likely)]

    return [
        {
            "name": trace.name,
            "prompt": trace.prompt,
            "settings": ", ".join(f"{name}={value}" for name, value in trace.settings.items()),
            "nfe": trace.nfe,
            "tokensPerForward": round(trace.tokens_per_forward, 2),
            "changes": trace.changes,
            "blocks": [[one.start, one.stop] for one in trace.blocks if any(trace.changes[one.start : one.stop])],
            "passes": [[compact(*one) for one in of_pass.items()] for of_pass in trace.predictions],
        }
        for trace in traces
    ]
