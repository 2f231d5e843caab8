# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Takes the picture of docs/hub.md: the page of examples/space in a browser, below its introduction.

    python examples/space/app.py        # in another terminal
    python scripts/picture_space.py

Needs gradio, Chromium with chromedriver, and the extra `[dev]`.
"""

import argparse
import time
from pathlib import Path

from picture_inspect import open_browser, save_screenshot, set_window


# Left, top, right and bottom, in pixels.
_SHOWN = (130, 115, 870, 710)
_HAS_COME_TO = "return parseInt(document.querySelector('#base .cost')?.textContent) >= arguments[0]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:7860", help="address of the page")
    parser.add_argument("--output_dir", default="docs/images")
    parser.add_argument("--passes", type=int, default=63, help="passes of the base model to wait for")
    args = parser.parse_args()
    driver = open_browser()
    try:
        set_window(driver, 1000, 900, "light")
        driver.get(args.url)
        driver.implicitly_wait(60)
        driver.find_element("css selector", "button.primary").click()
        while not driver.execute_script(_HAS_COME_TO, args.passes):
            time.sleep(0.05)
        save_screenshot(driver, Path(args.output_dir) / "space_page.png", _SHOWN)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
