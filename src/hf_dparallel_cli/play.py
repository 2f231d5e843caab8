# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel play`: shows a page on which the bundled teacher and its student answer."""

import click

from .options import PORT, say_loading


@click.command()
@click.option("--port", type=PORT, default=0, help="Port of the page. By default the first free one from 7860 on.")
@click.option("--browser/--no_browser", default=True, help="Open the page in a browser, or only print its address.")
def play_command(port: int, browser: bool) -> None:
    """Watch the bundled teacher and its student answer, in the browser.

    Example: hf-dparallel play --port 8000
    """
    from hf_dparallel.demo import STUDENT
    from hf_dparallel.environment import require

    require("hf-dparallel play", "gradio")
    say_loading("demo-student")
    from hf_dparallel.inspection.play import make_page

    make_page(STUDENT).launch(server_port=port or None, inbrowser=browser)
