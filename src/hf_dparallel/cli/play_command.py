# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel play`: the bundled teacher and its student answer on a page in the browser."""

import os
import sys

from hf_dparallel_cli.command import Flags

from ..demo import STUDENT
from ..environment import require
from ..inspection.play import CSS, make_page


def run(flags: Flags) -> dict[str, str]:
    """Serves the page until it is interrupted, and opens it in a browser."""
    require("hf-dparallel play", "gradio")
    page = make_page(STUDENT)
    # Where there is no screen, `webbrowser` finds browsers that take the terminal.
    has_screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    _, url, _ = page.launch(css=CSS, server_port=flags.port or None, inbrowser=flags.browser and has_screen)
    return {"url": url}
