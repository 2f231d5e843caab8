# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page without a browser: its data, its markup, and what it needs from elsewhere (nothing)."""

import html
import json
import re

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.page import write_page
from hf_dparallel.inspection.trace import trace_decode

from ..helpers import make_llada, make_tokenizer
from .helpers import HOSTILE, make_trace


def read(path) -> tuple[str, list]:
    """Returns the markup of a page, and the data in it."""
    before, rest = path.read_text(encoding="utf-8").split('id="data">')
    data, _, after = rest.partition("</script>")
    assert "<" not in data and data.isascii()
    return before + after, json.loads(data)


def test_page_holds_the_trace(tmp_path):
    write_page([make_trace()], tmp_path / "page.html")
    assert read(tmp_path / "page.html")[1] == [
        {
            "name": "Teacher",
            "prompt": "2 + 3",
            "changes": [[[1, "five"]], [[0, "."]], [[0, "<end>"]], []],
            "blocks": [[0, 2], [2, 4]],
            "nfe": 2,
            "tokens_per_forward": 1.5,
            "settings": {"entropy_threshold": 0.5},
            "predictions": [
                {str(position): [0.5, 0.75, [["five", 0.75], ["six", 0.25]]] for position in range(4)},
                {str(position): [0.1, 0.9996, [["five", 0.9996]]] for position in (0, 3)},
            ],
        }
    ]


def test_page_needs_nothing_else(tmp_path):
    write_page([make_trace()], tmp_path / "new" / "page.html", title="A <b>title</b>")
    markup, _ = read(tmp_path / "new" / "page.html")
    assert markup.count("A &lt;b&gt;title&lt;/b&gt;") == 2
    others = r"https?://|url\(|@import|innerHTML|insertAdjacentHTML|\beval\b|fetch\("
    assert not re.search(rf"{others}|\s(src|style|on\w+)=|<(img|iframe|object|embed|base|form)\b", markup)
    assert "content=\"default-src 'none';" in markup and re.findall(r'href="(.*?)"', markup) == ["data:,"]


def test_text_of_a_model_stays_text(tmp_path):
    """Also half a character, which a model can write and a prompt can hold."""
    changes = [[(0, text)] for text in (HOSTILE, "\ud800", "\u2028", "<!--")]
    hostile = make_trace(name=HOSTILE, prompt="\ud800", changes=changes, settings={"stop_strings": [HOSTILE]})
    for name, shown, title in (("hostile", hostile, HOSTILE + "\ud800"), ("plain", make_trace(), "Title")):
        write_page([shown], tmp_path / name, title)
        assert read(tmp_path / name)[1][0]["name"] == shown.name
    markup, plain = (read(tmp_path / name)[0] for name in ("hostile", "plain"))
    assert markup.replace(html.escape(HOSTILE) + "?", "Title") == plain


def test_a_page_has_the_open_tokens_of_each_pass_only(tmp_path):
    """On a canvas of 32 tokens, at one token a pass, half of the tokens of all passes are open."""
    config = DiffusionGenerationConfig(max_new_tokens=32, block_length=32, stop_at_eos=False)
    trace = trace_decode(make_llada(), make_tokenizer(), [9, 10], config)
    write_page([trace], tmp_path / "page.html")
    (decode,) = read(tmp_path / "page.html")[1]
    assert sum(map(len, decode["predictions"])) == 32 * 33 / 2
    assert max(len(of[2]) for of_pass in decode["predictions"] for of in of_pass.values()) == 5
