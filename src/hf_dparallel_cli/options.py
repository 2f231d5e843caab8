# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The options that commands share. Their values are arguments of the command's function, most of them in `options`."""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryFile
from typing import Any, get_args

import click
from click.core import ParameterSource

from hf_dparallel_rules.settings import SETTINGS, Setting, suggest


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

COUNT = click.IntRange(1)
PORT = click.IntRange(0, 2**16 - 1)


class OutputPath(click.Path):
    """A file or a folder to write. It is wrong usage if that is not possible, before any work is done for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path as it is given, and leaves nothing behind."""
        if not value:
            self.fail("'' cannot be written: it is empty.", param, ctx)

        path = Path(str(super().convert(value, param, ctx))).absolute()
        try:
            existing = next(each for each in (path, *path.parents) if each.exists())
            if existing.is_dir():
                TemporaryFile(dir=existing).close()
            elif existing != path or not self.file_okay:
                raise NotADirectoryError(f"{existing} is no folder")
            elif existing.is_file():
                existing.open("ab").close()
        except OSError as error:
            self.fail(f"{str(value)!r} cannot be written: {error}.", param, ctx)
        return value


OUTPUT_FILE = OutputPath(dir_okay=False)
OUTPUT_FOLDER = OutputPath(file_okay=False)


def import_files(words: Sequence[str], commands: Iterable[click.Command]) -> None:
    """Runs the files of `--import` among the words of a command line.

    Commands that decode get options for the settings of new commit rules: parsing needs them, so this comes before.
    """
    files = [word.removeprefix("--import=") for word in words if word.startswith("--import=")]
    files += [file for flag, file in pairwise(words) if flag == "--import"]
    for file in files:
        run_path(file, run_name=Path(file).stem)

    for command in commands:
        known = [param.name for param in command.params]
        if "entropy_threshold" not in known:
            continue
        for setting in SETTINGS.values():
            if _has_option(setting) and setting.name not in known:
                _setting_option(setting)(command)


def together(*options: Decorator) -> Decorator:
    """Returns one decorator that adds several options."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _has_option(setting: Setting) -> bool:
    return setting.changes_answer and setting.type != list[list[int]]


def _setting_option(setting: Setting) -> Decorator:
    names = f"--{setting.name}"
    if setting.type is bool:
        names += f"/--no_{setting.name}"

    items = get_args(setting.type)
    kind: Any = setting.type
    if setting.choices:
        kind = click.Choice(setting.choices)
    elif items:
        kind = items[0]
    elif kind is dict:
        # It is given as JSON.
        kind = str

    first_sentence = re.split(r"(?<=\.) (?=[A-Z`])", setting.help)[0]
    about = first_sentence[:-1]
    if setting.default not in (None, []):
        about += f" (default: {setting.default})"
    if items:
        about += "; may be given several times"
    return click.option(names, type=kind, default=None, multiple=bool(items), help=f"{about}.")


def _refuse_in_file(ctx: click.Context, option: click.Parameter, files: Any) -> None:
    """Refuses `import` in a configuration file: `import_files` has read the words of the command line before."""
    if ctx.get_parameter_source(str(option.name)) is ParameterSource.DEFAULT_MAP:
        raise click.UsageError("`import` is for the command line, as --import FILE.")


import_option = click.option(
    "--import",
    "imported",
    metavar="FILE",
    expose_value=False,
    callback=_refuse_in_file,
    help="Python file to run first, such as one with a commit rule (docs/add_a_rule.md).",
)


def _say_that_it_loads(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has a command say what it loads, which takes seconds of silence."""

    @wraps(function)
    def run(**values: Any) -> Any:
        say_loading(values["model"])
        return function(**values)

    return run


def say_loading(name: str) -> None:
    """Says on stderr what is loaded; of several processes, the first one does."""
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"Loading {name} ...", err=True)


_DTYPES = click.Choice(("auto", "bfloat16", "float16", "float32"))
# The arguments of `loading.load_model`, but for the adapter.
base_options = together(
    _say_that_it_loads,
    click.argument("model", type=click.Path()),
    click.option("--dtype", type=_DTYPES, default="auto", help="Type of the weights. 'auto': as in the checkpoint."),
    click.option("--device", help="Device, such as 'cpu' or 'cuda:1'. By default a GPU if there is one."),
    click.option("--load_in_4bit", is_flag=True, help="Load the weights in 4 bits (needs bitsandbytes)."),
    click.option("--attn_implementation", help="Attention implementation: 'sdpa', 'eager', 'flex_attention' ..."),
    click.option(
        "--causal_past", is_flag=True, help="Read a Llama, Mistral or Qwen for exact decoding (docs/exact.md)."
    ),
    click.option("--revision", help="Branch, tag or commit of the model on the Hub. By default 'main'."),
)
settings_options = together(import_option, *map(_setting_option, filter(_has_option, SETTINGS.values())))
# For `loading.load_answerer`.
decoding_options = together(
    base_options,
    click.option("--adapter", type=click.Path(), help="Adapter: its name on the Hub, a folder or demo-student."),
    settings_options,
    click.option("--seed", type=int, default=0, help="Seed for sampling."),
)
batch_option = click.option("--batch_size", type=COUNT, default=16, help="Prompts decoded together.")
# For `loading.load_prompts`.
data_options = together(
    click.option(
        "--dataset",
        required=True,
        type=click.Path(),
        help="Prompts: a Hub dataset, a folder, a .csv, .tsv, .txt, .json, .jsonl or .parquet file, or 'demo' (word "
        "problems). It must have a column 'prompt' or 'messages', or use --prompt_column.",
    ),
    click.option("--dataset_config", help="Configuration (subset) of the dataset."),
    click.option("--dataset_split", help="Split. By default 'test' for evaluation, else 'train'; a file has 'train'."),
    click.option("--prompt_column", help="Column of texts to send as a user's message: 'question' in GSM8K."),
    click.option("--answer_column", help="Column of the right answers. By default 'answer', for 'math' 'solution'."),
    click.option("--num_samples", type=COUNT, help="Use only the first N rows."),
    click.option("--raw", is_flag=True, help="Continue texts without the chat template."),
)
# For `loading.read_prompt` and `loading.encode_question`.
prompt_options = together(
    click.argument("prompt", required=False),
    click.option("--raw", is_flag=True, help="Continue the prompt without the chat template."),
)


reward_option = click.option(
    "--reward",
    type=click.Choice(("numeric", "math", "none")),
    default="numeric",
    help="Right answers. 'numeric': the last number is that of the column 'answer'. 'math': as 'solution'. "
    "'none': answers are not judged.",
)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--json`, the file for the figures that the function returns."""

    @click.option("--json", "json_file", type=OUTPUT_FILE, help="Write the results to this JSON file.")
    @wraps(function)
    def run(json_file: str | None, **values: Any) -> None:
        figures = function(**values)
        if json_file is not None and figures is not None:
            from hf_dparallel.reports import write_json

            write_json(figures, json_file)

    return run


def _read_file(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Reads a YAML file as defaults of the options."""
    if path is None:
        return
    import yaml  # here, because it would double the time of --help

    try:
        text = Path(path).read_text(encoding="utf-8")
        values = dict(yaml.safe_load(text))
        # As texts, as on the command line: YAML would read `no` as False and 012 as 10.
        texts = yaml.load(text, yaml.BaseLoader)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise click.UsageError(f"`config={path}` must be a YAML mapping, `name: value`: {error}") from error

    params: dict[str, click.Parameter] = {}
    for param in ctx.command.params:
        if param != option:
            params[str(param.name)] = param
            params[param.opts[0].lstrip("-")] = param

    ctx.default_map = {}
    for key, value in texts.items():
        if key not in params:
            meant = suggest(key, params) or f"Remove `{key}`."
            raise click.UsageError(f"`{path}` has `{key}`, which is not an option of this command. {meant}")
        if isinstance(value, list) and not params[key].multiple:
            raise click.UsageError(f"`{key}` in `{path}` must be one value, got {value}.")
        if isinstance(value, dict):
            # A dictionary is JSON on the command line.
            value = json.dumps(values[key])
        ctx.default_map[str(params[key].name)] = value


config_option = click.option(
    "--config",
    type=click.Path(),
    is_eager=True,
    expose_value=False,
    callback=_read_file,
    help="YAML file with any of these options. Options on the command line override it.",
)
