# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs check.py with the oldest, the newest and other releases of what we build on, and writes docs/releases.md.

    make releases                                                  # all rows
    make releases RELEASES="--rows newest --python python3.13"     # one of them

Each row has an environment of its own in .releases, made by pip where it is not there yet.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "releases.md"
ENVIRONMENTS = ROOT / ".releases"
# What pip is asked for beside the package. The lowest row has the lower bounds of setup.py; SGLang 0.5.23 pins
# transformers, and vLLM 0.33 has an upper bound.
ROWS = {
    "lowest": [],
    "SGLang": ["transformers==5.19.0"],
    "vLLM": ["transformers<5.21"],
    "middle": ["transformers==5.22.2"],
    "newest": [],
}
COLUMNS = ("python", "torch", "transformers", "peft", "trl", "datasets", "accelerate", "huggingface-hub")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter of new environments")
    parser.add_argument("--torch_index_url", default=os.environ.get("TORCH_INDEX_URL"), help="where torch comes from")
    return parser.parse_args()


def lower_bounds() -> list[str]:
    """Returns the requirements of setup.py, with those of the server, pinned to their lower bounds."""
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    required = re.search(r"INSTALL_REQUIRES = \[(.*?)\n\]", source, flags=re.DOTALL)
    served = re.search(r'"serve": \[(.*?)\]', source, flags=re.DOTALL)
    found = re.findall(r'"([\w-]+)>=([\d.]+)', required[1] + served[1])
    return [f"{name}=={version}" for name, version in found]


def make_environment(row: str, args: argparse.Namespace) -> Path:
    """Returns the interpreter of a row's environment, which is made first if it is not there."""
    folder = ENVIRONMENTS / row
    python = folder / "bin" / "python"
    if python.exists():
        return python

    pinned = lower_bounds() if row == "lowest" else ROWS[row]
    torch = next((line for line in pinned if line.startswith("torch==")), "torch")
    index = ["--index-url", args.torch_index_url] if args.torch_index_url else []
    subprocess.run([args.python, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *index, torch], check=True)
    subprocess.run([*pip, f"{ROOT}[serve]", *pinned], check=True)
    return python


def run_checks(python: Path) -> dict[str, str]:
    """Returns the versions and results of an environment, as columns of the table."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), str(ROOT / "scripts" / "releases" / "check.py")]
    done = subprocess.run(command, cwd=ENVIRONMENTS, env=environment, text=True, stdout=subprocess.PIPE)
    report = json.loads(done.stdout.splitlines()[-1])
    failed = [name for name, result in report["checks"].items() if result != "passes"]
    passed = [name for name in report["checks"] if name not in failed]
    result = ", ".join(passed) + (f"; fails: {', '.join(failed)}" if failed else "")
    return {name: report[name].partition("+")[0] for name in COLUMNS} | {"passes": result}


def write_row(row: str, columns: dict[str, str]) -> None:
    """Replaces a row of the page's table."""
    line = f"| {row} | {' | '.join(columns.values())} |"
    page = PAGE.read_text(encoding="utf-8")
    page, count = re.subn(rf"^\| {row} \|.*$", lambda _: line, page, flags=re.MULTILINE)
    if count != 1:
        sys.exit(f"{PAGE} must have one row {row!r}, it has {count}.")
    PAGE.write_text(page, encoding="utf-8")
    print(line)


def main() -> None:
    args = parse_args()
    ENVIRONMENTS.mkdir(exist_ok=True)
    failed = []
    for row in args.rows:
        columns = run_checks(make_environment(row, args))
        write_row(row, columns)
        if "fails" in columns["passes"]:
            failed.append(row)
    if failed:
        sys.exit(f"Not all checks pass: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
