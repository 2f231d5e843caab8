# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Metadata of the hf-dparallel distribution. The settings of the tools (ruff, mypy, pytest) are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup


HERE = Path(__file__).parent
# The address of the repository, "https://...", as soon as there is one. Its documentation is beside it.
REPOSITORY = None
PAGES = {"Source": "", "Docs": "/tree/main/docs", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}


def read_version() -> str:
    """Returns `__version__` of the package without importing it."""
    source = (HERE / "src" / "hf_dparallel" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', source, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError('src/hf_dparallel/_version.py has no line of the form `__version__ = "..."`.')
    return match[1]


def read_description() -> str:
    """Returns the README for the package index: links into the repository, which are dead there, as names of files."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[.*\n\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^]]+)\]\(#[^)]*\)", r"\1", text)
    return re.sub(r"\[([^]]+)\]\((?!https?://)([^)#]+)[^)]*\)", r"\1 (`\2`)", text)


# All tests run with the versions of constraints.txt; those of models, training and the command line weekly with the
# newest of all and with these lower bounds too (`make newest`, `make lowest`). docs/releases.md has what was run.
INSTALL_REQUIRES = [
    "torch>=2.6",  # that of transformers: the most costly thing to ask of a cluster
    "transformers>=5.16.1,<6",  # the oldest that vLLM 0.33 takes; docs/releases.md says what is lost below
    "accelerate>=1.15",  # up to 1.14, losses under FSDP are off by 0.8 %, and nothing says so
    "click>=8.4.2",
    "datasets>=4.7",
    "huggingface-hub>=1.32",
    "jinja2>=3.1",
    "peft>=0.21",  # 0.20 has another VeRA, and 0.19 does not fit transformers 5.23
    "pyarrow>=21",
    "PyYAML>=6.0.1",
    "safetensors>=0.8",
    "tokenizers>=0.23.1",
    "tqdm>=4.66.3",
    "trl>=1.10",
]
EXTRAS = {
    # `python -m hf_dparallel.evaluation.lm_eval`, and the metric `DecodingEfficiency`
    "eval": ["evaluate>=0.4.5", "lm_eval[math]>=0.4.13,<0.5"],
    "quantization": ["bitsandbytes>=0.50"],  # `--load_in_4bit`
    "math": ["math-verify>=0.9"],  # the answer checks of `trl.rewards.accuracy_reward`
    "serve": [  # `hf-dparallel serve`
        "llguidance>=1.7,<2",
        "pydantic>=2.12",
        "starlette>=1.0.1",
        "uvicorn>=0.51",
    ],
    "ray": ["ray[data]>=2.60"],  # `hf-dparallel trajectories --ray_actors`
    "play": ["gradio>=6"],  # `hf-dparallel play` and examples/space
    "viz": ["matplotlib>=3.9"],  # the pictures of `hf-dparallel demo` and `inspect`
}
EXTRAS["dev"] = [
    *(requirement for extra in EXTRAS.values() for requirement in extra),
    "build",
    "httpx",
    "hypothesis",
    "ipykernel",
    "mkdocs-material>=9.5",
    "mkdocstrings[python]>=1.0",
    "mypy",
    "nbclient",
    "openai>=3.54",
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "selenium>=4.30",
    "tensorboard",
    "twine",
    "types-PyYAML",
]

setup(
    name="hf-dparallel",
    version=read_version(),
    description="Masked diffusion language models that decode many tokens per forward pass (dParallel)",
    long_description=read_description(),
    long_description_content_type="text/markdown",
    author="The hf-dparallel authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    project_urls={
        "Paper": "https://huggingface.co/papers/2509.26488",
        **({name: f"{REPOSITORY}{path}" for name, path in PAGES.items()} if REPOSITORY else {}),
    },
    keywords=["diffusion language models", "parallel decoding", "distillation", "LLaDA", "Dream", "transformers"],
    package_dir={"": "src"},
    packages=find_packages("src"),
    package_data={
        "hf_dparallel": [
            "py.typed",
            "demo/student/*",
            "demo/student/teacher/*",
            "inspection/*.html",
            "models/*/published.toml",
            "models/ready.toml",
            "hub/custom_generate/*.py",
            "hub/templates/*",
        ],
    },
    # That of transformers and trl.
    python_requires=">=3.11",
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["hf-dparallel = hf_dparallel_cli:main"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
