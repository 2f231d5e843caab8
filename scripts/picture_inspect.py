# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Takes the pictures of docs/inspect.md: the page of `hf-dparallel inspect` in a browser, and its figures.

    python scripts/picture_inspect.py

Needs Chromium with chromedriver, and the extra `[dev]`.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains

from hf_dparallel import cli


PROBLEM = "There are 10 keys in the bag of Ana. Later Ana loses 8 of them. Ana finds 8 more. How many keys are left?"
DECODING = ["--max_new_tokens", "64"]
FIGURES = ["--dataset", "demo", "--num_samples", "64", "--reward", "numeric"]
MAX_WIDTH = 1400


def open_browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def set_window(driver: webdriver.Chrome, width: int, height: int, color_scheme: str) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": color_scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def show_pass(driver: webdriver.Chrome, number: int) -> None:
    slider = driver.find_element("css selector", "#slider")
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    driver.execute_script(script, slider, number)


def photograph_page(page: Path, output_dir: Path) -> None:
    """Photographs the page on a desk, with a mask's candidates, and on a phone in the dark."""
    driver = open_browser()
    try:
        set_window(driver, 1100, 760, "light")
        driver.get(page.as_uri())
        show_pass(driver, 1)
        mask = driver.find_elements("css selector", ".decode:nth-child(2) .token.mask")[0]
        ActionChains(driver).move_to_element(mask).perform()
        driver.save_screenshot(str(output_dir / "inspect_page.png"))
        set_window(driver, 360, 700, "dark")
        driver.get(page.as_uri())
        show_pass(driver, 12)
        driver.save_screenshot(str(output_dir / "inspect_phone.png"))
    finally:
        driver.quit()


def save_screenshot(driver: webdriver.Chrome, path: Path, box: tuple[int, int, int, int] | None = None) -> None:
    """Saves what the browser shows, or the part in a box (left, top, right and bottom, in pixels), in few colours."""
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).crop(box)
    picture.convert("P", palette=Image.Palette.ADAPTIVE).save(path, optimize=True)


def shrink(path: Path) -> None:
    """Reduces a figure of the documentation to 255 colours and a width that fits a screen."""
    image = Image.open(path).convert("RGB")
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, round(image.height * MAX_WIDTH / image.width)), Image.Resampling.LANCZOS)
    image.quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", default="demo-student")
    parser.add_argument("--output_dir", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    arguments = parser.parse_args()
    model = ["--model", "demo", "--adapter", arguments.adapter]
    with tempfile.TemporaryDirectory() as folder:
        page, figures = Path(folder) / "decode.html", Path(folder) / "figures"
        shown = ["--prompt", PROBLEM, "--compare", "--output_file", str(page), "--figures", str(figures), *FIGURES]
        if code := cli.main(["inspect", *model, *DECODING, *shown]):
            raise SystemExit(code)
        photograph_page(page, arguments.output_dir)
        for figure in figures.glob("*.png"):
            shrink(figure)
            shutil.copy(figure, arguments.output_dir / f"inspect_{figure.name}")
    for path in arguments.output_dir.glob("inspect_*.png"):
        print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
