# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding: one table, from which the configuration, the commands, the server and the docs follow.

Commit rules and ways to revise add their own entries. This module imports neither torch nor transformers.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol


# The kinds of settings, in the order in which settings are listed.
KINDS = {
    "length": "Canvas",
    "rule": "Commit rules, at most one of them",
    "rule options": "Options of commit rules",
    "blocks": "Several blocks at once",
    "revision": "Revision of decided tokens of the open block, at most one way",
    "sampling": "Sampling",
    "processing": "Tokens that are kept out",
    "cache": "Caches, and the suffix window",
    "stopping": "The end of an answer",
    "output": "Output",
    "tokens": "Special tokens",
    "compile": "Compilation",
}
# Our names for settings of transformers, of the published samplers and of their trainers. `None`: no equivalent here.
_OUR_NAMES = {
    "max_length": "max_new_tokens={value} - prompt_length",
    "min_length": "min_new_tokens={value} - prompt_length",
    **dict.fromkeys(("gen_length", "max_tokens"), "max_new_tokens"),
    "block_size": "block_length",
    **dict.fromkeys(("steps", "diffusion_steps"), "denoising_steps"),
    "threshold": "confidence_threshold` or `entropy_threshold",
    "factor": "confidence_factor",
    "eb_threshold": "entropy_budget",
    "sampler_config": "entropy_bound",
    **dict.fromkeys(("alg", "remasking", "remasking_strategy"), "denoising_steps` or another commit rule"),
    **dict.fromkeys(("minimal_topk", "num_to_transfer"), "min_commits"),
    "dual_cache": "cache_implementation",
    "mask_id": "mask_token_id",
    **dict.fromkeys(("eos_id", "stopping_criteria_idx"), "eos_token_id"),
    "eos_early_stop": "stop_at_eos",
    "adapter_names": "model.set_adapter(...)` and a call of `generate",
    **dict.fromkeys(("cfg_scale", "alg_temp", "output_history")),
    "model_path": "model_name_or_path",
    "use_lora": "use_peft",
    **dict.fromkeys(("train_path", "dataset_args"), "dataset_name"),
    "lora": "use_peft",
    "r": "lora_r",
    **dict.fromkeys(("entropy_weight", "confidence_beta"), "certainty_weight"),
    **dict.fromkeys(("t", "noise_range_low", "noise_range_high"), "mask_ratio"),
    "temperature": "certainty_temperature",
    "noisy_batch_rev": "complementary_masking",
    **dict.fromkeys(("max_seq_len", "max_seq_length"), "max_length"),
    "lr": "learning_rate",
    **dict.fromkeys(("warmup_ratio", "lr_warmup_ratio"), "warmup_steps"),
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
}
# The group of the rules that commit as many tokens as fit, which several blocks at once and revision need.
THRESHOLD = "threshold"
# No setting makes sense above it, and neither arithmetic in float32 nor memory is safe there.
_LARGEST = 1_000_000


class SettingError(ValueError):
    """A setting that cannot have its value, by itself or beside others.

    Args:
        setting (`str`): its name.
        value (`Any`): the value.
        rule (`str`): the rule that it breaks, as the end of a sentence about the setting: "must be ...", "needs ...".
        remedy (`str`, *optional*): what to do instead, in sentences.
    """

    def __init__(self, setting: str, value: Any, rule: str, remedy: str = ""):
        self.setting, self.value, self.rule, self.remedy = setting, value, rule, remedy
        shown = _shortened(value)
        text = f"`{setting}` {rule}, got {shown}." if rule.startswith("must ") else f"`{setting}={shown}` {rule}."
        super().__init__(f"{text} {remedy[:1].upper()}{remedy[1:]}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes hand errors to one another by pickle.
        return type(self), (self.setting, self.value, self.rule, self.remedy)


@dataclass(frozen=True)
class Setting:
    """One setting of decoding. Unset is `None`, everywhere.

    Args:
        name (`str`): its name.
        kind (`str`): one of `KINDS`.
        type (`type`): `int`, `float`, `bool` or `str`; `list` for token ids or texts, one or several, and `object` for
            values of another class, which `items` names.
        help (`str`): what it does, in one or two sentences.
        default (`Any`, *optional*): the value if nobody sets it.
        off (`Any`, *optional*): the value at which it does nothing; also the default, unless `default` is given.
        minimum, maximum (`float`, *optional*): the range of a number.
        above_minimum (`bool`): whether the minimum itself is not allowed.
        noun (`str`): what a value is, for messages.
        items (`type` or `str`): the type of the items of a `list`; `list` for lists of one token id.
        choices (`tuple`): the allowed values of a `str`.
        source (`str`): link to the paper it is from.
        is_swept (`bool`): whether it trades accuracy for speed, so that several values of it are worth comparing.
        counts_as (`tuple`): groups that it belongs to, which others may need or exclude.
        needs, not_with (`tuple`): the settings or groups that it requires, and those that it contradicts.
        model (`dict`): abilities that the model must have ([`~compatibility.ABILITIES`]), each with the error
            otherwise, as the end of a sentence about the setting. `{model}` is the name of its class, `{longest}` the
            longest sequence that it was trained for.
        schedule_of (`str`): for a commit rule that spreads tokens over passes, the setting with their number. If no
            rule is set, this rule gets the same value, for one token in each pass.
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
    counts_as: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    not_with: tuple[str, ...] = ()
    model: dict[str, str] = field(default_factory=dict)
    schedule_of: str = ""

    def is_on(self, value: Any) -> bool:
        """Returns whether the setting does something at this value."""
        return value not in (None, self.off)

    @property
    def changes_answer(self) -> bool:
        """Returns whether another value can change the tokens of an answer, or its passes."""
        return self.kind not in ("output", "tokens", "compile")

    @property
    def has_flag(self) -> bool:
        """Returns whether commands have a flag for the setting."""
        return self.changes_answer and self.type in (int, float, bool, str)

    @property
    def is_requestable(self) -> bool:
        """Returns whether a request to the server may set it."""
        return self.has_flag and self.kind != "stopping" or self.name == "stop_at_eos"

    @property
    def rule(self) -> str:
        """Returns the allowed values, for messages, as the end of a sentence after "must be"."""
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
    def way_without(self) -> str:
        """Returns how to turn the setting off, for messages: by a value if there is one, since a recipe may set it."""
        return f"set `{self.name}={self.off!r}`" if self.off is not None else f"leave `{self.name}` out"

    def read(self, value: Any) -> Any:
        """Returns a value as a type of Python, or raises a [`SettingError`] if it is not allowed."""
        if value is None:
            return None
        # Scalars and arrays of numpy and torch become numbers and lists.
        value = _as_python(value)
        if not self._allows(value):
            limit = f" (and at most {_LARGEST:,})" if self.maximum == _LARGEST and self.type in (int, float) else ""
            raise SettingError(self.name, value, f"must be {self.rule}{limit}")
        if self.default == [] and not isinstance(value, list):
            return [value] if value != "" else []
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
            return all(map(self._allows_item, value if isinstance(value, list | tuple) else [value]))
        if self.type is object:
            return self.items in {one.__name__ for one in type(value).__mro__}
        return isinstance(value, self.type)

    def _allows_item(self, item: Any) -> bool:
        if self.items is list:
            return isinstance(item, list) and [type(token) for token in item] == [int]
        return isinstance(item, self.items) and not isinstance(item, bool)


class Config(Protocol):
    """A resolved configuration, as checks and commit rules read it. Every setting is an attribute."""

    max_new_tokens: int
    min_new_tokens: int
    block_length: int
    block_origin: str
    max_active_blocks: int
    min_commits: int
    denoising_steps: int
    commit_order: str
    suppress_tokens: list[int]
    is_infilling: bool

    def is_on(self, name: str) -> bool:
        """Returns whether a setting is set, to a value that does something."""

    def commit_rule(self) -> str | None:
        """Returns the name of the commit rule that is set."""


SETTINGS: dict[str, Setting] = {}


def add_setting(name: str, kind: str, type: type, help: str, **fields: Any) -> None:
    """Adds a [`Setting`] to the table, or replaces the one of its name."""
    fields.setdefault("default", fields.get("off"))
    SETTINGS[name] = Setting(name, kind, type, help, **fields)


def settings_of(*kinds: str) -> tuple[str, ...]:
    """Returns the names of the settings of these kinds."""
    return tuple(name for name, setting in SETTINGS.items() if setting.kind in kinds)


def settings_called(name: str) -> tuple[str, ...]:
    """Returns the settings that a name in `needs` or `not_with` stands for: the setting itself, or a group."""
    return (name,) if name in SETTINGS else tuple(one for one in SETTINGS if name in SETTINGS[one].counts_as)


def what_is_meant(name: str, known: Collection[str] = ()) -> str:
    """Returns a hint at the `known` name (by default, of a setting) that an unknown one means, or an empty text."""
    ours = re.match(r"\w+", _OUR_NAMES.get(name) or "")
    if name in _OUR_NAMES and (not known or ours is None or ours[0] in known):
        return name_of_ours(name, name)
    close = get_close_matches(name, known or SETTINGS, n=1)
    return f"Did you mean `{close[0]}`?" if close else ""


def name_of_ours(name: str, value: Any) -> str:
    """Returns a sentence that names the setting to use instead of one that decoding does not have."""
    ours = _OUR_NAMES.get(name)
    return f"Use `{ours.format(value=value)}` for `{name}`." if ours else f"Remove `{name}`."


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


# A setting per row: its type and values, its relations to others, its help.
# fmt: off
add_setting("max_new_tokens", "length", int, default=256, off=0,
    help="Length of the canvas, the mask tokens after the prompt. 0 appends none: the mask tokens inside the prompt "
    "are filled in (infilling).")
add_setting("block_length", "length", int, default=32, minimum=1, is_swept=True,
    model={"has_room": "is more than the {longest} tokens that {model} was trained for, which decodes whole blocks",
           "takes_blocks": "is not that of {model}, which counts blocks by itself or chooses experts for them"},
    help="Tokens of a block; blocks are decoded from left to right. The last one may be shorter. "
    "Block-causal models have a default of their own.")
add_setting("block_origin", "length", str, off="sequence", choices=("sequence", "answer"),
    model={"has_blocks": "is for models whose attention has blocks: in {model} they follow the prompt anyway",
           "moves_blocks": "would move the blocks that {model} counts by itself or chooses experts for"},
    help="Where block-causal models count blocks from: the first token of the prompt, or of the answer (`\"answer\"`: "
    "a block then ends where the prompt ends, and the first one of the prompt may be shorter).")
add_setting("min_commits", "rule options", int, off=1, minimum=1, is_swept=True,
    help="With any rule: at least this many tokens in each pass, the most confident ones.")
add_setting("max_active_blocks", "blocks", int, off=1, minimum=1, is_swept=True,
    needs=(THRESHOLD,), source="https://huggingface.co/papers/2601.07568",
    model={"has_open_past": "opens a block after one that is not decided, which {model} does not see"},
    help="How many blocks may be decided at the same time. Above 1, the next block opens before the last open one is "
    "decided; this needs a commit rule with a threshold.")
add_setting("block_add_threshold", "blocks", float, default=0.5, noun="a fraction", above_minimum=True, maximum=1,
    is_swept=True,
    help="Fraction of the last open block to decide before the next one opens. At most one opens in a pass.")
add_setting("temperature", "sampling", float, off=0.0, is_swept=True,
    help="0 takes the likeliest token; above 0, tokens are sampled. Certainty is always measured at temperature 1.")
add_setting("do_sample", "sampling", bool, off=False,
    help="`False` is a temperature of 0; `True` without a temperature is a temperature of 1.")
add_setting("top_k", "sampling", int, off=0, help="Sample only among this many likeliest tokens; 0 means all.")
add_setting("top_p", "sampling", float, off=1.0, noun="a probability", above_minimum=True, maximum=1,
    help="Sample only among the likeliest tokens that together have this probability.")
add_setting("repetition_penalty", "processing", float, off=1.0, minimum=0.01, maximum=100,
    help="Lowers the scores of tokens that the row already has, prompt included. 1 changes nothing.")
add_setting("min_new_tokens", "processing", int, off=0, needs=("max_new_tokens",),
    help="No answer ends before it has this many tokens.")
add_setting("suppress_tokens", "processing", list, off=[], noun="a list of token ids",
    help="Tokens that are never committed.")
add_setting("bad_words_ids", "processing", list, off=[], items=list,
    noun="a list of lists of one token id each (a word of several tokens cannot be kept out)",
    help="Words that are never committed, each a list of one token id. A word of several tokens is refused: tokens "
    "are committed in any order, so such a word can come together in a single pass.")
add_setting("use_cache", "cache", bool, default=False, off=True,
    help="An explicit `False` turns off the caches and the suffix window of recipe and model. `True` changes nothing.")
add_setting("cache_implementation", "cache", str, choices=("prefix", "dual", "block"),
    source="https://huggingface.co/papers/2505.22618",
    model={"takes_cache": "needs a model of this package (see `hf-dparallel models`), which {model} is not",
           "fits_attention": "is not for the attention of {model}: \"block\" is for block-causal models and exact, "
           "\"prefix\" and \"dual\" approximate for all others",
           "keeps_activations": "needs `model.eval()`: in training, activation checkpointing drops keys and "
           "values"},
    help="Keep keys and values: `\"prefix\"` before the open block, `\"dual\"` also after it, both approximate; "
    "`\"block\"`, the default of block-causal models, is exact. Unset: every pass computes the whole sequence.")
add_setting("cache_refresh_interval", "cache", int, minimum=1, is_swept=True, needs=("cache_implementation",),
    model={"sees_all": "refreshes an approximation, but the cache of {model} is exact"},
    help="With a cache: recompute everything for each new block, and again after this many passes in it. 1 is exact.")
add_setting("suffix_length", "cache", int, is_swept=True, not_with=("compile_config",),
    source="https://huggingface.co/papers/2508.14148",
    model={"sees_all": "leaves out masks after the open blocks, but {model} computes none of them anyway",
           "hides_padding": "hides masks of some rows, by an attention mask that {model} ignores"},
    help="Masks after the open blocks that a pass computes and sees; by default all. Fewer are faster, and an "
    "approximation.")
add_setting("stop_at_eos", "stopping", bool, default=True,
    help="Whether a row ends once an end token and everything before it are decided. The rest is padding.")
add_setting("stop_strings", "stopping", list, off=[], noun="a string or a list of strings", items=str,
    needs=("max_new_tokens",),
    help="A row ends with the first of these strings. Needs `tokenizer=` in `generate`.")
add_setting("num_return_sequences", "output", int, off=1, minimum=1, needs=("temperature",),
    help="Answers to each prompt, next to one another. Needs sampling: without it all of them are equal.")
add_setting("output_certainty", "output", bool, off=False,
    help="Whether to return entropy, confidence and candidates of every masked token at every pass. Runs the head on "
    "the whole canvas, which is slower.")
add_setting("return_dict_in_generate", "output", bool, off=False,
    help="Whether to return a `DiffusionGenerationOutput` instead of the sequences only.")
add_setting("mask_token_id", "tokens", int, noun="a token id (an integer)",
    model={"has_mask_token": "is not for {model}, whose noise is random tokens"},
    help="The mask token; by default the model's, then the tokenizer's.")
add_setting("eos_token_id", "tokens", list, noun="a token id or a list of token ids",
    help="The token, or list of tokens, that ends an answer.")
add_setting("pad_token_id", "tokens", int, noun="a token id (an integer)",
    help="The token after the end of an answer.")
add_setting("bos_token_id", "tokens", int, noun="a token id (an integer)",
    help="Only a record: decoding does not use it.")
add_setting("compile_config", "compile", object, noun="a transformers.CompileConfig", items="CompileConfig",
    model={"is_native": "compiles forward passes of this package, and {model} has one of its own"},
    help="A `transformers.CompileConfig`: runs the forward pass through `torch.compile`. Prompts are then padded to "
    "multiples of 64 columns and batches to powers of two, so that few shapes are compiled.")
add_setting("disable_compile", "compile", bool, help="Ignores `compile_config`.")
# fmt: on
