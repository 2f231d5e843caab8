# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Checks of settings, and their help from docstrings."""

import re
from inspect import cleandoc

from hf_dparallel_rules.settings import SettingError


def documented(settings: type) -> type:
    """Gives each setting of a dataclass its entry in the docstring as the help of the command line."""
    # From Python 3.13 on, docstrings have no indentation.
    text = cleandoc(settings.__doc__ or "")
    for name, entry in re.findall(r"^ {4}(\w+) \(.+\):((?:\n {8}.+)+)", text, flags=re.MULTILINE):
        setting = vars(settings)["__dataclass_fields__"][name]
        setting.metadata = {**setting.metadata, "help": " ".join(entry.split())}
    return settings


class Settings:
    """Settings that check themselves."""

    def check(self) -> None:
        """Raises a [`SettingError`] for a setting that is out of range or has no meaning."""

    def require(self, name: str, holds: bool, rule: str, remedy: str = "") -> None:
        """Raises a [`SettingError`] for the setting `name`, unless what its `rule` says holds."""
        if not holds:
            raise SettingError(name, getattr(self, name), rule, remedy)

    def refuse(self, name: str, reason: str) -> None:
        """Raises a [`SettingError`] if the setting `name` is set, which has no meaning for this `reason`."""
        value = getattr(self, name)
        self.require(name, value is None or value is False, f"has no meaning {reason}", "Leave it out.")
