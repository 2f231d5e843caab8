# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of the server in a headless browser: what a reader sees, presses and hears."""

import time

import httpx

from ..browser import NEEDS_BROWSER, set_window
from .conftest import Gate, running, wait_for
from .test_app import PROBLEMS, alone


pytestmark = NEEDS_BROWSER


class Page:
    """The page of a server, in a window of a size."""

    def __init__(self, driver, url, **window):
        self.driver = driver
        set_window(driver, **window)
        driver.get_log("browser")
        driver.get(f"{url}/")
        wait_for(lambda: self.find(".side"))

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        return [node.text for node in self.find(selector)]

    def ask(self, text):
        self.find("#message")[0].send_keys(f"{text}\n")

    def wait_for_answer(self, number=1):
        # Asking a browser costs more than decoding.
        wait_for(lambda: time.sleep(0.1) or len(self.find(".answer[aria-busy=false]")) == number)

    def choose(self, selector, text):
        from selenium.webdriver.support.ui import Select

        Select(self.find(selector)[0]).select_by_visible_text(text)

    def check(self, width):
        problems = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert problems == [] and self.driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_chat_side_by_side(served, server, driver):
    page = Page(driver, server.url, width=1100)
    page.find("#compare")[0].click()
    assert page.texts(".side:first-child option:checked") == ["demo", "one token per pass"]
    assert page.texts(".side:last-child option:checked") == ["demo", "recipe: entropy_threshold 0.5"]
    page.ask(PROBLEMS[0])
    page.wait_for_answer(2)
    slow, fast = (alone(served, PROBLEMS[0], **settings) for settings in ({"denoising_steps": 64}, {}))
    assert page.texts(".answer") == [slow[0], fast[0]]
    for cost, (*_, num_tokens, nfe) in zip(page.texts(".cost"), (slow, fast), strict=True):
        assert cost.startswith(f"{nfe} passes, {num_tokens / nfe:.2f} tokens per pass, ")
    # One colour a pass.
    colors = driver.execute_script(
        "return [...document.querySelectorAll('.side:last-child .token')]"
        ".map(node => [node.title, getComputedStyle(node).backgroundColor])"
    )
    assert len({title for title, _ in colors}) == len({color for _, color in colors}) > 3
    spoken = page.find("#spoken")[0].get_attribute("textContent")
    assert fast[0] in spoken and "tokens per pass" in spoken
    assert driver.switch_to.active_element.get_attribute("id") == "message"
    page.check(1100)


def test_the_threshold_is_chosen_and_tokens_light_up(served, driver):
    with running(served) as server, Gate(served.model) as gate:
        page = Page(driver, server.url, width=390, height=800, color_scheme="dark")
        page.choose("#rule-2", "entropy_threshold")
        driver.execute_script(
            "const slider = document.getElementById('value-2'); slider.value = 1.5;"
            "slider.dispatchEvent(new Event('input'))"
        )
        assert page.texts("output") == ["1.5"]
        page.ask(PROBLEMS[1])
        assert page.texts("#send") == ["Stop"]
        gate.open.set()
        page.wait_for_answer()
        text, _, _, nfe = alone(served, PROBLEMS[1], entropy_threshold=1.5)
        assert page.texts(".answer") == [text] and page.texts(".cost")[0].startswith(f"{nfe} passes, ")
        page.check(390)


def test_an_answer_is_stopped_by_the_keyboard(served, driver):
    from selenium.webdriver.common.keys import Keys

    with running(served) as server, Gate(served.model) as gate:
        page = Page(driver, server.url)
        page.ask(PROBLEMS[0])
        wait_for(lambda: server.engine.num_active == 1)
        page.find("#message")[0].send_keys(Keys.ESCAPE)
        page.wait_for_answer()
        assert page.texts(".cost") == ["Stopped."] and page.texts("#send") == ["Send"]
        gate.open.set()
        wait_for(lambda: server.engine.num_active == 0)
        page.find("#clear")[0].click()
        assert page.texts(".message") == []


def test_text_is_shown_as_it_is_and_errors_in_words(server, driver):
    page = Page(driver, server.url)
    hostile = "<img src=x onerror=alert(1)>"
    page.ask(hostile)
    page.wait_for_answer()
    assert page.texts(".user") == [hostile] and not page.find("img")
    page.ask("pens " * 800)
    page.wait_for_answer(2)
    assert "together more than the 768" in page.texts(".cost")[1]
    assert httpx.get(f"{server.url}/health").json()["active"] == 0


def test_a_server_with_a_key_asks_for_it(served, driver):
    with running(served, api_key="secret") as server:
        set_window(driver)
        driver.get(f"{server.url}/")
        (key,) = driver.find_elements("css selector", "#key")
        wait_for(key.is_displayed)
        key.send_keys("secret\t")
        wait_for(lambda: driver.find_elements("css selector", ".side"))
