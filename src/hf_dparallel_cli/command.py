# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A command of `hf-dparallel`: a `click.Command` whose module is imported when it is run."""

import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hf_dparallel_rules.settings import suggest

from .environment import import_command, quieten, set_variables


# The values of the flags of a command by name. `settings` has the generation settings that were given.
Flags = SimpleNamespace


class Choice(click.Choice):
    """Choices that keep their dashes, unlike the names of flags."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Returns a choice as it is."""
        return str(choice)


class Place(click.ParamType):
    """A file or a folder (`kind` is "file" or "dir"), or one of the `bundled` names."""

    def __init__(self, name: str, kind: str, *bundled: str):
        self.name, self.kind, self.bundled = name, kind, bundled

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the bundled names that fit; if none does, the shell completes files or folders."""
        items = [CompletionItem(name) for name in self.bundled if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type=self.kind)]


FILE, DIR = Place("FILE", "file"), Place("DIR", "dir")


class Flag(click.Option):
    """A flag of a command. If its type is `bool`, there is also a flag `--no_...`.

    Args:
        is_required (`bool`): whether it must be given, by name or as a positional argument.
        is_setting (`bool`): whether it is a generation setting.
        is_minor (`bool`): whether only `--help_all` describes it.
        needs (`tuple`): flags of which at least one must be given with it.
        not_with (`tuple`): flags that cannot be given with it. With one of them, it is not required.
        more: arguments of `click.Option`.
    """

    title = "options"

    def __init__(
        self,
        name: str,
        help: str,
        type: Any = str,
        *,
        is_required: bool = False,
        is_setting: bool = False,
        is_minor: bool = False,
        needs: tuple[str, ...] = (),
        not_with: tuple[str, ...] = (),
        **more: Any,
    ):
        spelling, how = f"--{name}", {"show_default": type is not bool}
        if type is bool:
            spelling, how = f"{spelling}/--no_{name}", how | {"default": False}
        super().__init__([spelling], type=type, help=help, **how | more)
        self.is_required, self.is_setting, self.is_minor = is_required, is_setting, is_minor
        self.needs, self.not_with = needs, not_with

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Returns the row of the help: the spelling and the description."""
        spelling, text = super().get_help_record(ctx) or ("", "")
        if self.is_setting and "all" not in ctx.meta:
            text = re.split(r"(?<=\.) (?=[A-Z`])", text)[0]
        if self.name in getattr(ctx.command, "positionals", ()):
            return f"{self.name.upper()}, or {spelling}", text
        return spelling, f"{text} [required]" if self.is_required else text


def group(title: str, *flags: Flag, **about: tuple[str, ...]) -> list[Flag]:
    """Returns copies of flags under a title of the help. Flags without `needs` or `not_with` get those of `about`."""
    copies = [*map(copy, flags)]
    for flag in copies:
        own = {name: getattr(flag, name) or value for name, value in about.items()}
        vars(flag).update(own, title=title)
    return copies


class Command(click.Command):
    """A command.

    The function `run` of its module, such as `hf_dparallel.cli.generate_command`, is called with the values of its
    flags. It returns the results for `--json`, or `None` if another process does.

    Args:
        flags (`Iterable[Flag]`): its flags. Of two with the same name, the last counts.
        example (`str`): the words after its name in the example.
        positionals (`Sequence[str]`): flags that can also be given without their names, in this order.
    """

    def __init__(
        self, name: str, help: str, flags: Iterable[Flag], example: str = "", positionals: Sequence[str] = ()
    ):
        self.flags, self.positionals = {flag.name: flag for flag in flags}, positionals
        words = click.Argument(["words"], nargs=-1, shell_complete=self._complete_word)
        # click does not wrap text after \b. `--max-new-tokens` is read as `--max_new_tokens`.
        super().__init__(
            name,
            params=[*self.flags.values(), _CONFIG, _HELP_ALL, words],
            help=f"{help}\n\n\b\nExample: hf-dparallel {name} {example}",
            short_help=help,
            context_settings={"max_content_width": 110, "token_normalize_func": lambda name: name.replace("-", "_")},
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses and checks the flags, and sets `ctx.obj` to their values."""
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = suggest(error.option_name.lstrip("-"), self.flags)
            raise click.NoSuchOption(error.option_name, f"{error.message} {meant}".rstrip(), ctx=ctx) from error
        if not ctx.resilient_parsing:
            self._name_words(ctx)
            given = {name for name in self.flags if _is_given(ctx, name)}
            self._check(ctx, given)
            settings = {name: ctx.params.pop(name) for name, flag in self.flags.items() if flag.is_setting}
            ctx.obj = Flags(**ctx.params, settings={name: settings[name] for name in settings if name in given})
        return rest

    def invoke(self, ctx: click.Context) -> None:
        """Imports the module of the command, runs it, and writes the results that it returns."""
        quieten(ctx, ctx.obj.quiet)
        figures = import_command(str(self.name), ctx.command_path).run(ctx.obj)
        if ctx.obj.json is not None and figures is not None:
            import_module("hf_dparallel.reports").write_json(figures, ctx.obj.json)

    def _name_words(self, ctx: click.Context) -> None:
        """Assigns words without a name to the positional flags, and the rest to the flag that takes a list."""
        words = ctx.params.pop("words")
        for name in self.positionals:
            if words and not _is_given(ctx, name):
                is_list = self.flags[name].multiple
                ctx.params[name], words = (words, ()) if is_list else (words[0], words[1:])
                ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)
        lists = [name for name, flag in self.flags.items() if flag.multiple and _is_given(ctx, name)]
        if len(lists) == 1 and lists[0] not in self.positionals:  # `--block_lengths 16 32`
            ctx.params[lists[0]] += self.flags[lists[0]].type_cast_value(ctx, words)
        elif words:
            rule = "Add the name of the flag, or put quotes around a text with spaces"
            raise click.UsageError(f"Unexpected arguments: {' '.join(words)!r}. {rule}", ctx)

    def _check(self, ctx: click.Context, given: set[str]) -> None:
        """Raises a `UsageError` for missing flags, and for flags that do not go together."""
        missing = [
            ", or ".join(f"--{name}" for name in (flag.name, *flag.not_with))
            for flag in self.flags.values()
            if flag.is_required and given.isdisjoint((flag.name, *flag.not_with))
        ]
        if missing:
            raise click.UsageError(f"the following flags are required: {', '.join(missing)}", ctx)
        for name in sorted(given):
            flag, value = self.flags[name], str(ctx.params[name])
            for other in given.intersection(flag.not_with):
                raise click.UsageError(f"`{name}` and `{other}` are both given. Remove one.", ctx)
            if flag.needs and given.isdisjoint(flag.needs):
                needs, add = (join.join(flag.needs) for join in ("` or `", " or --"))
                raise click.UsageError(f"`{name}` needs `{needs}`. Add --{add}.", ctx)
            if value.startswith("--") and value[2:].replace("-", "_") in self.flags:
                raise click.UsageError(f"Option '--{name}' requires an argument.", ctx)

    def _complete_word(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the completions of a word without a name, from the positional flag that takes it."""
        rest = [name for name in self.positionals if not _is_given(ctx, name)][len(ctx.params.get("words") or ()) :]
        return self.flags[rest[0]].shell_complete(ctx, incomplete) if rest else []

    def texts(self, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Returns the values of a YAML file as text, as on a command line, by the names of their flags."""
        texts: dict[str, Any] = {}
        for key, value in values.items():
            flag = self.flags.get(str(key).replace("-", "_"))
            if flag is None:
                remedy = suggest(str(key), self.flags) or f"Remove `{key}`."
                raise click.UsageError(f"{source} has `{key}`, which is not a flag of this command. {remedy}")
            if value is None or (isinstance(value, list) and not flag.multiple):
                raise click.UsageError(f"`{key}` in {source} needs one value, got {value}")
            items = value if isinstance(value, list) else [value]
            items = [json.dumps(item) if isinstance(item, dict) else str(item) for item in items]
            texts[flag.name] = items if flag.multiple else items[0]
        return texts

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Returns the names of the positional arguments."""
        return [*map(str.upper, self.positionals), "[options]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the flags under their titles, and the names of the minor ones."""
        groups: dict[str, list[tuple[str, str]]] = {}
        minor = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if getattr(param, "is_minor", False) and "all" not in ctx.meta:
                minor.append(param.name)
            elif record:
                groups.setdefault(getattr(param, "title", "options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)
        if minor:
            with formatter.section("others"):
                formatter.write_text(f"{', '.join(minor)}. `{ctx.command_path} --help_all` describes them.")


class TrainCommand(click.Command):
    """A command whose flags are the fields of dataclasses. Its module parses them as TRL's commands do."""

    def __init__(self, name: str, help: str):
        words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
        settings = {"ignore_unknown_options": True}
        super().__init__(name, params=[words], help=help, add_help_option=False, context_settings=settings)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the names of flags that fit. This imports transformers, which takes seconds."""
        names = (f"--{name}" for kind in import_command("train", "").ARGUMENTS for name in kind.__dataclass_fields__)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def invoke(self, ctx: click.Context) -> None:
        """Imports the module of the command, and runs it on the words."""
        words = ctx.params["words"]
        quieten(ctx, "--quiet" in words)
        import_command(str(self.name), ctx.command_path).main(words)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def _show_all(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        ctx.meta["all"] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _read_files(ctx: click.Context, param: click.Parameter, paths: Sequence[str]) -> None:
    """Reads YAML files as defaults of the flags. Their `env` sets environment variables, as in TRL's files."""
    command: Any = ctx.command
    for path in paths:
        values = _read_yaml(path)
        set_variables(ctx, **values.pop("env", {}))
        ctx.default_map = dict(ctx.default_map or {}) | command.texts(values, f"`{path}`")


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


_EAGER: dict[str, Any] = {"is_eager": True, "expose_value": False}
_CONFIG = Flag(
    "config",
    "YAML file with any of these flags. Flags on the command line override it.",
    FILE,
    multiple=True,
    callback=_read_files,
    **_EAGER,
)
_HELP_ALL = click.Option(["--help_all"], is_flag=True, hidden=True, callback=_show_all, **_EAGER)
