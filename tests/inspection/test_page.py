# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page without a browser: its data, its markup, and what it needs from elsewhere (nothing)."""

import json
import re
from html.parser import HTMLParser

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.page import page_data, render_page, write_page
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
                "tokens": ["five", ".", "<end>", "<end>"],
                "commitStep": [1, 0, 0, -1],
                "given": [],
                "blocks": [[0, 2], [2, 4]],
                "revised": [],
                # A probability of 0.0004 is left out.
                "passes": [
                    [[position, 0.5, 750, 0, 750, 1, 250] for position in range(4)],
                    [[position, 0.1, 1000, 0, 1000] for position in (0, 3)],
                ],
            }
            for name, settings in (("Teacher", [["entropy_threshold", "0.5"]]), ("Student", []))
        ],
    }


def test_page_holds_the_data_and_needs_nothing_else(tmp_path):
    write_page([make_trace()], tmp_path / "new" / "page.html", title="A <b>title</b>")
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    page = Elements(text)
    assert json.loads(page.texts["data"]) == page_data([make_trace()])
    assert page.texts["title"] == page.texts["h1"] == "A <b>title</b>"
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form"}
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "style")}
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"https?://|url\(|@import|innerHTML|insertAdjacentHTML|\beval\b|fetch\(", text)
    (policy,) = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none';")


def test_controls_have_names():
    page = Elements(render_page([make_trace()], "Title"))
    html = next(attributes for tag, attributes in page.tags if tag == "html")
    assert html["lang"] == "en"
    assert [page.texts[name] for name in ("play", "back", "step")] == ["Play", "Back", "Step"]
    tags = [tag for tag, _ in page.tags]
    assert tags.index("label") < tags.index("input") < tags.index("output")


def test_all_that_is_read_stands_in_a_landmark():
    body = render_page([make_trace()], "Title").partition("<body>")[2].partition("<script")[0]
    assert re.sub(r"<(header|section|main|footer)\b.*?</\1>", "", body, flags=re.DOTALL).strip() == ""


def test_text_of_a_model_stays_text():
    trace = make_trace(
        name=HOSTILE,
        prompt=HOSTILE,
        tokens=[HOSTILE, "\ud800", "\u2028", "<!--"],
        settings={"stop_strings": [HOSTILE]},
    )
    text = render_page([trace], HOSTILE)
    plain = render_page([make_trace()], "Title")
    assert [tag for tag, _ in Elements(text).tags] == [tag for tag, _ in Elements(plain).tags]
    page = Elements(text)
    assert json.loads(page.texts["data"]) == page_data([trace])
    assert page.texts["title"] == HOSTILE
    assert "<" not in page.texts["data"] and page.texts["data"].isascii()


def test_half_a_character_does_not_end_the_page(tmp_path):
    """A model can write a lone surrogate, and a prompt of a file can hold one."""
    write_page([make_trace(name="\ud800", tokens=["\udfff", ".", "", ""])], tmp_path / "page.html", title="a \ud800 b")
    page = Elements((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.texts["title"] == "a ? b" and json.loads(page.texts["data"])["decodes"][0]["name"] == "\ud800"


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`traces` is empty"):
        write_page([], tmp_path / "page.html")


def test_size_grows_with_the_open_tokens_only():
    """On a canvas of 64 tokens, at one token a pass, half of the tokens of all passes are open."""
    config = DiffusionGenerationConfig(max_new_tokens=64, block_length=32, stop_at_eos=False)
    trace = trace_decode(make_llada(), make_tokenizer(), [9, 10], config)
    rows = [row for rows in page_data([trace])["decodes"][0]["passes"] for row in rows]
    assert len(rows) == 64 * 65 / 2 and max(map(len, rows)) == 3 + 2 * 5
    size = len(render_page([trace], "Title")) - len(render_page([make_trace()], "Title"))
    assert size < 60 * len(rows)
