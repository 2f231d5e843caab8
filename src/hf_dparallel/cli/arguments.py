# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Arguments of the commands: dataclasses that several of them share, and the parser that reads YAML and flags."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from hf_dparallel_cli import COMMANDS
from hf_dparallel_cli.usage import fail, with_flags

from ..generation.configuration import DiffusionGenerationConfig
from ..generation.settings import SETTINGS


_CONFIG = "--config"


@dataclass
class OutputArguments:
    _argument_group_name = "output"

    json: str | None = field(
        default=None, metadata={"help": "File to write the figures of this command to.", "metavar": "FILE"}
    )
    quiet: bool = field(default=False, metadata={"help": "Write nothing on stderr but errors."})


@dataclass
class ModelArguments:
    _argument_group_name = "model"

    model: str = field(
        metadata={
            "help": "Model or adapter: its name on the Hub, a folder, 'demo' (the bundled teacher) or 'demo-student'.",
            "metavar": "MODEL",
        }
    )
    dtype: str = field(
        default="auto",
        metadata={
            "help": "Type of the weights in memory. 'auto' is that of the checkpoint.",
            "choices": ["auto", "bfloat16", "float16", "float32"],
        },
    )
    device: str | None = field(
        default=None, metadata={"help": "Where the model runs: 'cpu', 'cuda', 'cuda:1' ... By default a GPU, if any."}
    )
    load_in_4bit: bool = field(default=False, metadata={"help": "Load the weights in 4 bits (needs bitsandbytes)."})
    attn_implementation: str | None = field(
        default=None, metadata={"help": "How attention is computed: 'sdpa', 'eager', 'flex_attention' ..."}
    )
    revision: str | None = field(
        default=None, metadata={"help": "Branch, tag or commit of the model on the Hub. By default 'main'."}
    )


@dataclass
class LoadingArguments(ModelArguments):
    adapter: str | None = field(
        default=None,
        metadata={
            "help": "Adapter to put on the model: its name on the Hub, or a folder. 'demo-student' is the bundled one."
        },
    )


@dataclass
class DatasetArguments:
    _argument_group_name = "data"

    dataset: str = field(
        metadata={
            "help": "Prompts: a dataset on the Hub, a folder, a .json, .jsonl or .parquet file, or 'demo' for the "
            "bundled word problems. It has a column 'prompt' or 'messages'; or see --prompt_column.",
        }
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration (subset) of the dataset."})
    dataset_split: str | None = field(
        default=None,
        metadata={
            "help": "Split of the dataset. By default 'test' to evaluate, 'train' for trajectories; a file has "
            "'train' only."
        },
    )
    prompt_column: str | None = field(
        default=None,
        metadata={"help": "Column of texts to ask as a user's message, for instance 'question' in GSM8K."},
    )
    num_samples: int | None = field(default=None, metadata={"help": "Use the first so many rows only."})

    def __post_init__(self):
        check_positive(self, "num_samples")


@dataclass
class PromptArguments:
    _argument_group_name = "prompt"

    prompt: str | None = field(default=None, metadata={"help": "The prompt. By default it is read from stdin."})
    prompt_file: str | None = field(default=None, metadata={"help": "File with the prompt.", "metavar": "FILE"})
    raw: bool = field(
        default=False, metadata={"help": "Continue the prompt as it is, without the chat template of the tokenizer."}
    )

    def __post_init__(self):
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("`prompt` and `prompt_file` are both given. Remove one.")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("`prompt` is empty. Give a text.")

    def read(self) -> str:
        """Returns the prompt.

        Raises:
            ValueError: if it is empty.
        """
        if self.prompt is not None:
            text, source = self.prompt, "`prompt`"
        elif self.prompt_file is not None:
            text, source = Path(self.prompt_file).read_text(encoding="utf-8"), f"`prompt_file={self.prompt_file}`"
        else:
            text, source = sys.stdin.read(), "stdin"
        if not text.strip():
            raise ValueError(f"The prompt from {source} is empty. Give one with --prompt TEXT.")
        return text.rstrip("\n")


@dataclass
class RecipeArguments:
    """The settings of decoding. A [`CommandParser`] has a flag for each setting in the table."""

    # Those that were given, by name.
    settings: dict[str, Any] = field(default_factory=dict, init=False)

    def to_generation_config(self) -> DiffusionGenerationConfig:
        """Returns the settings that were given; the model's own recipe has the others.

        Raises:
            ValueError: for a setting that is out of range, or two commit rules.
        """
        return DiffusionGenerationConfig(**self.settings)


@dataclass
class DecodingArguments(RecipeArguments):
    seed: int = field(default=0, metadata={"help": "Seed, where tokens are sampled."})


def _default_workers() -> int:
    return 1 if torch.cuda.is_available() else min(torch.get_num_threads(), 4)


@dataclass
class BatchSizeArguments:
    _argument_group_name = "batches"

    batch_size: int = field(
        default_factory=lambda: 16 if torch.cuda.is_available() else 8,
        metadata={
            "help": "Prompts decoded together. By default on a GPU 16, on a CPU, where larger batches are no faster, "
            "8. Does not change the answers."
        },
    )

    def __post_init__(self):
        check_positive(self, "batch_size")


@dataclass
class BatchArguments(BatchSizeArguments):
    num_workers: int = field(
        default_factory=_default_workers,
        metadata={
            "help": "Threads that decode side by side, each batch_size prompts. By default on a GPU one, on a CPU one "
            "a core, at most 4. Does not change the answers."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "num_workers")


@dataclass
class RewardArguments:
    _argument_group_name = "data"

    reward: str = field(
        default="numeric",
        metadata={
            "help": "What makes an answer right. 'numeric': its last number is that of the column 'answer'. 'math': "
            "it is mathematically equal to the column 'solution' (needs math-verify).",
            "choices": ["numeric", "math"],
        },
    )


class CommandParser(HfArgumentParser):
    """An [`~transformers.HfArgumentParser`] that says what is wrong in one line, and reads a YAML file like flags.

    The fields named in `positionals` can also be given without their flag, in this order, before all flags; the last
    takes all that is left.
    """

    def __init__(self, command: str, dataclass_types: Sequence[type], positionals: Sequence[str] = ()):
        prog = f"hf-dparallel {command}"
        super().__init__(
            dataclass_types,
            prog=prog,
            description=COMMANDS[command],
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        if any(issubclass(arguments, RecipeArguments) for arguments in dataclass_types):
            self._add_settings()
        self.add_argument(_CONFIG, metavar="FILE", help="YAML file with any of these arguments. Flags override it.")
        self.add_argument("--help_all", action="help", help=argparse.SUPPRESS)
        self.positionals = positionals
        if positionals:
            self.usage = f"{prog} {' '.join(name.upper() for name in positionals)} [options]"

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Returns one instance of each dataclass. On wrong usage, exits with code 2."""
        files = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        files.add_argument(_CONFIG, action="append", default=[])
        files.error = self.error  # type: ignore[method-assign]
        given, flags = files.parse_known_args(with_flags(argv, self.positionals))
        from_files = [flag for path in given.config for flag in self._read_file(path)]
        try:
            *values, rest, unknown = self.parse_args_into_dataclasses(
                # The last one counts.
                [*from_files, *flags],
                return_remaining_strings=True,
                look_for_args_file=False,
            )
            if unknown:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
            if rest.config is not None:
                self.error(f"argument {_CONFIG}: not in the file itself")
            for arguments in values:
                if isinstance(arguments, RecipeArguments):
                    arguments.settings = {name: value for name, value in vars(rest).items() if value is not None}
                    arguments.to_generation_config()
        except ValueError as error:
            self.error(" ".join(str(error).split()))
        return tuple(values)

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)

    def _add_settings(self) -> None:
        group = self.add_argument_group("settings of decoding", "What is not given is taken from the model's recipe.")
        for name, setting in SETTINGS.items():
            if setting.has_flag:
                default = "" if setting.default is None else f" (default: {setting.default})"
                switch = {"nargs": "?", "const": True} if setting.type is bool else {}
                group.add_argument(
                    *dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]),
                    type=string_to_bool if setting.type is bool else setting.type,
                    choices=setting.choices or None,
                    help=(setting.help + default).replace("%", "%%"),
                    **switch,
                )

    def _read_file(self, path: str) -> list[str]:
        """Writes the values of a file as flags. Those of `env` go to the environment, as in files of TRL."""
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            self.error(f"the file of {_CONFIG} is not YAML: {' '.join(str(error).split())}")
        except (OSError, UnicodeDecodeError) as error:
            self.error(f"the file of {_CONFIG} cannot be read: {error}")
        if not isinstance(values, dict):
            self.error(f"the file of {_CONFIG} must contain a YAML mapping, `name: value`")
        os.environ.update({name: str(value) for name, value in values.pop("env", {}).items()})
        return self.flags_of(values)

    def flags_of(self, values: dict[str, Any]) -> list[str]:
        """Writes values by name as flags. On wrong usage, exits with code 2."""
        flags = []
        for name, value in values.items():
            if value is None:
                self.error(f"argument --{name} needs a value")
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            flags += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={text}"]
        return flags


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def check_positive(arguments: Any, name: str) -> None:
    """Raises a `ValueError` for an argument that is given and below 1."""
    value = getattr(arguments, name)
    if value is not None and value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}.")
