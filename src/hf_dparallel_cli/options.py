# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The options that commands share. A group of them is one argument, a dictionary, of the command's function."""

import json
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from hf_dparallel_rules.settings import SETTINGS, Setting, suggest

from .console import quiet_libraries


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

COUNT, PORT = click.IntRange(1), click.IntRange(0, 2**16 - 1)
DEVICE_DTYPES = click.Choice(("auto", "bfloat16", "float16", "float32"))
# The settings of decoding that change an answer, and that a word on the command line can give.
DECODING_SETTINGS = [
    name
    for name, setting in SETTINGS.items()
    if setting.changes_answer and setting.type in (int, float, bool, str, list[int], list[str])
]
REWARDS = ("numeric", "math")
RIGHT = (
    "When an answer is correct. 'numeric': its last number equals the last number of the column 'answer'. 'math': it "
    "equals the column 'solution' (needs math-verify)."
)


def grouped(argument: str, options: Mapping[str, Decorator]) -> Decorator:
    """Returns a decorator that adds options, given by name, and passes their values as one dictionary."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(**values: Any) -> Any:
            group = {name: values.pop(name) for name in options}
            return function(**{argument: group}, **values)

        decorated: Callable[..., Any] = run
        for option in reversed([*options.values()]):
            decorated = option(decorated)
        return decorated

    return decorate


# `source`: arguments of `loading.load_model`.
_BASE = {
    "model": click.argument("model", type=click.Path()),
    "dtype": click.option(
        "--dtype",
        type=DEVICE_DTYPES,
        default="auto",
        help="Data type of the weights. 'auto' is the one of the checkpoint.",
    ),
    "device": click.option(
        "--device", help="Device to run on: 'cpu', 'cuda', 'cuda:1' ... By default a GPU if there is one."
    ),
    "load_in_4bit": click.option(
        "--load_in_4bit", is_flag=True, help="Load the weights in 4 bits (needs bitsandbytes)."
    ),
    "attn_implementation": click.option(
        "--attn_implementation", help="Attention implementation: 'sdpa', 'eager', 'flex_attention' ..."
    ),
    "revision": click.option("--revision", help="Branch, tag or commit of the model on the Hub. By default 'main'."),
}
_ADAPTER = click.option(
    "--adapter",
    type=click.Path(),
    help="Adapter to load into the model: its name on the Hub, a folder, or 'demo-student' (bundled).",
)
base_options = grouped("source", _BASE)
model_options = grouped("source", {**_BASE, "adapter": _ADAPTER})

# `data`: arguments of `loading.load_prompts`.
data_options = grouped(
    "data",
    {
        "dataset": click.option(
            "--dataset",
            type=click.Path(),
            help="Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or 'demo' "
            "(word problems). It must have a column 'prompt' or 'messages', or use --prompt_column.",
        ),
        "dataset_config": click.option("--dataset_config", help="Configuration (subset) of the dataset."),
        "dataset_split": click.option(
            "--dataset_split",
            help="Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; a file has 'train' "
            "only.",
        ),
        "prompt_column": click.option(
            "--prompt_column", help="Column of texts to send as a user's message, for instance 'question' in GSM8K."
        ),
        "answer_column": click.option(
            "--answer_column",
            help="Column of the correct answers for --reward. By default 'answer', for 'math' 'solution'.",
        ),
        "num_samples": click.option("--num_samples", type=COUNT, help="Use only the first N rows."),
        "raw": click.option("--raw", is_flag=True, help="Continue texts without the chat template."),
    },
)

# `prompt`: arguments of `loading.read_prompt`.
prompt_options = grouped(
    "prompt",
    {
        "word": click.argument("word", metavar="[PROMPT]", required=False),
        "text": click.option("--prompt", "text", help="The prompt, also by name. By default it is read from stdin."),
        "prompt_file": click.option("--prompt_file", type=click.Path(), help="Read the prompt from this file."),
    },
)


def batch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments of `loading.batch_options`, as `batches`."""
    size = click.option(
        "--batch_size",
        type=COUNT,
        help="Prompts decoded together. Does not change the answers. By default 16 on a GPU, 8 on a CPU.",
    )
    workers = click.option(
        "--num_workers",
        type=COUNT,
        help="Threads that decode in parallel, each batch_size prompts. By default one on a GPU, and on a CPU one per "
        "core, at most 4. Does not change the answers.",
    )
    return grouped("batches", {"batch_size": size, "num_workers": workers})(function)


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the decoding settings, and passes those that were given as `settings`. Others are the recipe's."""
    options = {name: _setting_option(setting) for name, setting in SETTINGS.items() if name in DECODING_SETTINGS}

    @wraps(function)
    def run(settings: dict[str, Any], **values: Any) -> Any:
        given = {name: value for name, value in settings.items() if value not in (None, ())}
        return function(settings={name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}, **values)

    return grouped("settings", options)(run)


def _setting_option(setting: Setting) -> Decorator:
    names = f"--{setting.name}/--no_{setting.name}" if setting.type is bool else f"--{setting.name}"
    first_sentence = re.split(r"(?<=\.) (?=[A-Z`])", setting.help)[0]
    default = "" if setting.default in (None, []) else f" (default: {setting.default})"
    items = get_args(setting.type)
    kind = click.Choice(setting.choices) if setting.choices else (*items, setting.type)[0]
    about = f"{first_sentence[:-1]}{default}." + (" May be given several times." if items else "")
    return click.option(names, type=kind, default=None, multiple=bool(items), help=about)


seed_option = click.option("--seed", type=int, default=0, help="Seed for sampling.")
reward_option = click.option("--reward", type=click.Choice(REWARDS), default="numeric", help=RIGHT)


def output_dir_option(help: str, **about: Any) -> Decorator:
    """Returns the option that names the folder of results."""
    return click.option("--output_dir", type=click.Path(), help=help, **about)


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--config`, `--json` and `--quiet`, and writes the results that the function returns."""

    @click.option(
        "--config",
        type=click.Path(),
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_read_files,
        help="YAML file with any of these options. Options on the command line override it.",
    )
    @click.option("--json", "json_file", type=click.Path(), help="Write the results to this JSON file.")
    @click.option("--quiet", is_flag=True, help="Write only errors to stderr.")
    @wraps(function)
    def run(json_file: str | None, quiet: bool, **values: Any) -> None:
        with quiet_libraries(quiet):
            figures = function(**values)
        if json_file is not None and figures is not None:
            from hf_dparallel.reports import write_json

            write_json(figures, json_file)

    return run


def _read_files(ctx: click.Context, param: click.Parameter, paths: tuple[str, ...]) -> None:
    """Reads YAML files as defaults of the options."""
    params = {name: one for one in ctx.command.params for name in {one.name, one.opts[0].lstrip("-")} if name}
    for path in paths:
        for key, value in _read_yaml(path).items():
            found = params.get(str(key).replace("-", "_"))
            if found is None or found is param:
                meant = suggest(str(key), params) or f"Remove `{key}`."
                raise click.UsageError(f"`{path}` has `{key}`, which is not an option of this command. {meant}")
            values = value if isinstance(value, list) else [value]
            if None in values or (isinstance(value, list) and not found.multiple):
                raise click.UsageError(f"`{key}` in `{path}` needs one value, got {value}.")
            # As text, so that 2.5 is not read as the integer 2.
            texts = [json.dumps(item) if isinstance(item, dict) else str(item) for item in values]
            ctx.default_map = {**(ctx.default_map or {}), str(found.name): texts if found.multiple else texts[0]}


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml  # here, because it would double the time of --help

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise click.UsageError(f"the file of --config must be YAML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the file of --config cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise click.UsageError("the file of --config must be a YAML mapping, `name: value`")
    return values
