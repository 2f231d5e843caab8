# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A headless browser for the tests of pages."""

import shutil
from importlib.util import find_spec

import pytest


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        None in (BROWSER, DRIVER, find_spec("selenium")),
        reason="needs a browser: `apt-get install chromium chromium-driver` and `pip install selenium`",
    ),
]


def open_browser():
    """Returns a driver that logs what pages say and load. The caller quits it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    # A container has no sandbox of its own and little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def set_window(driver, width: int = 1200, height: int = 900, color_scheme: str = "light") -> None:
    """Gives pages a size and a colour scheme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": color_scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
