# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page in a headless browser: what a reader sees, points at and presses."""

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.inspection.page import write_page
from hf_dparallel.inspection.trace import Prediction, trace_decode

from ..browser import NEEDS_BROWSER, set_window
from ..helpers import make_llada, make_tokenizer
from .helpers import HOSTILE, make_trace, standing


pytestmark = NEEDS_BROWSER

_LOOK = """
return [...document.querySelectorAll(".decode")].map(decode => [...decode.querySelectorAll(".token")].map(token => [
  token.classList.contains("mask") ? null : token.textContent, token.classList.contains("new"),
  getComputedStyle(token).backgroundColor]));
"""
_TEXTS = "return arguments[0].map(selector => document.querySelector(selector).textContent)"
_DRAG = "const slider = document.getElementById('slider'); slider.value = arguments[0]; slider.oninput();"
_POINT = "document.querySelectorAll('.token')[arguments[0]].dispatchEvent(new Event('pointerenter'));"
_PLAY = """
const done = arguments[0], button = document.getElementById("play"), wait = setInterval;
window.setInterval = (work, delay) => wait(work, 10);
new MutationObserver(() => { if (button.textContent === "Play") done(true); })
  .observe(button, {childList: true, characterData: true, subtree: true});
button.click();
"""


def open_page(driver, path, traces, **window):
    write_page(traces, path)
    set_window(driver, **window)
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get(path.as_uri())


def texts(driver, *selectors):
    return driver.execute_script(_TEXTS, selectors)


def check_logs(driver):
    """The page says nothing and loads nothing."""
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url.partition(":")[0] for url in urls if not url.startswith("data:")] == ["file"]


def check_pass(driver, traces, number):
    """What the page shows is what stands after this pass."""
    for tokens, trace in zip(driver.execute_script(_LOOK), traces, strict=True):
        colors: dict[int, set[str]] = {}
        reached = min(number, trace.nfe)
        for position, (text, is_new, color) in enumerate(tokens):
            step, expected = standing(trace, position, reached)
            assert text == expected and is_new == (expected is not None and step == reached - 1)
            if expected is not None:
                colors.setdefault(step, set()).add(color)
        # One colour a pass, another for each.
        assert len(set().union(*colors.values())) == sum(map(len, colors.values())) == len(colors)


@pytest.mark.parametrize("window", [{"color_scheme": "light"}, {"width": 390, "color_scheme": "dark"}], ids=str)
def test_two_decodes_are_stepped_through_together(driver, tmp_path, window):
    model, tokenizer = make_llada(), make_tokenizer()
    base = DiffusionGenerationConfig(max_new_tokens=16, block_length=8)
    slow = trace_decode(model, tokenizer, [9, 10, 11], base.updated(denoising_steps=8, stop_at_eos=False), "Slow")
    fast = trace_decode(model, tokenizer, [9, 10, 11], base.updated(entropy_threshold=1.0, eos_token_id=34), "Fast")
    open_page(driver, tmp_path / "page.html", [slow, fast], **window)
    last = max(slow.nfe, fast.nfe)
    check_pass(driver, [slow, fast], 1)
    assert texts(driver, "#shown", "h2", ".figures", ".settings", "section pre") == [
        f"1 of {last}",
        "Slow",
        f"{slow.nfe} forward passes (NFE), {slow.tokens_per_forward:.2f} tokens per forward pass",
        ", ".join(f"{name}={json.dumps(value)}" for name, value in slow.settings.items()),
        slow.prompt,
    ]
    for number in (0, 3, last):
        driver.execute_script(_DRAG, number)
        check_pass(driver, [slow, fast], number)
    # From the end it plays from the start, and stops at the end.
    assert driver.execute_async_script(_PLAY) and texts(driver, "#shown") == [f"{last} of {last}"]
    driver.execute_script(_DRAG, 2)
    for position in range(16):
        driver.execute_script(_POINT, position)
        step, text = standing(slow, position, 2)
        shown = step if text is not None else 1
        prediction = slow.predictions[shown][position]
        state, certainty, *candidates = texts(driver, "#details")[0].split("\n")
        assert state == f"Position {position + 1}: " + ("masked" if text is None else f"committed in pass {step + 1}")
        assert (
            certainty == f"Pass {shown + 1}: confidence {prediction.confidence:.3f}, entropy {prediction.entropy:.2f}"
        )
        assert [line.split() for line in candidates] == [
            [f"{100 * p:.1f}", "%", *name.split()] for name, p in prediction.candidates if p >= 0.0005
        ]
    assert driver.execute_script("return document.documentElement.scrollWidth") <= window.get("width", 1200)
    check_logs(driver)


def test_candidates_are_reached_by_keyboard(driver, tmp_path):
    open_page(driver, tmp_path / "page.html", [make_trace(), make_trace()])

    def press(*keys) -> str:
        ActionChains(driver).send_keys(*keys).perform()
        return texts(driver, "#details")[0].split("\n")[0]

    driver.execute_script("document.querySelector('summary').focus()")
    assert press(Keys.TAB) == "Position 1: masked"
    # At the ends they stay.
    assert press(Keys.ARROW_LEFT) == "Position 1: masked"
    assert press(Keys.ARROW_RIGHT) == "Position 2: committed in pass 1"
    assert press(Keys.ARROW_RIGHT) == "Position 3: committed in pass 1"
    assert press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT) == "Position 4: masked"
    # One stop for each decode: the prompt of the next one, then its first token.
    assert press(Keys.TAB, Keys.TAB) == "Position 1: masked"
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.TAB, Keys.TAB).key_up(Keys.SHIFT).perform()
    assert press() == "Position 4: masked"
    assert texts(driver, "#shown") == ["1 of 2"]
    check_logs(driver)


def test_text_of_a_model_does_no_harm(driver, tmp_path):
    tokens = [HOSTILE, "<b>bold</b>", "\N{RIGHT-TO-LEFT OVERRIDE}x", "\n"]
    predicted = Prediction(0.5, 0.9, [(HOSTILE, 0.9), ("\N{RIGHT-TO-LEFT OVERRIDE}x", 0.05)])
    trace = make_trace(
        name=HOSTILE, prompt=HOSTILE, changes=[[(0, token)] for token in tokens], nfe=1,
        predictions=[dict.fromkeys(range(4), predicted)], settings={"stop_strings": HOSTILE},
    )  # fmt: skip
    open_page(driver, tmp_path / "page.html", [trace], width=390)
    driver.execute_script(_POINT, 1)
    details = texts(driver, "#details")[0].split("\n")[2:]
    assert [line.split("%  ")[1] for line in details] == [HOSTILE, r"\u{202e}x"]
    shown = [text for text, *_ in driver.execute_script(_LOOK)[0]]
    assert shown == [HOSTILE, "<b>bold</b>", r"\u{202e}x", "↵"]
    assert texts(driver, "h2", "section pre") == [HOSTILE, HOSTILE]
    assert driver.execute_script("return window.harmed") is None
    assert not driver.find_elements("css selector", "img, b")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    check_logs(driver)
