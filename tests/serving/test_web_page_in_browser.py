# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of the server in a headless browser: what a reader sees, presses and hears."""

import base64
import contextlib
import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from hf_dparallel.serving.web_page import EXAMPLES, render_page

from ..browser import NEEDS_BROWSER, set_window
from .helpers import PROBLEMS, Gate, alone, running, wait_for


pytestmark = NEEDS_BROWSER


class Page:
    """The page of a server, in a window of a size."""

    def __init__(self, driver, url, shown=".side", fragment="", **window):
        self.driver = driver
        set_window(driver, **window)
        driver.get_log("browser")
        driver.get(f"{url}/{fragment}")
        wait_for(lambda: self.texts(shown))

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        # Of what is visible, and at once: what the page draws anew between two questions is another node.
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter(node => (node.closest('select') ?? node).checkVisibility()).map(node => node.innerText.trim())"
        )
        return self.driver.execute_script(script, selector)

    def ask(self, text):
        self.find("#message")[0].send_keys(f"{text}\n")

    def wait_for_answer(self, number=1):
        # Asking a browser costs more than decoding.
        wait_for(lambda: time.sleep(0.1) or len(self.find(".answer[aria-busy=false]")) == number)

    def choose(self, selector, text):
        from selenium.webdriver.support.ui import Select

        Select(self.find(selector)[0]).select_by_visible_text(text)

    def drag(self, selector, *values):
        """As a pointer does: a value, then the event."""
        script = (
            "const node = [...document.querySelectorAll(arguments[0])].at(-1);"
            "node.value = arguments[1]; node.dispatchEvent(new Event('input'))"
        )
        for value in values:
            self.driver.execute_script(script, selector, value)

    def check(self, width):
        problems = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert problems == [] and self.driver.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("height", "position"), [(800, "static"), (900, "sticky")])
def test_open_settings_scroll_away_where_the_window_is_low(server, driver, height, position):
    """They would take a third of it, and the question pass under them."""
    page = Page(driver, server.url, width=1100, height=height)
    read = "return getComputedStyle(document.querySelector('header')).position"
    assert driver.execute_script(read) == position
    page.find("#panels summary")[0].click()
    assert driver.execute_script(read) == "sticky"


def test_a_race_and_its_replay(served, server, driver):
    page = Page(driver, server.url, width=1100)
    page.find("#compare")[0].click()
    assert page.texts(".settings option:checked") == ["demo", "one token per pass", "demo", "entropy_threshold"]
    page.ask(PROBLEMS[1])
    page.wait_for_answer(2)
    slow, fast = (alone(served, PROBLEMS[1], **settings) for settings in ({"denoising_steps": 64}, {}))
    assert page.texts(".answer") == [slow[0], fast[0]]
    for cost, (*_, num_tokens, nfe) in zip(page.texts(".cost"), (slow, fast), strict=True):
        assert cost.startswith(f"{nfe} passes {num_tokens} tokens, ")
    fewer = f"{round(slow[3] / fast[3], 1):g}× fewer passes\n{fast[3]} instead of {slow[3]}, the same answer"
    assert page.texts("#verdict") == [fewer]
    # One colour a pass.
    look = (
        "return [...document.querySelectorAll('.side:last-child .by-pass')]"
        ".map(node => [node.title, getComputedStyle(node).backgroundColor])"
    )
    shown = driver.execute_script(look)
    assert len({title for title, _ in shown}) == len({color for _, color in shown}) > 3
    spoken = page.find("#spoken")[0].get_attribute("textContent")
    assert fast[0] in spoken and "passes" in spoken
    assert driver.switch_to.active_element.get_attribute("id") == "message"
    for number in (2, 0, 3):
        page.drag("#pass", number)
        before = [pair for pair in shown if int(pair[0].removeprefix("pass ")) <= number]
        assert driver.execute_script(look) == before
        assert page.texts("#race output") == [f"{number} of {slow[3]}"] and page.find(".mask")
    # What is confident is filled.
    filled = "[...document.querySelectorAll('.answer .mask')].map(mask => mask.style.getPropertyValue('--confidence'))"
    assert len({float(text) for text in driver.execute_script(f"return {filled}")}) > 3
    page.find("#replay")[0].click()
    assert page.texts("#replay") == ["Pause"]
    wait_for(lambda: page.texts("#race output") != [f"3 of {slow[3]}"])
    page.drag(".value", 3)
    wait_for(lambda: page.texts("#verdict")[0].startswith("Another answer\n"))
    assert page.find("#message")[0].get_attribute("placeholder").startswith("A tiny model")
    page.check(1100)


def test_a_link_opens_with_a_race(served, driver):
    with running(served, models={name: replace(served, name=name) for name in ("student", "demo")}) as server:
        page = Page(driver, server.url, fragment="#play", shown=".user", width=390, height=800, color_scheme="dark")
        page.wait_for_answer(2)
        wait_for(lambda: page.texts("#replay") == ["Pause"])
        (left, right), (top, other) = zip(
            *((side.rect["x"], side.rect["y"]) for side in page.find(".side")), strict=True
        )
        assert right - left > 180 and top == other
        page.check(390)


def test_an_answer_is_stopped_by_the_keyboard(served, driver):
    from selenium.webdriver.common.keys import Keys

    with running(served) as server, Gate(served.model) as gate:
        page = Page(driver, server.url)
        page.ask(PROBLEMS[0])
        wait_for(lambda: server.engine.num_active == 1)
        assert page.texts("#send") == ["Stop"]
        page.find("#message")[0].send_keys(Keys.ESCAPE)
        page.wait_for_answer()
        assert page.texts(".cost") == ["stopped"] and page.texts("#send") == ["Send"] and not page.find(".error .cost")
        gate.open.set()
        wait_for(lambda: server.engine.num_active == 0)
        page.find("#clear")[0].click()
        assert page.texts(".user, .answer") == []


def test_text_is_shown_as_it_is_and_errors_in_words(server, driver):
    page = Page(driver, server.url)
    hostile = "<img src=x onerror=alert(1)>"
    page.ask(hostile)
    page.wait_for_answer()
    assert page.texts(".user") == [hostile] and not page.find("img")
    driver.execute_script("document.getElementById('message').value = 'pens '.repeat(800)")
    page.ask("")
    page.wait_for_answer(2)
    assert "maximum context length is 768 tokens" in page.texts(".cost")[1]
    assert httpx.get(f"{server.url}/health").json()["active"] == 0


def test_a_server_with_a_key_asks_for_it(served, driver):
    with running(served, api_key="secret") as server:
        page = Page(driver, server.url, shown="#problem")
        assert page.texts("[role=alert]") == ["The server asks for an API key."]
        page.find("#key")[0].send_keys("wrong\t")
        wait_for(lambda: page.texts("[role=alert]") == ["This key is wrong."])
        page.find("#key")[0].clear()
        page.find("#key")[0].send_keys("secret\t")
        wait_for(lambda: page.find(".side"))
        assert not page.find("#problem")[0].is_displayed()


_DECODING = {"max_new_tokens": 64, "block_length": 32, "entropy_threshold": 0.3}
_MODELS = json.dumps({"data": [{"id": "demo", "parent": None, "decoding": _DECODING}]})
_PROXY = "<html><h1>Bad gateway</h1></html>"
_KEY = json.dumps({"error": {"message": "Send the header `Authorization`."}})
_USAGE = {"choices": [], "usage": {"completion_tokens": 2}}


def passes(first, last):
    """The events of an answer that gets a line a pass."""
    for step in range(first, last):
        draft = {"nfe": step + 1, "start": step, "tokens": [{"text": f"line {step}\n", "commit_step": step}]}
        choice = {"delta": {"content": f"line {step}\n"}, "draft": draft}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"


def answer_of(num_passes):
    return [*passes(0, num_passes), f"data: {json.dumps(_USAGE)}\n\n", "data: [DONE]\n\n"]


class Fake:
    """Serves the page and, by their paths, what a test says: a status and the parts of a body."""

    def __init__(self):
        self.models, self.chat, self.asked = (200, [_MODELS]), (200, answer_of(2)), []

    @contextlib.contextmanager
    def running(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._answer({"/": (200, [render_page()[0]]), "/v1/models": fake.models}[self.path])

            def do_POST(self):
                fake.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer(fake.chat(fake.asked[-1]) if callable(fake.chat) else fake.chat)

            def _answer(self, answer):
                status, parts = answer
                self.send_response(status)
                self.end_headers()
                for part in parts:
                    self.wfile.write(part.encode())

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("localhost", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def fake():
    return Fake()


def test_a_long_answer_is_drawn_by_the_frame_and_can_be_read_and_printed(fake, driver):
    half, rest = threading.Event(), threading.Event()

    def slowly():
        yield from passes(0, 1000)
        half.set()
        rest.wait(30)
        yield from [*passes(1000, 2000), *answer_of(0)]

    fake.chat = 200, slowly()
    with fake.running() as url:
        page = Page(driver, url, width=320, height=256)
        driver.execute_script(
            "window.draws = 0; const draw = Answer.prototype.draw; Answer.prototype.draw = function() {"
            "  window.draws += 1; draw.call(this); }"
        )
        page.ask("Count.")
        assert half.wait(30)
        wait_for(lambda: page.texts(".cost") == ["1000 passes"])
        # At the end of the page it follows, and the header has made room.
        top, bottom, reached = driver.execute_script(
            "return [document.querySelector('header').getBoundingClientRect().bottom,"
            "  document.querySelector('footer').getBoundingClientRect().top,"
            "  document.querySelector('.cost').getBoundingClientRect().bottom]"
        )
        assert top <= 0 and 130 < reached <= bottom <= 256
        # Whoever reads further up stays there.
        driver.execute_script("scrollTo(0, 500)")
        rest.set()
        page.wait_for_answer()
        assert driver.execute_script("return [scrollY, document.querySelectorAll('.by-pass').length]") == [500, 2000]
        assert driver.execute_script("return window.draws") < 1000
        pdf = driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
        assert base64.b64decode(pdf).count(b"/Type /Page\n") > 25


@pytest.mark.parametrize(
    "answer, problem",
    [
        ((502, [_PROXY]), "The server answered with status 502."),
        ((200, [_PROXY]), "What answered is no server of hf-dparallel."),
        ((200, ["{}"]), "What answered is no server of hf-dparallel."),
    ],
)
def test_models_that_cannot_be_listed_are_asked_for_again(fake, driver, answer, problem):
    good, fake.models = fake.models, answer
    with fake.running() as url:
        page = Page(driver, url, shown="#problem")
        assert page.texts("[role=alert]") == [problem]
        fake.models = good
        page.find("#retry")[0].click()
        wait_for(lambda: page.find(".side"))
        assert not page.find("#problem")[0].is_displayed()


def test_answers_that_fail_say_why_and_the_message_can_be_sent_again(fake, driver):
    word = "word" * 500
    answers = {
        "The server answered with status 502.": (502, [_PROXY]),
        "The answer broke off.": (200, [_PROXY, "\n\n"]),
        word: (400, [json.dumps({"error": {"message": word}})]),
        "The server asks for an API key.": (401, [_KEY]),
    }
    with fake.running() as url:
        page = Page(driver, url, width=390, height=640)
        good = fake.chat
        for number, (problem, fake.chat) in enumerate(answers.items(), start=1):
            page.ask("" if number > 1 else "Hello")
            page.wait_for_answer()
            assert page.texts(".cost") == [problem] and page.find(".cost .error")
            assert page.find("#message")[0].get_property("value") == "Hello"
            end = "document.querySelector('.log').lastChild.lastChild.getBoundingClientRect().bottom"
            assert driver.execute_script(
                f"return {end} <= document.querySelector('footer').getBoundingClientRect().top"
            )
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        # The server has got a key meanwhile. What was said stays.
        fake.chat = 200, good[1][:1]
        page.find("#key")[0].send_keys("secret\t")
        wait_for(lambda: driver.switch_to.active_element == page.find("#message")[0])
        page.ask("")
        page.wait_for_answer()
        assert page.texts(".user") == ["Hello"] and page.texts(".answer") == ["line 0"]
        assert page.texts(".cost")[-1] == "1 pass The answer broke off."
        assert page.find("#message")[0].get_property("value") == ""
    page.ask("More")
    page.wait_for_answer(2)
    assert page.texts(".cost")[-1] == "The server does not answer. Is it still running?"
    assert page.find("#message")[0].get_property("value") == "More"


def test_the_other_side_goes_on_with_what_was_said(fake, driver):
    with fake.running() as url:
        page = Page(driver, url)
        page.ask("Hello")
        page.wait_for_answer()
        page.find("#compare")[0].click()
        assert page.texts(".user") == ["Hello"] * 2 and page.texts(".answer") == ["line 0\nline 1"] * 2
        page.ask("More")
        page.wait_for_answer(4)
    assert [len(body["messages"]) for body in fake.asked] == [1, 3, 3]


def test_examples_are_conversations(fake, driver):
    with fake.running() as url:
        page = Page(driver, url)
        assert page.find("#welcome")[0].is_displayed() and len(page.find("#examples button")) == 6
        page.ask("Hello")
        page.wait_for_answer()
        page.find("#examples button")[3].click()
        page.wait_for_answer(2)
        assert page.texts(".user") == EXAMPLES["a follow-up"] and not page.find("#welcome")[0].is_displayed()
    assert [len(body["messages"]) for body in fake.asked] == [1, 1, 3]


def test_a_threshold_is_moved_until_the_answer_breaks(fake, driver):
    """The question is asked again with the value where the slider rests. An earlier answer is dropped."""
    late = threading.Event()

    def answer(body):
        if "stream" not in body:
            return 200, [json.dumps({"choices": [{"message": {"content": "line 0\nline 1\n"}}]})]
        return 200, slowly(body.get("entropy_threshold"))

    def slowly(threshold):
        if threshold == 1:
            yield from passes(0, 1)
            late.wait(30)
        yield from answer_of(2 if threshold in (None, 0.7) else 1)

    fake.chat = answer
    with fake.running() as url:
        page = Page(driver, url, width=390, height=800)
        page.find("summary")[0].click()
        assert page.texts(".tuned output") == ["0.3"] and "up to ln 2 = 0.69" in page.texts(".help")[0]
        page.ask("Count.")
        page.wait_for_answer()
        for value in (0.7, 1):
            page.drag(".value", 0.1, 0.2, value)
            wait_for(lambda value=value: fake.asked[-1].get("entropy_threshold") == value)
        page.drag(".value", 3)
        wait_for(lambda: page.texts(".marks i")[1:] == ["●", "●", "✕"])
        assert page.texts(".help") == ["✕ Another answer than with one token per pass. It changes at 3."]
        assert page.texts(".answer") == ["line 0"] and page.texts(".by") == ["demo, entropy_threshold 3"]
        late.set()
        page.drag(".value", 0.7)
        wait_for(lambda: page.texts(".answer") == ["line 0\nline 1"])
        page.ask("More.")
        page.wait_for_answer(2)
        page.check(390)
    values = [body.get("entropy_threshold") for body in fake.asked if "stream" in body]
    assert values == [None, 0.7, 1, 3, 0.7, 0.7] and sum("stream" not in body for body in fake.asked) == 1
    said = [message["content"] for message in fake.asked[-1]["messages"]]
    assert said == ["Count.", "line 0\nline 1\n", "More."]
