# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding: one table, from which the configuration, the commands, the server and the docs follow.

Commit rules add their own entries ([`commit_rule`]). This module imports neither torch nor transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


# What a setting is about, in the order in which settings are listed.
KINDS = {
    "length": "Canvas",
    "rule": "Commit rules, at most one of them",
    "schedule": "Blocks",
    "sampling": "Sampling",
    "processing": "Tokens that are kept out",
    "cache": "Caches",
    "stopping": "The end of an answer",
    "output": "Output",
    "tokens": "Special tokens",
    "compile": "Compilation",
}
# No setting makes sense above it, and neither arithmetic in float32 nor memory is safe there.
_LARGEST = 1_000_000


@dataclass(frozen=True)
class Setting:
    """One setting of decoding. Unset is `None`, everywhere.

    Args:
        name (`str`): its name.
        kind (`str`): one of `KINDS`.
        type (`type`): `int`, `float`, `bool` or `str`; for values that no command line can say, `object`.
        help (`str`): what it does, in one or two sentences.
        default (`Any`, *optional*): what holds where nobody has set it.
        rule (`str`): which values are allowed; goes on after "must be".
        is_valid (`Callable`): whether a value of `type` is allowed.
        choices (`tuple`): the allowed values of a `str`.
        source (`str`): link to the paper it is from.
        is_swept (`bool`): whether it trades accuracy for speed, so that several values of it are worth comparing.
    """

    name: str
    kind: str
    type: type
    help: str
    default: Any = None
    rule: str = ""
    is_valid: Callable[[Any], bool] = lambda value: True
    choices: tuple[str, ...] = ()
    source: str = ""
    is_swept: bool = False

    @property
    def changes_answer(self) -> bool:
        """Whether a model may decode other tokens, or in other passes, under another value."""
        return self.kind not in ("output", "tokens", "compile")

    @property
    def is_flag(self) -> bool:
        """Whether it can be said on a command line."""
        return self.changes_answer and self.type is not object

    @property
    def is_request(self) -> bool:
        """Whether a request to the server may set it."""
        return self.is_flag and self.kind != "stopping" or self.name == "stop_at_eos"

    def read(self, value: Any) -> Any:
        """Returns a value, in Python's own type, if it is allowed.

        Raises:
            ValueError: naming the setting, the value and the rule.
        """
        if value is None:
            return None
        # A scalar of numpy or torch becomes a number.
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            value = value.item()
        if not self._is_of_type(value) or not self.is_valid(value):
            rule = f"one of {self.choices}" if self.choices else self.rule
            limit = f", and no number above {_LARGEST:,}" if self.type in (int, float) else ""
            raise ValueError(f"`{self.name}` must be {rule}{limit}, got {_shortened(value)}.")
        return float(value) if self.type is float else value

    def _is_of_type(self, value: Any) -> bool:
        if self.type is object:
            return True
        if self.choices:
            return value in self.choices
        if self.type in (bool, str):
            return isinstance(value, self.type)
        number = int if self.type is int else int | float
        return isinstance(value, number) and not isinstance(value, bool) and abs(value) <= _LARGEST


SETTINGS: dict[str, Setting] = {}


def add_setting(setting: Setting) -> None:
    """Adds a setting to the table, or replaces the one of its name."""
    SETTINGS[setting.name] = setting


def settings_of(*kinds: str) -> tuple[str, ...]:
    """Names of the settings of these kinds."""
    return tuple(name for name, setting in SETTINGS.items() if setting.kind in kinds)


def describe_settings() -> str:
    """The table as Markdown: name, default, allowed values and meaning of each setting, by kind."""
    lines = ["| Setting | Default | Allowed | Meaning |", "| --- | --- | --- | --- |"]
    for kind, title in KINDS.items():
        lines.append(f"| **{title}** | | | |")
        for name in settings_of(kind):
            setting = SETTINGS[name]
            default = "–" if setting.default is None else f"`{setting.default!r}`"
            allowed = ", ".join(f'`"{choice}"`' for choice in setting.choices) or setting.rule
            source = f" ([paper]({setting.source}))" if setting.source else ""
            lines.append(f"| `{name}` | {default} | {allowed} | {setting.help}{source} |")
    return "\n".join(lines) + "\n"


def _shortened(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= 10 * _LARGEST else f"{float(_clamp(value)):.3g}"
    return text if len(text) <= 80 else text[:80] + "..."


def _clamp(value: int) -> int:
    # Python writes no integer of more than 4,300 digits, and turns none above 1.8e308 into a float.
    return max(min(value, 10**300), -(10**300))


def _is_token_ids(value: Any) -> bool:
    ids = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids)


def _is_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(ids, list | tuple) and _is_token_ids(ids) for ids in value
    )


_POSITIVE: dict[str, Any] = {"rule": "a positive integer", "is_valid": lambda value: value > 0}
_ANY_NUMBER: dict[str, Any] = {"rule": "0 or a positive integer", "is_valid": lambda value: value >= 0}
_SWITCH: dict[str, Any] = {"type": bool, "rule": "True or False"}
_TOKEN: dict[str, Any] = {
    "type": object,
    "rule": "a token id (an integer)",
    "is_valid": lambda value: isinstance(value, int),
}

for _setting in (
    Setting(
        "max_new_tokens",
        "length",
        int,
        "Length of the canvas of mask tokens behind the prompt. 0 appends none: the mask tokens inside the prompt are "
        "filled in (infilling).",
        default=256,
        rule="a positive integer, or 0 to fill in the mask tokens of the prompt",
        is_valid=lambda value: value >= 0,
    ),
    Setting(
        "block_length",
        "length",
        int,
        "The canvas is decoded in blocks of this many tokens, from left to right; the last block may be shorter.",
        default=32,
        is_swept=True,
        **_POSITIVE,
    ),
    Setting(
        "max_active_blocks",
        "schedule",
        int,
        "How many blocks may be decided at the same time. Above 1, the next block opens before the last open one is "
        "decided; this needs a commit rule with a threshold.",
        default=1,
        source="https://huggingface.co/papers/2601.07568",
        is_swept=True,
        **_POSITIVE,
    ),
    Setting(
        "block_add_threshold",
        "schedule",
        float,
        "Fraction of the last open block that must be decided for the next one to open. At most one opens in a pass.",
        default=0.5,
        rule="a fraction above 0 and up to 1",
        is_valid=lambda value: 0 < value <= 1,
        is_swept=True,
    ),
    Setting(
        "temperature",
        "sampling",
        float,
        "0 takes the likeliest token; above 0, tokens are sampled. Certainty is always measured at temperature 1.",
        default=0.0,
        rule="at least 0 (0 takes the likeliest token) and finite",
        is_valid=lambda value: value >= 0,
        is_swept=True,
    ),
    Setting(
        "do_sample",
        "sampling",
        default=False,
        help="`False` is a temperature of 0; `True` without a temperature is a temperature of 1.",
        **_SWITCH,
    ),
    Setting("top_k", "sampling", int, "Sample among this many likeliest tokens only; 0 means all.", **_ANY_NUMBER),
    Setting(
        "top_p",
        "sampling",
        float,
        "Sample among the likeliest tokens that make up this probability only.",
        rule="a probability above 0 and up to 1",
        is_valid=lambda value: 0 < value <= 1,
    ),
    Setting(
        "repetition_penalty",
        "processing",
        float,
        "Lowers the scores of tokens that the row already has, prompt included, as in left-to-right decoding. 1 "
        "changes nothing.",
        rule="a number above 0",
        is_valid=lambda value: value > 0,
    ),
    Setting("min_new_tokens", "processing", int, "No answer ends before it has this many tokens.", **_ANY_NUMBER),
    Setting(
        "suppress_tokens",
        "processing",
        object,
        "Token ids that are never committed.",
        rule="a list of token ids",
        is_valid=lambda value: isinstance(value, list | tuple) and _is_token_ids(value),
    ),
    Setting(
        "bad_words_ids",
        "processing",
        object,
        "Words that are never committed, each a list of one token id. Words of several tokens are refused: tokens are "
        "committed in any order, so a word can come together in a single pass.",
        rule="a list of lists of one token id each (a word of several tokens cannot be kept out: its tokens may be "
        "committed in one pass)",
        is_valid=lambda value: _is_words(value) and all(len(ids) == 1 for ids in value),
    ),
    Setting("use_cache", "cache", help="`False` turns off a cache that a recipe asks for.", **_SWITCH),
    Setting(
        "cache_implementation",
        "cache",
        str,
        'Unset: every pass computes the whole sequence, exactly. `"prefix"` keeps keys and values of what precedes '
        'the open block, `"dual"` also of what follows it: both are approximations.',
        choices=("prefix", "dual"),
        source="https://huggingface.co/papers/2505.22618",
    ),
    Setting(
        "cache_refresh_interval",
        "cache",
        int,
        "With a cache: passes after which everything is computed anew inside a block, too. 1 is the exact path.",
        is_swept=True,
        **_POSITIVE,
    ),
    Setting(
        "stop_at_eos",
        "stopping",
        help="Whether a row is finished once an end token stands and everything before it is decided; the rest is "
        "padding.",
        default=True,
        **_SWITCH,
    ),
    Setting(
        "stop_strings",
        "stopping",
        object,
        "A row is finished when its decided text ends with one of these strings. Needs `tokenizer=` in `generate`.",
        rule="a string or a list of strings",
        is_valid=lambda value: all(isinstance(text, str) for text in ([value] if isinstance(value, str) else value)),
    ),
    Setting(
        "max_time",
        "stopping",
        float,
        "Seconds after which no further pass is begun; answers then end before their first undecided token.",
        rule="a number of seconds above 0",
        is_valid=lambda value: value > 0,
    ),
    Setting(
        "num_return_sequences",
        "output",
        int,
        "Answers to each prompt, next to one another. Needs sampling: without it all of them are equal.",
        default=1,
        **_POSITIVE,
    ),
    Setting(
        "output_certainty",
        "output",
        help="Whether to return entropy, confidence and candidates of every masked token at every pass. Runs the head "
        "on the whole canvas, which is slower.",
        default=False,
        **_SWITCH,
    ),
    Setting(
        "return_dict_in_generate",
        "output",
        help="Whether to return a `DiffusionGenerationOutput` instead of the sequences only.",
        default=False,
        **_SWITCH,
    ),
    Setting("mask_token_id", "tokens", help="The mask token; by default the model's, then the tokenizer's.", **_TOKEN),
    Setting(
        "eos_token_id",
        "tokens",
        object,
        "The token, or list of tokens, that ends an answer.",
        rule="a token id or a list of token ids",
        is_valid=_is_token_ids,
    ),
    Setting("pad_token_id", "tokens", help="The token after the end of an answer.", **_TOKEN),
    Setting("bos_token_id", "tokens", help="Only a record: decoding does not use it.", **_TOKEN),
    Setting(
        "compile_config",
        "compile",
        object,
        "A `transformers.CompileConfig`: runs the forward pass through `torch.compile`. Prompts are then padded to "
        "multiples of 64 columns and batches to powers of two, so that few shapes are compiled.",
        rule="a transformers.CompileConfig",
        is_valid=lambda value: type(value).__name__ == "CompileConfig",
    ),
    Setting("disable_compile", "compile", help="Ignores `compile_config`.", **_SWITCH),
):
    add_setting(_setting)


__all__ = ["KINDS", "SETTINGS", "Setting", "add_setting", "describe_settings", "settings_of"]
