# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page in a headless browser: what a reader sees, hovers over and presses."""

import json

import pytest

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.page import write_page
from hf_dparallel.inspection.trace import trace_decode

from ..browser import NEEDS_BROWSER, set_window
from ..helpers import make_llada, make_tokenizer
from .helpers import HOSTILE, make_trace


pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def traces():
    """A slow and a fast decode of the same prompt, the latter with an early end."""
    model, tokenizer = make_llada(), make_tokenizer()
    base = DiffusionGenerationConfig(max_new_tokens=16, block_length=8)
    slow = trace_decode(model, tokenizer, [9, 10, 11], base.updated(denoising_steps=8, stop_at_eos=False), "Slow")
    fast = trace_decode(model, tokenizer, [9, 10, 11], base.updated(entropy_threshold=1.0, eos_token_id=34), "Fast")
    assert fast.nfe != slow.nfe and -1 in fast.commit_step
    return [slow, fast]


class Page:
    """A page that is open, in a window of a size."""

    def __init__(self, driver, path, traces, width=1200, height=900, color_scheme="light", fragment=""):
        self.driver, self.traces = driver, traces
        write_page(traces, path)
        set_window(driver, width, height, color_scheme)
        for log in ("browser", "performance"):
            driver.get_log(log)
        driver.get(path.as_uri() + fragment)
        self.decodes = self.find(".decode")

    def find(self, selector, parent=None):
        return (parent or self.driver).find_elements("css selector", selector)

    def tokens(self, decode):
        return self.find(".token", self.decodes[decode])

    def hover(self, element):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()

    def drag_slider_to(self, number):
        """As a pointer does: a value, then the events."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.driver.execute_script(script, self.find("#slider")[0], number)

    def shown(self):
        """The pass that is shown, as the page says."""
        return int(self.find("#shown")[0].text.split(" of ")[0])

    def look(self, decode):
        """For each token, its text, whether it is a mask, whether it is new, its colour."""
        return self.driver.execute_script(
            "return [...arguments[0].querySelectorAll('.token')].map(token => [token.textContent,"
            "token.classList.contains('mask'), token.classList.contains('new'),"
            "getComputedStyle(token).backgroundColor])",
            self.decodes[decode],
        )

    def details(self):
        (details,) = self.find("#details")
        if not details.is_displayed():
            return None
        rows = [[cell.text for cell in self.find("td", row)][:2] for row in self.find("tr", details)]
        return [line.text for line in self.find("p", details)], rows

    def check_logs(self):
        assert self.driver.get_log("browser") == []
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert urls and all(url.startswith(("file://", "data:")) for url in urls)
        assert sum(url.startswith("file://") for url in urls) == 1


@pytest.fixture
def page(driver, traces, tmp_path):
    page = Page(driver, tmp_path / "page.html", traces)
    yield page
    page.check_logs()


def check_pass(page, number):
    """What the page shows is what stands after this pass."""
    for decode, trace in enumerate(page.traces):
        reached = min(number, trace.nfe)
        colors = {}
        for (text, is_mask, is_new, color), token, step in zip(
            page.look(decode), trace.tokens, trace.commit_step, strict=True
        ):
            stands = 0 <= step < reached
            assert (text, is_mask) == ((token, False) if stands else ("", True))
            assert is_new == (stands and step == reached - 1)
            if stands:
                colors.setdefault(step, set()).add(color)
        # One colour a pass, another for each.
        assert all(len(shades) == 1 for shades in colors.values())
        assert len(set.union(set(), *colors.values())) == len(colors)
        assert all(color.startswith("oklch(") for shades in colors.values() for color in shades)
        state = page.find(".state", page.decodes[decode])[0].text
        assert state.startswith(f"After pass {reached} of {trace.nfe}: ")


def test_it_opens_after_the_first_pass_with_what_the_answers_cost(page):
    check_pass(page, page.shown())
    assert page.shown() == 1
    for decode, trace in zip(page.decodes, page.traces, strict=True):
        assert page.find("h2", decode)[0].text == trace.name
        figures = page.find(".figures", decode)[0].text
        assert figures == f"{trace.nfe} forward passes (NFE), {trace.tokens_per_forward:.2f} tokens per forward pass"
        for name, value in trace.settings.items():
            assert f"{name}={value}" in page.find(".settings", decode)[0].text
        assert page.find(".prompt:not([open]) pre", decode)[0].get_property("textContent") == trace.prompt
        blocks = page.find(".block", decode)
        assert [block.get_attribute("aria-label") for block in blocks] == ["Block 1 of 2", "Block 2 of 2"]
        assert [len(page.find(".token", block)) for block in blocks] == [8, 8]
        assert blocks[0].value_of_css_property("border-top-style") == "solid"


def test_blocks_behind_the_end_are_folded(driver, tmp_path):
    trace = make_trace(commit_step=[1, 0, -1, -1])
    page = Page(driver, tmp_path / "page.html", [trace, make_trace()])
    assert [block.is_displayed() for block in page.find(".block")] == [True, False, True, True]
    assert len(page.find(".unused")) == 1 and len(page.tokens(0)) == 4


def test_a_link_may_name_a_pass(driver, traces, tmp_path):
    page = Page(driver, tmp_path / "page.html", traces, fragment="#pass=2")
    check_pass(page, 2)


def test_slider_steps_all_decodes_together(page):
    for number in range(max(trace.nfe for trace in page.traces), -1, -1):
        page.drag_slider_to(number)
        assert page.shown() == number
        check_pass(page, number)


def test_buttons_step_and_play(page):
    last = max(trace.nfe for trace in page.traces)
    play, back, step = (page.find(f"#{name}")[0] for name in ("play", "back", "step"))
    page.drag_slider_to(last)
    back.click()
    back.click()
    assert page.shown() == last - 2
    step.click()
    assert page.shown() == last - 1
    check_pass(page, last - 1)
    # From the end it plays from the start, and stops at the end.
    step.click()
    page.driver.execute_script("const wait = setInterval; window.setInterval = (work, delay) => wait(work, 20)")
    page.driver.set_script_timeout(20)
    seen = page.driver.execute_async_script(
        "const done = arguments[0], seen = new Set(), button = document.getElementById('play');"
        "new MutationObserver(() => { seen.add(document.getElementById('shown').textContent);"
        "  if (button.textContent === 'Play') done([...seen]); })"
        ".observe(document.body, {childList: true, characterData: true, subtree: true});"
        "button.click()"
    )
    assert seen[-1] == f"{last} of {last}" and len(seen) >= last - 1
    assert play.text == "Play" and page.shown() == last


def expected_details(trace, position, number):
    step = trace.commit_step[position]
    shown = step if 0 <= step < number else number - 1
    prediction = trace.predictions[shown][position]
    rows = [[text, f"{100 * p:.1f}%"] for text, p in prediction.candidates if p >= 0.0005]
    certainty = f"Pass {shown + 1}: confidence {prediction.confidence:.3f}, entropy {prediction.entropy:.2f} nats"
    where = f"committed in pass {step + 1}" if 0 <= step < number else "masked"
    return [f"Position {position + 1}: {where}", certainty], rows


def test_hover_shows_the_candidates_of_the_pass(page):
    page.drag_slider_to(2)
    for decode, trace in enumerate(page.traces):
        committed = trace.commit_step.index(0)
        masked = next(p for p, step in enumerate(trace.commit_step) if step >= 2)
        for position in (committed, masked):
            page.hover(page.tokens(decode)[position])
            assert page.details() == expected_details(trace, position, 2)
    page.hover(page.find("h1")[0])
    assert page.details() is None
    page.drag_slider_to(0)
    page.hover(page.tokens(0)[0])
    assert page.details() == (["Position 1: masked", "Nothing is predicted before the first pass."], [])


def test_tokens_have_names_for_screen_readers(page):
    page.drag_slider_to(1)
    for decode, trace in enumerate(page.traces):
        for position, (element, step) in enumerate(zip(page.tokens(decode), trace.commit_step, strict=True)):
            name = (
                f"{trace.tokens[position]}, committed in pass 1" if step == 0 else f"mask at position {position + 1}"
            )
            assert element.accessible_name == name


_PIXEL = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const pixel = color => {
  canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const luminance = color => {
  const [r, g, b] = pixel(color).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
"""
_CONTRAST = """
const behind = node => {
  const color = getComputedStyle(node).backgroundColor;
  return color === "rgba(0, 0, 0, 0)" ? behind(node.parentElement) : color;
};
return [...document.querySelectorAll("h1, h2, p, summary, pre, button, output, kbd, .block > .name, .legend span")]
  .filter(node => node.checkVisibility() && node.textContent.trim())
  .map(node => {
    const [a, b] = [luminance(getComputedStyle(node).color), luminance(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
"""


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(driver, traces, tmp_path, color_scheme):
    page = Page(driver, tmp_path / "page.html", traces, color_scheme=color_scheme)
    background = page.find("body")[0].value_of_css_property("background-color")
    assert (background == "rgba(255, 255, 255, 1)") == (color_scheme == "light")
    contrasts = driver.execute_script(_PIXEL + _CONTRAST)
    assert len(contrasts) > 30 and min(contrasts) >= 4.5
    page.check_logs()


_SCALE = """
const node = document.body.appendChild(document.createElement("p"));
node.className = "by-pass";
return [...Array(16).keys()].map(step => {
  node.style.setProperty("--when", step / 15);
  const {color, backgroundColor} = getComputedStyle(node);
  const [ink, ground] = [luminance(color) + 0.05, luminance(backgroundColor) + 0.05];
  return [pixel(backgroundColor), ground, Math.max(ink, ground) / Math.min(ink, ground)];
});
"""


@pytest.mark.parametrize("width", [320, 768])
def test_narrow_windows_need_no_sideways_scrolling(driver, traces, tmp_path, width):
    long = make_trace(tokens=["x" * 300, "word " * 40, "line\nbreak", "tab\t"], commit_step=[1, 0, 0, 0])
    page = Page(driver, tmp_path / "page.html", [*traces, long], width=width, height=640)
    for number in (0, 2):
        page.drag_slider_to(number)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        for token in (page.tokens(0)[7], page.tokens(1)[0]):
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", token)
            box = page.find("#details")[0].rect
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    page.check_logs()


def test_text_of_a_model_does_no_harm(driver, tmp_path):
    from hf_dparallel.inspection.trace import Prediction

    tokens = [HOSTILE, "<b>bold</b>", "\N{RIGHT-TO-LEFT OVERRIDE}x", "\n"]
    predictions = [
        {
            position: Prediction(0.5, 0.9, [(HOSTILE, 0.9), ("\N{RIGHT-TO-LEFT OVERRIDE}x", 0.05)])
            for position in range(4)
        }
    ]
    trace = make_trace(
        name=HOSTILE, prompt=HOSTILE, tokens=tokens, commit_step=[0] * 4, nfe=1, predictions=predictions,
        settings={"stop_strings": HOSTILE},
    )  # fmt: skip
    write = tmp_path / "page.html"
    page = Page(driver, write, [trace], fragment="#pass=1")
    page.find("summary")[0].click()
    page.hover(page.tokens(0)[1])
    assert page.details()[1] == [[HOSTILE, "90.0%"], [r"\u{202e}x", "5.0%"]]
    assert [text for text, *_ in page.look(0)] == [HOSTILE, "<b>bold</b>", r"\u{202e}x", "↵"]
    assert page.find("h2")[0].text == HOSTILE and page.find("pre")[0].text == HOSTILE
    assert driver.execute_script("return window.harmed") is None
    assert not page.find("img") and not page.find("b") and len(page.find("script")) == 2
    page.check_logs()
