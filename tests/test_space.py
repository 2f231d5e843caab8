# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""examples/space: base model and student side by side, without a server, and started as on the Hub."""

import html
import os
import re
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from huggingface_hub import RepoCard

import hf_dparallel
from hf_dparallel import demo


SPACE = Path(__file__).parents[1] / "examples" / "space"
QUESTION = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"


def text_of(frame: str) -> str:
    """What stands in a frame, without its cost."""
    return html.unescape(re.sub("<[^>]+>", "", frame.partition("<p")[0]))


@pytest.fixture
def answers(monkeypatch):
    monkeypatch.syspath_prepend(SPACE)
    monkeypatch.delenv("STUDENT", raising=False)
    return import_module("answers")


def test_both_answers_are_played_pass_by_pass(answers):
    pair = answers.Pair()
    base, student = pair.answers(QUESTION, 0.5)
    again = pair.answer(QUESTION, pair.recipe.updated(entropy_threshold=0.5))  # the adapter is enabled again
    assert (again.tokens, again.commit_step) == (student.tokens, student.commit_step)
    frames = list(map(student.to_html, range(base.nfe + 1)))
    assert text_of(frames[-1]) == "".join(student.tokens) and text_of(frames[0]) == ""
    assert 1 < student.nfe < base.nfe and base.to_html(base.nfe).endswith(f">{base.nfe} passes</p>")
    for number, frame in enumerate(frames[: student.nfe]):
        assert frame.count("--when") == sum(0 <= step < number for step in student.commit_step)
        assert re.search(f">{number} pass(es)?<", frame)
        # Those that nothing is known of yet are empty.
        filled = [float(text) > 0 for text in re.findall(r"--confidence:([\d.]+)", frame)]
        assert filled and any(filled) is (number > 0)
    assert set(frames[student.nfe :]) == {frames[-1]} and "mask" not in frames[-1]
    fewer, same = pair.answers(QUESTION, 0.5, base_too=True)
    assert fewer.nfe < base.nfe and same.tokens == student.tokens


def test_texts_of_answers_are_texts(answers):
    shown = answers.Answer(["<b>", ""], [0, -1], [[1.0, 1.0]]).to_html(1)
    assert "&lt;b&gt;" in shown and "<b>" not in shown


def test_what_the_space_is_made_of():
    facts = RepoCard.load(SPACE / "README.md").data.to_dict()
    (version,) = re.findall(r"^gradio==(\S+)$", (SPACE.parents[1] / "constraints.txt").read_text(), re.MULTILINE)
    assert (facts["sdk"], facts["sdk_version"]) == ("gradio", version)
    assert (SPACE / facts["app_file"]).is_file()
    # No index has the package.
    (wheel,) = re.findall(r"^hf-dparallel @ https://.*/(.*)$", (SPACE / "requirements.txt").read_text(), re.MULTILINE)
    assert wheel == f"hf_dparallel-{hf_dparallel.__version__}-py3-none-any.whl"


def test_the_button_waits_for_the_page(answers):
    """Pressed before the browser has all of it, it did nothing."""
    app = import_module("app")
    assert app.button.interactive is False
    (load,) = [event for event in app.page.fns.values() if event.targets == [(app.page._id, "load")]]
    assert load.outputs == [app.button] and load.fn().interactive


@pytest.mark.slow
def test_the_page_answers_its_client():
    from gradio_client import Client

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = {"GRADIO_SERVER_PORT": port, "GRADIO_ANALYTICS_ENABLED": "False", "STUDENT": demo.STUDENT}
    with subprocess.Popen([sys.executable, "app.py"], cwd=SPACE, env=os.environ | settings) as server:
        try:
            client = connect(Client, f"http://127.0.0.1:{port}", server)
            job = client.submit(QUESTION, 0.5, False, api_name="/answer")
            base, student, *_, fewer = job.result(timeout=120)
            assert text_of(base) and text_of(student) and len(job.outputs()) > 20 and "times fewer passes" in fewer
            with pytest.raises(Exception, match="Ask a question first"):
                client.predict(" ", 0.5, False, api_name="/answer")
        finally:
            server.terminate()


def connect(client_type, url: str, server: subprocess.Popen):
    """Waits for the server, at most two minutes."""
    for _ in range(240):
        assert server.poll() is None
        try:
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1):
                return client_type(url, verbose=False)
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(url)
