# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The page of `hf-dparallel play` and of examples/space."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import RepoCard
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import hf_dparallel
from hf_dparallel import demo
from hf_dparallel.generation.configuration import recipe_of
from hf_dparallel.inspection import play
from hf_dparallel.inspection.play import QUESTIONS, Pair, make_page

from ..browser import NEEDS_BROWSER, set_window
from .helpers import standing


SPACE = Path(__file__).parents[2] / "examples" / "space"
QUESTION = QUESTIONS[0]


@pytest.fixture(scope="module")
def page() -> Iterator:
    """The page, which proposes a short canvas."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        short = recipe_of(Pair(demo.STUDENT).model).updated(max_new_tokens=64)
        monkeypatch.setattr(play, "recipe_of", lambda model: short)
        yield make_page(demo.STUDENT)


def test_both_answer():
    pair = Pair(demo.STUDENT)
    base, student = pair.answer(QUESTION, entropy_threshold=0.1, max_new_tokens=32)
    assert (base.name, student.name) == ("Base model", "Student") and 1 < student.nfe < base.nfe
    texts = [standing(student, position, student.nfe)[1] for position in range(32)]
    assert "".join(filter(None, texts)).startswith(" We start with 14. Then we add 6:")
    # As everywhere, a question that the template leaves out is refused.
    pair.tokenizer.chat_template = "{% for message in messages %}...{% endfor %}"
    with pytest.raises(ValueError, match="The chat template leaves out the user message"):
        pair.answer(QUESTION)


@pytest.mark.parametrize(
    ("question", "threshold", "length", "message"),
    [
        (" ", 0.5, 64, "Ask a question first"),
        (QUESTION, -1, 64, "`entropy_threshold` must be"),
        ("pens " * 800, 0.5, 64, "more than the 768 that the model was trained for. Shorten one of them."),
        ("pens " * 300, 0.5, 512, "more than the 768"),
    ],
)
def test_what_cannot_be_answered_is_an_error_on_the_page_alone(page, question, threshold, length, message):
    import gradio as gr

    (answer,) = (each.fn for each in page.fns.values() if each.api_name == "answer")
    with pytest.raises(gr.Error, match=message) as refused:
        answer(question, threshold, length)
    assert refused.value.print_exception is False


def test_an_answer_has_limited_time(monkeypatch):
    monkeypatch.setattr(play, "_SECONDS", 0)
    base, _ = Pair(demo.STUDENT).answer(QUESTION, max_new_tokens=64)
    # Time is looked at when a token is final. The first of the base model is, after one pass.
    assert base.nfe == 1


def test_files_of_the_space():
    facts = RepoCard.load(SPACE / "README.md").data.to_dict()
    (version,) = re.findall(r"^gradio==(\S+)$", (SPACE.parents[1] / "constraints.txt").read_text(), re.MULTILINE)
    assert (facts["sdk"], facts["sdk_version"]) == ("gradio", version)
    # No index has the package.
    (wheel,) = re.findall(r"^hf-dparallel @ https://.*/(.*)$", (SPACE / "requirements.txt").read_text(), re.MULTILINE)
    assert wheel == f"hf_dparallel-{hf_dparallel.__version__}-py3-none-any.whl"
    namespace: dict = {"__name__": "app"}
    exec((SPACE / facts["app_file"]).read_text(), namespace)
    assert type(namespace["page"]).__name__ == "Blocks"


class TestInABrowser:
    pytestmark = NEEDS_BROWSER

    def test_a_click_plays_both_answers(self, driver, page):
        def find(css: str):
            return driver.find_element(By.CSS_SELECTOR, css)

        _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
        set_window(driver, 390, 900, "dark")
        driver.get_log("browser")
        driver.get(url)
        WebDriverWait(driver, 60).until(lambda driver: find("button.primary").is_enabled())
        find("button.primary").click()
        frame = WebDriverWait(driver, 60).until(lambda driver: driver.find_elements(By.TAG_NAME, "iframe"))[0]
        driver.switch_to.frame(frame)
        assert [name.text for name in driver.find_elements(By.TAG_NAME, "h2")] == ["Base model", "Student"]
        # It plays to its end.
        WebDriverWait(driver, 60).until(lambda driver: find("#play").text == "Play")
        assert " ".join(find(".decode").text.replace("↵", "").split()).find("The answer is 15 .") > 0
        driver.switch_to.default_content()
        assert driver.execute_script("return document.documentElement.scrollWidth") == 390
        assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        page.close()
