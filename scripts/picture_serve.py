# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Takes the picture of docs/serving.md: the page of `hf-dparallel serve` in a browser.

    hf-dparallel serve demo --adapter demo-student        # in another terminal
    python scripts/picture_serve.py

Needs Chromium with chromedriver, and the extra `[dev]`.
"""

import argparse
import time
from pathlib import Path

from picture_inspect import open_browser, save_screenshot, set_window


QUESTION = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many pens are left?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--output_dir", default="docs/images")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for both answers")
    args = parser.parse_args()
    driver = open_browser()
    try:
        set_window(driver, 1100, 720, "light")
        driver.get(args.url)
        time.sleep(2)
        if not driver.find_element("css selector", "#compare").is_selected():
            driver.find_element("css selector", "#compare").click()
        driver.find_element("css selector", "#message").send_keys(f"{QUESTION}\n")
        time.sleep(args.seconds)
        save_screenshot(driver, Path(args.output_dir) / "serve_page.png")
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
