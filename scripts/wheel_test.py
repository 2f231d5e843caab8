# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Builds the distributions, checks them, and decodes first answers from the wheel in a new virtual environment.

    make wheel-test                                 # the versions of constraints.txt
    make wheel-test WHEEL_TEST_FLAGS=--lowest       # the lower bounds of setup.py

Needs a network connection for pip, and the tools `build` and `twine`. The version of torch is that of constraints.txt
in both cases. Fails if a first answer, of the teacher or of its student, takes longer than 30 seconds.
"""

import argparse
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path


ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
IN_THE_SOURCES = ["LICENSE", "README.md", "pyproject.toml", "setup.py", "tests/conftest.py", "docs/index.md"]
PROMPT = "Mia has 14 pens. Mia finds 6 more. Mia sells 5 pens. How many are left?"
FIRST_ANSWER = ["generate", "demo", PROMPT, "--max_new_tokens", "64"]
MAX_SECONDS = 30


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowest", action="store_true", help="install the lower bounds of the dependencies")
    parser.add_argument("--torch_index_url", default=os.environ.get("TORCH_INDEX_URL"), help="where torch comes from")
    return parser.parse_args()


def check_wheel(wheel: Path) -> None:
    """Checks that a wheel holds the package, whole, the licence, and nothing else.

    Raises:
        SystemExit: if it does not.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and not re.search(r"__pycache__|egg-info", str(path))
    }
    metadata = {name for name in names if ".dist-info/" in name}
    missing, unexpected = sorted(expected - names), sorted(names - expected - metadata)
    if missing or unexpected:
        sys.exit(f"{wheel.name} lacks {missing} and should not have {unexpected}.")
    if not any(name.endswith("/LICENSE") for name in metadata):
        sys.exit(f"{wheel.name} has no licence.")


def check_sources(sources: Path) -> None:
    """Checks that the distribution of the sources can be built and tested.

    Raises:
        SystemExit: if files are missing, or there are some that were made by tools.
    """
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted(set(IN_THE_SOURCES) - names)
    unexpected = sorted(name for name in names if re.search(r"__pycache__|\.py[cod]$|(^|/)\.(?!ci)|^site/", name))
    if missing or unexpected:
        sys.exit(f"{sources.name} lacks {missing} and should not have {unexpected}.")


def lower_bounds(wheel: Path) -> list[str]:
    """Returns the requirements of a wheel, without those of extras, pinned to their lower bounds."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    ours = [text for text in requirements if "extra ==" not in text and not is_torch(text)]
    return [re.sub(r"^([\w.-]+).*>=([\d.]+).*", r"\1==\2", text) for text in ours]


def is_torch(requirement: str) -> bool:
    return re.match(r"torch\b(?!-)", requirement) is not None


def install(python: Path, wheel: Path, args: argparse.Namespace, folder: Path) -> None:
    """Installs torch by itself, so that its index applies to it alone, and then the wheel."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(line for line in pinned if is_torch(line))
    run([*pip, *(["--index-url", args.torch_index_url] if args.torch_index_url else []), torch])
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join([torch, *lower_bounds(wheel)] if args.lowest else pinned), encoding="utf-8")
    run([*pip, "--constraint", str(constraints), str(wheel)])


def first_answer(command: Path, folder: Path, *flags: str) -> None:
    """Decodes an answer with the installed command, away from the sources, and prints how long it took.

    Raises:
        SystemExit: if there is no answer, or it took too long.
    """
    start = time.perf_counter()
    text = run([str(command), *FIRST_ANSWER, *flags], cwd=folder, stdout=subprocess.PIPE).stdout
    seconds = time.perf_counter() - start
    print(f"{text.strip()}\nThe first answer took {seconds:.1f} s.")
    if "The answer is 15." not in text or seconds > MAX_SECONDS:
        sys.exit(f"Expected the right answer, 15, within {MAX_SECONDS} s.")


def run(command: list[str], **kwargs) -> subprocess.CompletedProcess[str]:
    # Modules on PYTHONPATH would be imported instead of the installed ones.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, check=True, text=True, env=environment, **kwargs)


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)], stdout=subprocess.DEVNULL)
        (wheel,), (sources,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sources)])
        check_wheel(wheel)
        check_sources(sources)
        run([sys.executable, "-m", "venv", str(folder / "venv")])
        binaries = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        install(binaries / "python", wheel, args, folder)
        run([str(binaries / "python"), "-m", "pip", "check"])
        run([str(binaries / "hf-dparallel"), "--version"])
        first_answer(binaries / "hf-dparallel", folder)
        first_answer(binaries / "hf-dparallel", folder, "--adapter", "demo-student")


if __name__ == "__main__":
    main()
