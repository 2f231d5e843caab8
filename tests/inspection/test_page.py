# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page without a browser: its data, its markup, and what it needs from elsewhere (nothing)."""

import json
import re
from html.parser import HTMLParser

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.page import page_data, write_page
from hf_dparallel.inspection.trace import trace_decode

from ..helpers import make_llada, make_tokenizer
from .helpers import HOSTILE, make_trace


class Elements(HTMLParser):
    """Collects start tags and their attributes, and the text of each element with an id."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs).get("id", tag)

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        self.texts[self._open] = self.texts.get(self._open, "") + data


def test_data_of_a_trace():
    assert page_data([make_trace(), make_trace(name="Student", settings={})]) == {
        "texts": ["five", "six"],
        "decodes": [
            {
                "name": name,
                "prompt": "2 + 3",
                "settings": settings,
                "nfe": 2,
                "tokensPerForward": 1.5,
                "changes": [[(1, "five")], [(0, ".")], [(0, "<end>")], []],
                "blocks": [[0, 2], [2, 4]],
                # A probability of 0.0004 is left out.
                "passes": [
                    [[position, 0.5, 750, 0, 750, 1, 250] for position in range(4)],
                    [[position, 0.1, 1000, 0, 1000] for position in (0, 3)],
                ],
            }
            for name, settings in (("Teacher", "entropy_threshold=0.5"), ("Student", ""))
        ],
    }
    behind = make_trace(changes=[[(0, ".")], [(1, "<end>")], [], []])
    assert page_data([behind])["decodes"][0]["blocks"] == [[0, 2]]


def test_page_holds_the_data_and_needs_nothing_else(tmp_path):
    write_page([make_trace()], tmp_path / "new" / "page.html", title="A <b>title</b>")
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    page = Elements(text)
    assert json.loads(page.texts["data"]) == json.loads(json.dumps(page_data([make_trace()])))
    assert page.texts["title"] == page.texts["h1"] == "A <b>title</b>"
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "style")}
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|url\(|@import|innerHTML|insertAdjacentHTML|\beval\b|fetch\(", text)
    (policy,) = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none';")


def test_text_of_a_model_stays_text(tmp_path):
    """Also half a character, which a model can write and a prompt can hold."""
    changes = [[(0, text)] for text in (HOSTILE, "\ud800", "\u2028", "<!--")]
    trace = make_trace(name=HOSTILE, prompt="\ud800", changes=changes, settings={"stop_strings": [HOSTILE]})
    tags = []
    for name, shown in (("hostile", trace), ("plain", make_trace())):
        write_page([shown], tmp_path / name, HOSTILE + "\ud800")
        page = Elements((tmp_path / name).read_text(encoding="utf-8"))
        tags.append([tag for tag, _ in page.tags])
        assert json.loads(page.texts["data"]) == json.loads(json.dumps(page_data([shown])))
        assert page.texts["title"] == HOSTILE + "?"
        assert "<" not in page.texts["data"] and page.texts["data"].isascii()
    assert tags[0] == tags[1]


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`traces` is empty"):
        write_page([], tmp_path / "page.html")


def test_size_grows_with_the_open_tokens_only(tmp_path):
    """On a canvas of 32 tokens, at one token a pass, half of the tokens of all passes are open."""
    config = DiffusionGenerationConfig(max_new_tokens=32, block_length=32, stop_at_eos=False)
    trace = trace_decode(make_llada(), make_tokenizer(), [9, 10], config)
    rows = [row for rows in page_data([trace])["decodes"][0]["passes"] for row in rows]
    assert len(rows) == 32 * 33 / 2 and max(map(len, rows)) == 3 + 2 * 5
    sizes = []
    for name, shown in (("long", trace), ("short", make_trace())):
        write_page([shown], tmp_path / name)
        sizes.append((tmp_path / name).stat().st_size)
    assert sizes[0] - sizes[1] < 70 * len(rows)
