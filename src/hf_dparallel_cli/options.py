# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The options that commands share. Their values are arguments of the command's function, most of them in `options`."""

import json
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_args

import click

from hf_dparallel_rules.settings import SETTINGS, Setting, suggest


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

COUNT = click.IntRange(1)
PORT = click.IntRange(0, 2**16 - 1)


class OutputPath(click.Path):
    """A file or a folder to write. It is wrong usage if that is not possible, before any work is done for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path as it is given, and leaves nothing behind."""
        path = Path(str(super().convert(value, param, ctx))).absolute()
        try:
            existing = next(each for each in (path, *path.parents) if each.exists())
            if existing.is_dir():
                TemporaryFile(dir=existing).close()
            elif existing != path:
                raise NotADirectoryError(f"{existing} is no folder")
            elif existing.is_file():
                existing.open("ab").close()
        except OSError as error:
            self.fail(f"{str(value)!r} cannot be written: {error}.", param, ctx)
        return value


OUTPUT_FILE = OutputPath(dir_okay=False)
OUTPUT_FOLDER = OutputPath(file_okay=False)


def together(*options: Decorator) -> Decorator:
    """Returns one decorator that adds several options."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _setting_option(setting: Setting) -> Decorator:
    names = f"--{setting.name}/--no_{setting.name}" if setting.type is bool else f"--{setting.name}"
    items = get_args(setting.type)
    kind = click.Choice(setting.choices) if setting.choices else (*items, setting.type)[0]
    # A dictionary is given as JSON.
    kind = str if kind is dict else kind
    default = "" if setting.default in (None, []) else f" (default: {setting.default})"
    first_sentence = re.split(r"(?<=\.) (?=[A-Z`])", setting.help)[0]
    about = f"{first_sentence[:-1]}{default}{'; may be given several times' if items else ''}."
    return click.option(names, type=kind, default=None, multiple=bool(items), help=about)


_DTYPES = click.Choice(("auto", "bfloat16", "float16", "float32"))
# The arguments of `loading.load_model`, but for the adapter.
base_options = together(
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
settings_options = together(
    *(_setting_option(s) for s in SETTINGS.values() if s.changes_answer and s.type != list[list[int]])
)
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
# For `loading.read_prompt` and `loading.encode_prompt`.
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
        # As texts, as on the command line: YAML would read `no` as False and 012 as 10. A dictionary is JSON there.
        values, texts = dict(yaml.safe_load(text)), yaml.load(text, yaml.BaseLoader)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise click.UsageError(f"`config={path}` must be a YAML mapping, `name: value`: {error}") from error
    params = {name: one for one in ctx.command.params for name in (one.name, one.opts[0].lstrip("-")) if one != option}
    ctx.default_map = {}
    for key, value in texts.items():
        if key not in params:
            meant = suggest(key, params) or f"Remove `{key}`."
            raise click.UsageError(f"`{path}` has `{key}`, which is not an option of this command. {meant}")
        if isinstance(value, list) and not params[key].multiple:
            raise click.UsageError(f"`{key}` in `{path}` must be one value, got {value}.")
        ctx.default_map[str(params[key].name)] = json.dumps(values[key]) if isinstance(value, dict) else value


config_option = click.option(
    "--config",
    type=click.Path(),
    is_eager=True,
    expose_value=False,
    callback=_read_file,
    help="YAML file with any of these options. Options on the command line override it.",
)
