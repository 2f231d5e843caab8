# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A command of `hf-dparallel`: a `click.Command` whose module is imported when it is run."""

import json
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hf_dparallel_rules.settings import what_is_meant

from .environment import import_command, quieten, set_variables


# The values of the flags of a command by name. `settings` has the settings of decoding that were given.
Flags = SimpleNamespace
# What a shell completes where a flag has this metavar.
_KINDS = {"FILE": "file", "DATASET": "file", "DIR": "dir", "MODEL": "dir", "ADAPTER": "dir"}


class Choice(click.Choice):
    """Choices that keep their dashes, which names of flags do not."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Returns a choice as it is."""
        return str(choice)


class Flag(click.Option):
    """A flag of a command; of type `bool`, a switch with a `--no_...` beside it.

    Args:
        name (`str`): its name.
        help (`str`): what it does.
        type (`Any`): a type of click.
        is_required (`bool`): whether it must be given, with its name or as a positional argument.
        needs, not_with (`str`): a flag that it does nothing without, and one that it contradicts.
        bundled (`tuple`): values for a shell to complete.
        is_setting (`bool`): whether it is a setting of decoding.
        is_minor (`bool`): whether only `--help_all` describes it.
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
        needs: str = "",
        not_with: str = "",
        bundled: Sequence[str] = (),
        is_setting: bool = False,
        is_minor: bool = False,
        **more: Any,
    ):
        spelling, default = f"--{name}", {}
        if type is bool:
            # A switch of a setting that is not given leaves it to the recipe.
            spelling, default = f"{spelling}/--no_{name}", {"default": None if is_setting else False}
        super().__init__([spelling], type=type, help=help, show_default=type is not bool, **default | more)
        self.is_required, self.needs, self.not_with = is_required, needs, not_with
        self.bundled, self.is_setting, self.is_minor = bundled, is_setting, is_minor

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the names of what is bundled, and files or folders."""
        items = [CompletionItem(name) for name in self.bundled if name.startswith(incomplete)]
        if not items and self.metavar in _KINDS:  # where one of these names fits, a shell lists no files
            items = [CompletionItem(incomplete, type=_KINDS[self.metavar])]
        return items or super().shell_complete(ctx, incomplete)


def group(title: str, *flags: Flag) -> tuple[Flag, ...]:
    """Returns flags that help lists under this title."""
    for flag in flags:
        flag.title = title
    return flags


class Command(click.Command):
    """A command.

    The function `run` of its module, `hf_dparallel.cli.generate_command` for `generate`, is called with the values of
    its flags, and returns the figures for `--json`, or `None` if another process does.

    Args:
        name (`str`): its name.
        help (`str`): what it does.
        flags (`Iterable[Flag]`): its flags. Of two with one name, the last counts.
        example (`str`): what one types behind its name.
        positionals (`Sequence[str]`): flags that can also be given without their names, in this order.
        other (`Command`, *optional*): runs instead if one of the flags `chosen_by` is given.
        chosen_by (`Sequence[str]`): names of flags of `other`.
    """

    def __init__(
        self,
        name: str,
        help: str,
        flags: Iterable[Flag],
        example: str = "",
        positionals: Sequence[str] = (),
        other: "Command | None" = None,
        chosen_by: Sequence[str] = (),
    ):
        self.flags = {str(flag.name): flag for flag in flags}
        self.all_flags = (other.flags if other else {}) | self.flags
        self.positionals, self.other, self.chosen_by = positionals, other, chosen_by
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
        words = click.Argument(["words"], nargs=-1, shell_complete=self._complete_word)
        # What follows \b is not wrapped. `--max-new-tokens` is `--max_new_tokens`.
        super().__init__(
            name,
            params=[*self.all_flags.values(), config, all_help, words],
            help=f"{help}\n\n\b\nExample: hf-dparallel {name} {example}",
            short_help=help,
            context_settings={"max_content_width": 110, "token_normalize_func": lambda name: name.replace("-", "_")},
        )

    def values(self, **given: Any) -> Flags:
        """Returns the values of all flags where these are given, by name."""
        with self.make_context(self.name, [], default_map=self._texts(given, "the values")) as ctx:
            return ctx.obj[1]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the flags. Then `ctx.obj` has the name of the command to run and the values of its flags."""
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = what_is_meant(error.option_name.lstrip("-"), self.all_flags)
            raise click.NoSuchOption(error.option_name, f"{error.message} {meant}".rstrip(), ctx=ctx) from error
        if not ctx.resilient_parsing:
            self._name_words(ctx)
            ctx.obj = self._chosen(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> None:
        """Imports the module of the command, runs it, and writes the figures that it returns."""
        name, flags = ctx.obj
        quieten(ctx, flags.quiet)
        figures = import_command(name, ctx.command_path).run(flags)
        if flags.json is not None and figures is not None:
            import_module("hf_dparallel.reports").write_json(figures, flags.json)

    def _name_words(self, ctx: click.Context) -> None:
        """Gives values without a name to the positional flags, and what is left to the list that is given."""
        words = list(ctx.params.pop("words"))
        for name in self.positionals:
            if words and not _is_given(ctx, name):
                ctx.params[name] = tuple(words) if self.flags[name].multiple else words[0]
                words = [] if self.flags[name].multiple else words[1:]
                ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)
        lists = [name for name, flag in self.all_flags.items() if flag.multiple and _is_given(ctx, name)]
        if len(lists) == 1 and lists[0] not in self.positionals:  # `--block_lengths 16 32`
            ctx.params[lists[0]] += self.all_flags[lists[0]].type_cast_value(ctx, words)
            words = []
        if words:
            rule = "Flags need their names, and a text with spaces needs quotes"
            raise click.UsageError(f"nothing takes {' '.join(words)!r}. {rule}", ctx)

    def _chosen(self, ctx: click.Context) -> tuple[str, Flags]:
        """Returns the name of the command that is asked for and the values of its flags."""
        given = {name: ctx.params[name] for name in ctx.params if _is_given(ctx, name)}
        chosen = next((name for name in self.chosen_by if name in given), None)
        command = self.other if self.other and chosen else self
        flags, others = command.flags, "".join(f", or --{name}" for name in self.chosen_by)
        missing = [f"--{name}" for name, flag in flags.items() if flag.is_required and name not in given]
        unused = [f"--{name}" for name in sorted(given.keys() - flags.keys())]
        problem = missing and f"the following flags are required: {', '.join(missing)}{others}"
        if unused and not problem:
            how = f"with --{chosen}" if chosen else f"without --{' or --'.join(self.chosen_by)}"
            problem = f"{', '.join(unused)} cannot be used {how}. Leave that out"
        for name, value in () if problem else given.items():
            flag = flags[name]
            if flag.needs and flag.needs not in given:
                problem = f"`{name}` needs `{flag.needs}`. Add --{flag.needs}."
            elif flag.not_with in given:
                problem = f"`{name}` and `{flag.not_with}` are both given. Remove one."
            elif str(value).startswith("--") and str(value)[2:].replace("-", "_") in flags:
                problem = f"Option '--{name}' requires an argument."
        if problem:
            raise click.UsageError(problem, ctx)
        own = {name: ctx.params[name] for name, flag in flags.items() if not flag.is_setting}
        return str(command.name), Flags(
            **own, settings={name: given[name] for name, flag in flags.items() if flag.is_setting and name in given}
        )

    def _complete_word(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completes a value without a name as the flag that takes it."""
        rest = [name for name in self.positionals if not _is_given(ctx, name)][len(ctx.params.get("words") or ()) :]
        return self.flags[rest[0]].shell_complete(ctx, incomplete) if rest else []

    def _read_files(self, ctx: click.Context, param: click.Parameter, paths: Sequence[str]) -> None:
        """Takes what YAML files say as defaults. Their `env` goes to the environment, as in files of TRL."""
        for path in paths:
            values = _read_yaml(path)
            set_variables(ctx, **values.pop("env", {}))
            ctx.default_map = dict(ctx.default_map or {}) | self._texts(values, f"`{path}`")

    def _texts(self, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Returns the values of a file as they would be written on a command line, by the names of their flags."""
        texts: dict[str, Any] = {}
        for key, value in values.items():
            flag = self.all_flags.get(str(key).replace("-", "_"))
            if flag is None:
                remedy = what_is_meant(str(key), self.all_flags) or f"Remove `{key}`."
                raise click.UsageError(f"{source} has `{key}`, which is no flag of this command. {remedy}")
            if value is None or (isinstance(value, list) and not flag.multiple):
                raise click.UsageError(f"`{key}` in {source} needs one value, got {value}")
            items = [json.dumps(item) if isinstance(item, dict) else str(item) for item in _as_list(value)]
            texts[str(flag.name)] = items if flag.multiple else items[0]
        return texts

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Names the positional arguments."""
        return [*map(str.upper, self.positionals), "[options]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the flags under their titles, groups with required flags first, and names the minor ones."""
        groups: dict[str, list[tuple[str, str]]] = {}
        required, minor = set(), []
        for param in self.get_params(ctx):
            spelling, text = param.get_help_record(ctx) or ("", "")
            title, name = getattr(param, "title", "options"), str(param.name)
            if getattr(param, "is_required", False):
                required.add(title)
                text += "" if name in self.positionals else " [required]"
            if isinstance(param, click.Argument):
                continue
            is_short = "all" not in ctx.meta
            if getattr(param, "is_setting", False) and is_short:
                text = re.split(r"(?<=\.) (?=[A-Z`])", text)[0]
            if getattr(param, "is_minor", False) and is_short:
                minor.append(name)
            elif spelling:
                spelling = f"{name.upper()}, or {spelling}" if name in self.positionals else spelling
                groups.setdefault(title, []).append((spelling, text))
        groups["options"] = groups.pop("options")
        for title, records in sorted(groups.items(), key=lambda group: group[0] not in required):
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)
        if minor:
            with formatter.section("others"):
                formatter.write_text(f"{', '.join(minor)}. `{ctx.command_path} --help_all` describes them.")


class TrainCommand(click.Command):
    """A command whose flags are fields of dataclasses, which its module parses as TRL's commands do."""

    def __init__(self, name: str, help: str):
        words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
        settings = {"ignore_unknown_options": True}
        super().__init__(name, params=[words], help=help, add_help_option=False, context_settings=settings)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of flags, which takes as long as importing transformers."""
        names = (f"--{name}" for kind in import_command("train", "").ARGUMENTS for name in kind.__dataclass_fields__)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def invoke(self, ctx: click.Context) -> None:
        """Imports the module of the command, and runs it on the words."""
        words = ctx.params["words"]
        quieten(ctx, "--quiet" in words)
        import_command(str(self.name), ctx.command_path).main(words)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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
