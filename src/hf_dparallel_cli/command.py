# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A command: its flags are fields of dataclasses, and its module is imported when it is run."""

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hf_dparallel_rules.settings import what_is_meant

from . import flags
from .flags import Flags
from .source import Row


_LIBRARIES = r"(accelerate|bitsandbytes|datasets|peft|torch|transformers|trl)\b"
# In the environment, so that processes which a command starts know it, too.
QUIET = "HF_DPARALLEL_QUIET"


_TYPES: dict[str, click.ParamType] = {"int": click.INT, "float": click.FLOAT, "bool": click.BOOL}


class Flag(click.Option):
    """A flag, made from a row; `member` is the row that collects it with others, if there is one."""

    def __init__(self, row: Row, title: str, member: str | None = None):
        self.row, self.title, self.member = row, title, member
        self.is_switch = row.type.removesuffix(" | None") == "bool"
        is_list = "list[" in row.type or "tuple[" in row.type
        default = None if is_list else row.default
        # A switch may have a value: `--quiet false`.
        switch: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if self.is_switch else {}
        super().__init__(
            [f"--{row.name}", *row.more.get("aliases", ())],
            type=_type_of(row),
            default=default,
            show_default=default not in (None, "") and default is not False,
            multiple=is_list,
            metavar="" if self.is_switch else row.more.get("metavar"),
            help=row.more["help"],
            shell_complete=None if row.more.get("choices") else self._complete,
            **switch,
        )

    def _complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names of what is bundled, and files or folders, for the shell to list."""
        kinds = {"FILE": "file", "DATASET": "file", "DIR": "dir", "MODEL": "dir", "ADAPTER": "dir"}
        kind = kinds.get(self.row.more.get("metavar", ""))
        bundled = [name for name in self.row.more.get("bundled", ()) if name.startswith(incomplete)]
        # Where one of these names fits, a shell lists no files.
        files = [CompletionItem(incomplete, type=kind)] if kind and not bundled else []
        return [*map(CompletionItem, bundled), *files]


def _type_of(row: Row) -> click.ParamType:
    # `int | None`, `tuple[int, ...]`
    name = re.sub(r"^\w+\[(\w+).*", r"\1", row.type).removesuffix(" | None")
    if row.more.get("choices"):
        return click.Choice(row.more["choices"])
    if "minimum" in row.more:
        limits = {"min": row.more["minimum"], "max": row.more.get("maximum")}
        return click.IntRange(**limits) if name == "int" else click.FloatRange(**limits)
    return _TYPES.get(name, click.STRING)


class Command(click.Command):
    """A command of `hf-dparallel`.

    Its flags are the rows of a class of flags.py, which is `GenerateFlags` for `generate`. The function `run` of its
    module, `hf_dparallel.cli.generate_command`, is called with an instance of the class, and returns the figures for
    `--json`, or `None` if another process does.

    Args:
        name (`str`): its name.
        help (`str`): what it does.
        example (`str`): what one types behind its name.
        positionals (`str`): flags that can also be given without their names, in this order.
        other (`Command`, *optional*): runs instead if one of the flags `chosen_by` is given.
        chosen_by (`Sequence[str]`): names of flags of `other`.
    """

    def __init__(
        self,
        name: str,
        help: str,
        example: str = "",
        *positionals: str,
        other: "Command | None" = None,
        chosen_by: Sequence[str] = (),
    ):
        usage = " ".join([*map(str.upper, positionals), "[options]"])
        settings = {"max_content_width": 110}
        # What follows \b is not wrapped.
        text = f"{help}\n\n\b\nExample: hf-dparallel {name} {example}"
        super().__init__(name, help=text, short_help=help, options_metavar=usage, context_settings=settings)
        self.positionals, self.other, self.chosen_by = positionals, other, chosen_by
        self.kind: type[Flags] = getattr(flags, f"{name.title().replace('_', '')}Flags")

    @cached_property
    def own(self) -> dict[str, Flag]:
        """The flags that this command reads itself, by name."""
        own = []
        for row in self.kind.rows().values():
            read = row.more.get("declared")
            own += [Flag(each, row.title, row.name) for each in read()] if read else [Flag(row, row.title)]
        return {str(flag.name): flag for flag in own}

    @cached_property
    def flags(self) -> dict[str, Flag]:
        """All flags that a user may write, by each of their spellings, without dashes."""
        flags = self.own | (self.other.own if self.other else {})
        return {spelling.lstrip("-"): flag for flag in flags.values() for spelling in flag.opts}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The flags, and `--config`."""
        if not self.params:
            config = click.Option(
                ["--config"],
                metavar="FILE",
                multiple=True,
                is_eager=True,
                expose_value=False,
                callback=self._read_files,
                help="YAML file with any of these flags. What is given on the command line overrides it.",
            )
            all_help = click.Option(
                ["--help_all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_show_all
            )
            self.params = [*dict.fromkeys(self.flags.values()), config, all_help]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the flags. Then `ctx.obj` has the command to run and what its function `run` gets."""
        try:
            rest = super().parse_args(ctx, list(self._spelled_out(ctx, args)))
        except click.NoSuchOption as error:
            text = f"{error.message} {self._meant(error.option_name.lstrip('-'))}".rstrip()
            raise click.NoSuchOption(error.option_name, text, ctx=ctx) from error
        if not ctx.resilient_parsing:
            ctx.obj = self._chosen(ctx)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a value without a name can be, while only such values are given; else names of flags."""
        defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        given = {name for name in ctx.params if ctx.get_parameter_source(name) not in defaults}
        rest = [name for name in self.positionals if name not in given]
        if incomplete.startswith("-") or not rest or given - set(self.positionals):
            return super().shell_complete(ctx, incomplete)
        return self.own[rest[0]].shell_complete(ctx, incomplete)

    def invoke(self, ctx: click.Context) -> None:
        """Imports the module of the command, runs it, and writes the figures that it returns."""
        name, values = ctx.obj
        _quieten(ctx, values.quiet)
        figures = _import(f"hf_dparallel.cli.{name}_command", ctx.command_path).run(values)
        if values.json is not None and figures is not None:
            import_module("hf_dparallel.reports").write_json(figures, values.json)

    def read(self, values: dict[str, Any]) -> Any:
        """Returns what `run` gets for flags that are given as values by name."""
        ctx = click.Context(self, info_name=self.name, default_map=self._texts(values, "the values"))
        self.parse_args(ctx, [])
        return ctx.obj[1]

    def _meant(self, name: str) -> str:
        """Says which flag is meant by a name that this command does not have; nothing if that cannot be told."""
        return what_is_meant(name, self.flags)

    def _chosen(self, ctx: click.Context) -> tuple[str, Any]:
        """Which command is asked for, and its flags."""
        defaults = (ParameterSource.DEFAULT, None)
        given = {name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) not in defaults}
        chosen = next((name for name in self.chosen_by if name in given), None)
        command = self.other if self.other and chosen else self
        own = command.own
        missing = ["/".join(flag.opts) for name, flag in own.items() if flag.row.is_required and name not in given]
        if missing:
            others = "".join(f", or --{name}" for name in self.chosen_by)
            raise click.UsageError(f"the following flags are required: {', '.join(missing)}{others}", ctx)
        unused = sorted(given.keys() - own.keys())
        if unused:
            how = f"with --{chosen}" if chosen else f"without --{' or --'.join(self.chosen_by)}"
            raise click.UsageError(f"--{', --'.join(unused)} cannot be used {how}. Leave that out", ctx)
        try:
            return str(command.name), command._instance(given)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error

    def _instance(self, given: dict[str, Any]) -> Flags:
        values: dict[str, Any] = {}
        for name, value in given.items():
            flag, more = self.own[name], self.own[name].row.more
            if more.get("needs") not in (None, *given):
                raise ValueError(f"`{name}` needs `{more['needs']}`. Add --{more['needs']}.")
            if more.get("not_with") in given:
                raise ValueError(f"`{name}` and `{more['not_with']}` are both given. Remove one.")
            if "setting" in more:
                value = more["setting"].read(value)
            (values if flag.member is None else values.setdefault(flag.member, {}))[name] = value
        return self.kind(**values)

    def _spelled_out(self, ctx: click.Context, words: list[str]) -> Iterator[str]:
        """Writes values without a name, each value of a list, and `--no_name` as `--name=value`, which click reads."""
        unnamed, given = [], set()
        while words:
            word = words.pop(0)
            if not word.startswith("-"):
                unnamed.append(word)
                continue
            name, is_spelled_out, value = word.partition("=")
            name = f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name
            flag = self.flags.get(name.removeprefix("--"))
            switch = self.flags.get(name.removeprefix("--no_"))
            given.add(flag and flag.name)
            if flag is None and switch is not None and switch.is_switch:
                yield f"{switch.opts[0]}=false"
            elif flag is None or is_spelled_out:
                yield name + is_spelled_out + value
                # Of --config.
                if not is_spelled_out and words and not words[0].startswith("-"):
                    yield words.pop(0)
            elif flag.is_switch:
                yield f"{name}={words.pop(0)}" if words and words[0].lower() in click.BOOL.bool_states else name
            else:
                values = list(takewhile(lambda text: not text.startswith("--"), words))
                if not values and not ctx.resilient_parsing:
                    raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.", ctx)
                values = values if flag.multiple else values[:1]
                del words[: len(values)]
                yield from [f"{name}={each}" for each in values] or [name]
        for name in self.positionals:
            if name not in given:
                values = unnamed if self.flags[name].multiple else unnamed[:1]
                unnamed = unnamed[len(values) :]
                yield from (f"--{name}={value}" for value in values)
        if unnamed and not ctx.resilient_parsing:
            rule = "Flags need their names, and a text with spaces needs quotes"
            raise click.UsageError(f"nothing takes {' '.join(unnamed)!r}. {rule}", ctx)

    def _read_files(self, ctx: click.Context, param: click.Parameter, paths: Sequence[str]) -> None:
        """Takes what YAML files say as defaults. Their `env` goes to the environment, as in files of TRL."""
        for path in paths:
            values = _read_yaml(path)
            _set_variables(ctx, **values.pop("env", {}))
            ctx.default_map = dict(ctx.default_map or {}) | self._texts(values, f"`{path}`")

    def _texts(self, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Values of a file by the names of their flags, as they would be written on a command line."""
        texts: dict[str, Any] = {}
        for key, value in values.items():
            flag = self.flags.get(str(key).replace("-", "_"))
            if flag is None:
                remedy = self._meant(str(key)) or f"Remove `{key}`."
                raise click.UsageError(f"{source} has `{key}`, which is no flag of this command. {remedy}")
            if value is None or (isinstance(value, list) and not flag.multiple):
                raise click.UsageError(f"`{key}` in {source} needs one value, got {value}")
            given = value if isinstance(value, list) else [value]
            items = [json.dumps(item) if isinstance(item, dict) else str(item) for item in given]
            texts[str(flag.name)] = items if flag.multiple else items[0]
        return texts

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the flags under their headings, and the names only of those that other libraries declare."""
        groups: dict[str, list[tuple[str, str]]] = {}
        named: dict[str, list[str]] = {"": []}
        required: set[str] = set()
        for param in self.get_params(ctx):
            spelling, text = param.get_help_record(ctx) or ("", "")
            if isinstance(param, Flag) and "all" not in ctx.meta and "brief" in param.row.more:
                text = param.row.more["brief"]
            title, name = getattr(param, "title", "options"), str(param.name)
            if isinstance(param, Flag) and param.row.is_required:
                required.add(title)
                text += "" if name in self.positionals else " [required]"
            spelling = f"{name.upper()}, or {spelling}" if name in self.positionals else spelling.strip()
            if spelling and text:
                groups.setdefault(title, []).append((spelling, text))
            elif spelling:
                # Of libraries there are too many to name.
                named.setdefault(title if title.startswith("of ") else "", []).append(name)
        groups["options"] = groups.pop("options")
        for title, records in sorted(groups.items(), key=lambda group: group[0] not in required):
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)
        others = named.pop("") + [f"{len(names)} {title}" for title, names in named.items()]
        if others:
            with formatter.section("others"):
                formatter.write_text(f"{', '.join(others)}. `{ctx.command_path} --help_all` describes them.")


def _show_all(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        ctx.meta["all"] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml  # takes longer than all else that help needs

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise click.UsageError(f"the file of --config is not YAML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the file of --config cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise click.UsageError("the file of --config must contain a YAML mapping, `name: value`")
    return values


def _import(module: str, title: str) -> ModuleType:
    """Imports a module, and says so meanwhile at a terminal."""
    shows = sys.stderr.isatty() and not os.environ.get(QUIET)
    if shows:
        print(f"{title}: loading libraries ...", end="", file=sys.stderr, flush=True)
    try:
        return import_module(module)
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _set_variables(ctx: click.Context, **values: Any) -> None:
    """Sets variables of the environment until the command ends: the process may go on."""
    for name, value in values.items():
        before = os.environ.get(name)
        back = partial(os.environ.pop, name, None) if before is None else partial(os.environ.update, {name: before})
        ctx.call_on_close(back)
        os.environ[name] = str(value)


def _quieten(ctx: click.Context, is_quiet: bool) -> None:
    """Silences what says nothing about the user's work: bars in files, and warnings of libraries about themselves."""
    # Of bars: only for what takes longer, which is not the loading of a small model; and none for each shard and
    # column, in the middle of ours.
    delay = os.environ.get("TQDM_DELAY", "1")
    variables = {QUIET: "1" if is_quiet else "", "TQDM_DELAY": delay, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    if is_quiet:
        variables["TRANSFORMERS_VERBOSITY"] = "error"
    if is_quiet or not sys.stderr.isatty():
        variables |= dict.fromkeys(("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"), "1")
    _set_variables(ctx, **variables)
    if not os.environ.get("HF_DPARALLEL_DEBUG"):
        ctx.with_resource(warnings.catch_warnings())
        for category in (FutureWarning, DeprecationWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
        logger = logging.getLogger("bitsandbytes")
        ctx.call_on_close(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.ERROR)
