# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel play`: the bundled teacher and its student race on a page in the browser."""

import os
import sys
import webbrowser

from hf_dparallel_cli import COMMANDS
from hf_dparallel_cli.command import Flags

from ..environment import require
from .console import say
from .serve_command import LIBRARIES, bind, serve


def run(flags: Flags) -> dict[str, int]:
    """Opens the page, which begins with a race, and serves it until it is interrupted."""
    require("hf-dparallel play", *LIBRARIES)
    listener = bind("127.0.0.1", flags.port)
    # From now on a browser waits for the models.
    listener.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/#play"
    say(url)
    # Where there is no screen, `webbrowser` finds browsers that take the terminal.
    has_screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if flags.browser and has_screen:
        webbrowser.open(url)
    words = ["demo", "--adapter", "demo-student", "--log_level", "warning"]
    return serve(COMMANDS["serve"].make_context("serve", words).obj, listener)
