# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding: one table, from which the configuration, the commands, the server and the docs follow.

Commit rules add their own entries ([`commit_rule`]). This module imports neither torch nor transformers.
"""

from dataclasses import dataclass
from typing import Any


# What a setting is about, in the order in which settings are listed.
KINDS = {
    "length": "Canvas",
    "rule": "Commit rules, at most one of them",
    "schedule": "Blocks",
    "revision": "Revision of decided tokens of the open block, at most one way",
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


class SettingError(ValueError):
    """A setting that cannot have its value, by itself or beside others.

    Args:
        setting (`str`): its name.
        value (`Any`): the value.
        rule (`str`): what it breaks, as the end of a sentence about the setting: "must be ...", "needs ...".
        remedy (`str`, *optional*): what to do instead, in sentences.
    """

    def __init__(self, setting: str, value: Any, rule: str, remedy: str = ""):
        self.setting, self.value, self.rule, self.remedy = setting, value, rule, remedy
        shown = _shortened(value)
        text = f"`{setting}` {rule}, got {shown}." if rule.startswith("must ") else f"`{setting}={shown}` {rule}."
        super().__init__(f"{text} {remedy}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        # For processes that hand errors to one another.
        return type(self), (self.setting, self.value, self.rule, self.remedy)


@dataclass(frozen=True)
class Setting:
    """One setting of decoding. Unset is `None`, everywhere.

    Args:
        name (`str`): its name.
        kind (`str`): one of `KINDS`.
        type (`type`): `int`, `float`, `bool` or `str`; `list` for token ids or texts, one or several, and `object` for
            values of another class.
        help (`str`): what it does, in one or two sentences.
        default (`Any`, *optional*): what holds where nobody has set it.
        off (`Any`, *optional*): the value at which it does nothing, and its default if that is not given.
        minimum, maximum (`float`, *optional*): the range of a number.
        above_minimum (`bool`): whether the minimum itself is not allowed.
        noun (`str`): what a value is, for messages.
        items (`type`): what a `list` is of.
        choices (`tuple`): the allowed values of a `str`.
        source (`str`): link to the paper it is from.
        is_swept (`bool`): whether it trades accuracy for speed, so that several values of it are worth comparing.
    """

    name: str
    kind: str
    type: type
    help: str
    default: Any = None
    off: Any = None
    minimum: float = 0
    maximum: float = _LARGEST
    above_minimum: bool = False
    noun: str = ""
    items: Any = int
    choices: tuple[str, ...] = ()
    source: str = ""
    is_swept: bool = False

    def __post_init__(self) -> None:
        if self.default is None:
            object.__setattr__(self, "default", self.off)

    def is_on(self, value: Any) -> bool:
        """Whether it is set to this value and does something there."""
        return value not in (None, "", self.off)

    @property
    def changes_answer(self) -> bool:
        """Whether a model may decode other tokens, or in other passes, under another value."""
        return self.kind not in ("output", "tokens", "compile")

    @property
    def is_flag(self) -> bool:
        """Whether it can be said on a command line."""
        return self.changes_answer and self.type in (int, float, bool, str)

    @property
    def is_request(self) -> bool:
        """Whether a request to the server may set it."""
        return self.is_flag and self.kind != "stopping" or self.name == "stop_at_eos"

    @property
    def rule(self) -> str:
        """Which values are allowed; goes on after "must be"."""
        if self.choices:
            return f"one of {self.choices}"
        if self.type not in (int, float):
            return self.noun or "True or False"
        upper = f" up to {self.maximum:,g}" if self.maximum != _LARGEST else ""
        if self.type is int and not self.noun:
            return ("a positive integer" if self.minimum == 1 else "0 or a positive integer") + upper
        upper = upper and f" and{upper}"
        return f"{self.noun or 'a number'} {'above' if self.above_minimum else 'of at least'} {self.minimum:g}{upper}"

    @property
    def full_rule(self) -> str:
        """The same with the limit that all numbers have."""
        is_open = self.maximum == _LARGEST and self.type in (int, float)
        return f"{self.rule} (and at most {_LARGEST:,})" if is_open else self.rule

    def read(self, value: Any) -> Any:
        """Returns a value, in Python's own type, if it is allowed.

        Raises:
            SettingError: if it is not.
        """
        if value is None:
            return None
        # Scalars and arrays of numpy and torch become numbers and lists.
        value = _as_python(value)
        if not self._allows(value):
            raise SettingError(self.name, value, f"must be {self.full_rule}")
        return float(value) if self.type is float else value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if self.type in (int, float):
            # Also no infinity and no NaN: neither arithmetic in float32 nor memory would be safe.
            is_number = isinstance(value, int | float if self.type is float else int) and not isinstance(value, bool)
            in_range = is_number and self.minimum <= value <= self.maximum
            return in_range and not (self.above_minimum and value == self.minimum)
        if self.type is list:
            values = value if isinstance(value, list | tuple) else [value]
            return all(isinstance(item, self.items) and not isinstance(item, bool) for item in values)
        return isinstance(value, self.type)


SETTINGS: dict[str, Setting] = {}


def add_setting(name: str, kind: str, type: type, help: str, **fields: Any) -> None:
    """Adds a [`Setting`] to the table, or replaces the one of its name."""
    SETTINGS[name] = Setting(name, kind, type, help, **fields)


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


def _as_python(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_python(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:80] + "..."


add_setting(
    "max_new_tokens",
    "length",
    int,
    "Length of the canvas of mask tokens behind the prompt. 0 appends none: the mask tokens inside the prompt are "
    "filled in (infilling).",
    default=256,
    off=0,
)
add_setting(
    "block_length",
    "length",
    int,
    "The canvas is decoded in blocks of this many tokens, from left to right; the last block may be shorter. "
    "Block-causal models count blocks from the first token of the prompt, and have a default of their own.",
    default=32,
    minimum=1,
    is_swept=True,
)
add_setting(
    "max_active_blocks",
    "schedule",
    int,
    "How many blocks may be decided at the same time. Above 1, the next block opens before the last open one is "
    "decided; this needs a commit rule with a threshold.",
    off=1,
    minimum=1,
    source="https://huggingface.co/papers/2601.07568",
    is_swept=True,
)
add_setting(
    "block_add_threshold",
    "schedule",
    float,
    "Fraction of the last open block that must be decided for the next one to open. At most one opens in a pass.",
    default=0.5,
    noun="a fraction",
    above_minimum=True,
    maximum=1,
    is_swept=True,
)
add_setting(
    "suffix_length",
    "schedule",
    int,
    "How many masks behind the open blocks a pass computes, and lets the others see; by default all. Fewer are "
    "faster, and an approximation.",
    source="https://huggingface.co/papers/2508.14148",
    is_swept=True,
)
add_setting(
    "revocation_threshold",
    "revision",
    float,
    "Verified commits: every pass also asks the model for the decided tokens of the open block, each hidden from the "
    "places that predict it, and masks those again whose probability is below this. Needs a commit rule with a "
    "threshold, which may then be bolder.",
    off=0.0,
    noun="a probability",
    maximum=1,
    source="https://huggingface.co/papers/2507.18578",
    is_swept=True,
)
add_setting(
    "editing_threshold",
    "revision",
    float,
    "Editing: a decided token of the open block is replaced where the model, which sees it, now predicts another one "
    "with more than this probability. 1 replaces nothing. Needs a commit rule with a threshold.",
    off=1.0,
    noun="a probability",
    maximum=1,
    source="https://huggingface.co/papers/2602.08676",
    is_swept=True,
)
add_setting(
    "max_post_steps",
    "revision",
    int,
    "With `editing_threshold`: how many passes look for edits after the last mask of a block is decided. The block is "
    "left before if one of them finds none.",
    default=16,
    maximum=256,
    is_swept=True,
)
add_setting(
    "temperature",
    "sampling",
    float,
    "0 takes the likeliest token; above 0, tokens are sampled. Certainty is always measured at temperature 1.",
    off=0.0,
    is_swept=True,
)
add_setting(
    "do_sample",
    "sampling",
    bool,
    "`False` is a temperature of 0; `True` without a temperature is a temperature of 1.",
    off=False,
)
add_setting("top_k", "sampling", int, "Sample among this many likeliest tokens only; 0 means all.", off=0)
add_setting(
    "top_p",
    "sampling",
    float,
    "Sample among the likeliest tokens that make up this probability only.",
    off=1.0,
    noun="a probability",
    above_minimum=True,
    maximum=1,
)
add_setting(
    "repetition_penalty",
    "processing",
    float,
    "Lowers the scores of tokens that the row already has, prompt included, as in left-to-right decoding. 1 changes "
    "nothing.",
    off=1.0,
    minimum=0.01,
    maximum=100,
)
add_setting("min_new_tokens", "processing", int, "No answer ends before it has this many tokens.", off=0)
add_setting(
    "suppress_tokens",
    "processing",
    list,
    "Tokens that are never committed.",
    off=[],
    noun="a list of token ids",
)
add_setting(
    "bad_words_ids",
    "processing",
    list,
    "Words that are never committed, each a list of one token id. A word of several tokens is refused: tokens are "
    "committed in any order, so such a word can come together in a single pass.",
    off=[],
    noun="a list of lists of one token id each",
    items=list,
)
add_setting(
    "use_cache",
    "cache",
    bool,
    "`False` turns off the cache and the suffix window that a recipe asks for, and the cache that block-causal models "
    "have by default; `True` changes nothing.",
    default=False,
    off=True,
)
add_setting(
    "cache_implementation",
    "cache",
    str,
    'Unset: every pass computes the whole sequence, exactly. `"prefix"` keeps keys and values of what precedes the '
    'open block, `"dual"` also of what follows it: both are approximations. `"block"` is for block-causal models, '
    "whose default it is: it keeps keys and values of what precedes the open block, exactly.",
    choices=("prefix", "dual", "block"),
    source="https://huggingface.co/papers/2505.22618",
)
add_setting(
    "cache_refresh_interval",
    "cache",
    int,
    "With a cache: passes after which everything is computed anew inside a block, too. 1 is the exact path.",
    minimum=1,
    is_swept=True,
)
add_setting(
    "stop_at_eos",
    "stopping",
    bool,
    "Whether a row is finished once an end token and everything before it are decided; the rest is padding.",
    default=True,
)
add_setting(
    "stop_strings",
    "stopping",
    list,
    "A row is finished when its decided text ends with one of these strings. Needs `tokenizer=` in `generate`.",
    off=[],
    noun="a string or a list of strings",
    items=str,
)
add_setting(
    "max_time",
    "stopping",
    float,
    "Seconds after which no further pass is begun; answers then end before their first undecided token.",
    noun="a number of seconds",
    above_minimum=True,
)
add_setting(
    "num_return_sequences",
    "output",
    int,
    "Answers to each prompt, next to one another. Needs sampling: without it all of them are equal.",
    off=1,
    minimum=1,
)
add_setting(
    "output_certainty",
    "output",
    bool,
    "Whether to return entropy, confidence and candidates of every masked token at every pass. Runs the head on the "
    "whole canvas, which is slower.",
    off=False,
)
add_setting(
    "return_dict_in_generate",
    "output",
    bool,
    "Whether to return a `DiffusionGenerationOutput` instead of the sequences only.",
    off=False,
)
for _name, _help in (
    ("mask_token_id", "The mask token; by default the model's, then the tokenizer's."),
    ("pad_token_id", "The token after the end of an answer."),
    ("bos_token_id", "Only a record: decoding does not use it."),
):
    add_setting(_name, "tokens", int, _help, noun="a token id (an integer)")
add_setting(
    "eos_token_id",
    "tokens",
    list,
    "The token, or list of tokens, that ends an answer.",
    noun="a token id or a list of token ids",
)
add_setting(
    "compile_config",
    "compile",
    object,
    "A `transformers.CompileConfig`: runs the forward pass through `torch.compile`. Prompts are then padded to "
    "multiples of 64 columns and batches to powers of two, so that few shapes are compiled.",
    noun="a transformers.CompileConfig",
)
add_setting("disable_compile", "compile", bool, "Ignores `compile_config`.")


__all__ = ["KINDS", "SETTINGS", "Setting", "SettingError", "add_setting", "describe_settings", "settings_of"]
