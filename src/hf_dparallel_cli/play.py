# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel play`: shows a page on which the bundled teacher and its student answer."""

import os
import sys

import click

from .options import PORT, common_options


@click.command()
@click.option("--port", type=PORT, default=0, help="Port of the page. By default the first free one from 7860 on.")
@click.option(
    "--browser/--no_browser",
    default=True,
    help="Open the page in a browser. --no_browser only prints its address.",
)
@common_options
def play_command(port: int, browser: bool) -> dict[str, str]:
    """Watch the bundled teacher and its student answer, in the browser.

    Example: hf-dparallel play --port 8000
    """
    from hf_dparallel.demo import STUDENT
    from hf_dparallel.environment import require

    require("hf-dparallel play", "gradio")
    from hf_dparallel.inspection.play import CSS, make_page

    # Where there is no screen, `webbrowser` finds browsers that take the terminal.
    has_screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    launched = make_page(STUDENT).launch(css=CSS, server_port=port or None, inbrowser=browser and has_screen)
    return {"url": launched[1]}
