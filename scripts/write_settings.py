# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Writes what follows from the settings and flags: `python scripts/write_settings.py`.

That is the table of settings in docs/decoding.md, and flags.json, by which `hf-dparallel` answers help and wrong usage
without importing the libraries.
"""

import argparse
import dataclasses
import json
import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers
import trl

from hf_dparallel.cli.arguments import CommandParser
from hf_dparallel.generation.settings import SETTINGS, describe_settings
from hf_dparallel_cli import COMMANDS, module_of


ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "decoding.md"
FLAGS = ROOT / "src" / "hf_dparallel_cli" / "flags.json"
HEADER = "| Setting | Default |"
# Of the flags of transformers and TRL these are described in the help of `train`, by their first sentence.
_DESCRIBED = """
output_dir num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing
learning_rate lr_scheduler_type warmup_steps optim bf16 use_cpu seed logging_steps report_to eval_strategy eval_steps
save_strategy save_steps load_best_model_at_end resume_from_checkpoint push_to_hub hub_model_id dtype model_revision
attn_implementation load_in_4bit use_peft lora_r lora_alpha lora_target_modules
"""
_OF_LIBRARIES = {
    field.name: field
    for kind in (transformers.TrainingArguments, trl.ModelConfig)
    for field in dataclasses.fields(kind)
}


def flags_table() -> dict[str, Any]:
    """The flags of each command, as its parser knows them."""
    commands = {name: describe(import_module(module_of(name)).make_parser(), name == "train") for name in COMMANDS}
    return {"versions": {name: version(name) for name in ("transformers", "trl")}, "commands": commands}


def describe(parser: CommandParser, is_training: bool) -> dict[str, Any]:
    """The flags of a command by group, and those of other libraries that are only named."""
    groups: dict[str, list[dict[str, Any]]] = {}
    others = []
    fields = [field for kind in parser.dataclass_types for field in dataclasses.fields(kind)]
    # What a function gives may be right for this machine only.
    computed = {field.name for field in fields if field.default_factory is not dataclasses.MISSING}
    for group in parser._action_groups:
        for action in group._group_actions:
            name = action.dest
            is_foreign = is_training and name in _OF_LIBRARIES and name not in _DESCRIBED.split()
            if is_foreign and action.help == _help_of_library(name):
                others.append(action.option_strings[0].lstrip("-"))
            elif action.help != argparse.SUPPRESS and name != "help":
                groups.setdefault(group.title or "options", []).append(_flag(action, is_training, computed))
    groups["options"] = groups.pop("options")
    return {"positionals": list(parser.positionals), "groups": groups, "others": others}


def _flag(action: argparse.Action, is_training: bool, computed: set[str]) -> dict[str, Any]:
    text = re.sub(r"\s+", " ", action.help or "").replace("%%", "%").strip()
    if is_training and action.dest in _OF_LIBRARIES and action.help == _help_of_library(action.dest):
        text = text.partition(". ")[0].rstrip(".") + "."
    default = action.default
    says_default = isinstance(default, int | float | str) and not isinstance(default, bool) and default != ""
    if says_default and action.dest not in computed and "efault" not in text:
        text += f" (default: {getattr(default, 'value', default)})"
    # With underscores; dashes are allowed for each of them.
    names = [name for name in action.option_strings if "-" not in name.lstrip("-")]
    flag: dict[str, Any] = {"names": names, "help": text}
    if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
        flag["is_switch"] = True
    if action.type in (int, float):
        flag["type"] = action.type.__name__
    for name in ("nargs", "choices", "metavar"):
        if getattr(action, name) not in (None, 0):
            flag[name] = getattr(action, name)
    setting = SETTINGS.get(action.dest)
    if setting is not None and setting.type in (int, float) and setting.has_flag:
        flag["range"] = [setting.minimum, setting.maximum]
        flag["excludes_minimum"], flag["rule"] = setting.above_minimum, setting.full_rule
    if action.required:
        flag["required"] = True
    return flag


def _help_of_library(name: str) -> str | None:
    return _OF_LIBRARIES[name].metadata.get("help")


def flags_text() -> str:
    """What stands in flags.json: a flag a line."""
    text = json.dumps(flags_table(), indent=1)
    return re.sub(r"\{\n {5,}\"names\"(.|\n)*?\n {4,}\}", lambda flag: re.sub(r"\n *", " ", flag[0]), text) + "\n"


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADER)
    after = rest[rest.index("\n\n") + 1 :]
    PAGE.write_text(before + describe_settings() + after, encoding="utf-8")
    FLAGS.write_text(flags_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
