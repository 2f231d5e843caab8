# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The settings of decoding: one table, from which the configuration, the commands, the server and the docs follow.

Each commit rule adds its own row. This module imports neither torch nor transformers.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args, get_origin


# The groups of settings, in the order in which settings are listed.
GROUPS = {
    "length": "Canvas",
    "rule": "Commit rules, at most one of them",
    "rule options": "Options of commit rules",
    "blocks": "Several blocks at once",
    "revision": "Revision of decided tokens of the open block, at most one way",
    "sampling": "Sampling",
    "processing": "Tokens that are kept out",
    "cache": "Caches, and the suffix window",
    "stopping": "The end of an answer",
    "chat": "The chat template",
    "output": "Output",
    "tokens": "Special tokens",
    "compile": "Compilation",
}
# Our settings for those of transformers and of the published samplers. `None`: no equivalent here.
OUR_NAMES: dict[str, str | None] = {
    **dict.fromkeys(("max_length", "gen_length", "max_tokens"), "max_new_tokens"),
    "min_length": "min_new_tokens",
    "block_size": "block_length",
    **dict.fromkeys(("steps", "diffusion_steps", "alg", "remasking", "remasking_strategy"), "denoising_steps"),
    "threshold": "confidence_threshold or entropy_threshold",
    "dynamic_threshold": "confidence_threshold",
    "factor": "confidence_factor",
    "eb_threshold": "entropy_budget",
    **dict.fromkeys(("minimal_topk", "num_to_transfer"), "min_commits"),
    **dict.fromkeys(("use_cache", "dual_cache"), "cache_implementation"),
    "do_sample": "temperature",
    "mask_id": "mask_token_id",
    **dict.fromkeys(("eos_id", "stopping_criteria_idx"), "eos_token_id"),
    "eos_early_stop": "stop_at_eos",
    **dict.fromkeys(("cfg_scale", "alg_temp", "output_history")),
}
# No setting makes sense above it, and neither arithmetic in float32 nor memory is safe there.
_LARGEST = 1_000_000


class SettingError(ValueError):
    """A setting that cannot have its value, by itself or beside others.

    Args:
        setting (`str`), value (`Any`): its name and value.
        rule (`str`): the rule that it breaks, as the end of a sentence about the setting: "must be ...", "needs ...".
        remedy (`str`, *optional*): what to do instead, in sentences.
    """

    def __init__(self, setting: str, value: Any, *, rule: str, remedy: str = ""):
        self.setting = setting
        self.value = value
        self.rule = rule
        self.remedy = remedy

        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:80] + "..."

        text = f"`{setting}={shown}` {rule}."
        if rule.startswith("must "):
            text = f"`{setting}` {rule}, got {shown}."
        super().__init__(f"{text} {remedy[:1].upper()}{remedy[1:]}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes hand errors to one another by pickle.
        make = partial(type(self), rule=self.rule, remedy=self.remedy)
        return make, (self.setting, self.value)


@dataclass(frozen=True)
class Setting:
    """One setting of decoding. Unset is `None`, everywhere.

    Args:
        name, help (`str`): its name, and one or two sentences.
        group (`str`): one of `GROUPS`.
        type (`type`): `int`, `float`, `bool`, `str`, `dict`, which may be given as JSON, `list[int]`, `list[str]` or
            `list[list[int]]`, or `object`.
        default (`Any`, *optional*): the value if nobody sets it.
        minimum, maximum (`float`, *optional*): the range of a number.
        above_minimum (`bool`): whether the minimum itself is not allowed.
        choices (`tuple`): the allowed values of a `str`.
        noun (`str`): the name of a value, for messages.
        source (`str`): link to the paper it is from.
    """

    name: str
    group: str
    type: Any
    help: str
    default: Any = None
    minimum: float = 0
    maximum: float = _LARGEST
    above_minimum: bool = False
    choices: tuple[str, ...] = ()
    noun: str = ""
    source: str = ""

    @property
    def changes_answer(self) -> bool:
        """Returns whether another value can change the tokens of an answer, or its passes."""
        return self.group not in ("output", "tokens", "compile")

    @property
    def has_flag(self) -> bool:
        """Returns whether commands have a flag for the setting, and requests to the server a field."""
        return self.changes_answer and self.type in (int, float, bool, str)

    @property
    def rule(self) -> str:
        """Returns the allowed values, for messages, as the end of a sentence after "must be"."""
        if self.choices:
            return f"one of {self.choices}"
        if self.type not in (int, float):
            return self.noun or "True or False"

        upper = "" if self.maximum == _LARGEST else f" up to {self.maximum:,g}"
        if self.type is int and not self.noun:
            return "a positive integer" + upper if self.minimum == 1 else "0 or a positive integer" + upper

        lower = "above" if self.above_minimum else "of at least"
        text = f"{self.noun or 'a number'} {lower} {self.minimum:g}"
        if upper:
            text += f" and{upper}"
        return text

    def read(self, value: Any) -> Any:
        """Returns a value as a type of Python, or raises a [`SettingError`] if it is not allowed."""
        if value is None:
            return None

        # Scalars and arrays of numpy and torch become numbers and lists.
        value = _as_python(value)
        if self.type is dict and isinstance(value, str):
            with suppress(ValueError):
                value = json.loads(value)

        if not self._allows(value):
            has_no_limit = self.maximum == _LARGEST and self.type in (int, float)
            limit = f" (and at most {_LARGEST:,})" if has_no_limit else ""
            raise SettingError(self.name, value, rule=f"must be {self.rule}{limit}")

        if self.default == [] and value == "":
            return []
        if self.default == [] and not isinstance(value, list):
            return [value]
        if self.type is float:
            return float(value)
        return value

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return isinstance(value, str) and value in self.choices

        if self.type in (int, float):
            # Also no infinity and no NaN: neither arithmetic in float32 nor memory would be safe.
            is_number = isinstance(value, (int, self.type)) and not isinstance(value, bool)
            in_range = is_number and self.minimum <= value <= self.maximum
            return in_range and not (self.above_minimum and value == self.minimum)

        if get_origin(self.type) is list:
            (item_type,) = get_args(self.type)
            items = value if isinstance(value, list) else [value]
            return all(_allows_item(item, item_type) for item in items)

        return isinstance(value, self.type)


def settings_of(*groups: str) -> tuple[str, ...]:
    """Returns the names of the settings of these groups."""
    return tuple(name for name, setting in SETTINGS.items() if setting.group in groups)


def suggest(name: str, known: Collection[str] = ()) -> str:
    """Returns a hint at the `known` name (by default, of a setting) that an unknown one means, or an empty text."""
    known = known or SETTINGS
    ours = OUR_NAMES.get(name, "")
    if ours is None:
        return f"Remove `{name}`."
    if ours.split(" or ")[0] in known:
        return f"Use `{ours.replace(' or ', '` or `')}` for `{name}`."

    close = get_close_matches(name, known, n=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    return ""


def _allows_item(item: Any, type_: Any) -> bool:
    if type_ == list[int]:  # a word of one token
        return isinstance(item, list) and [type(token) for token in item] == [int]
    return isinstance(item, type_) and not isinstance(item, bool)


def _as_python(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_python(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


# fmt: off
_ROWS = (
    Setting("max_new_tokens", "length", int, default=256,
        help="Length of the canvas, the mask tokens after the prompt. 0 appends none: the mask tokens inside the "
        "prompt are filled in (infilling)."),
    Setting("block_length", "length", int, default=32, minimum=1,
        help="Tokens of a block; blocks are decoded from left to right. The last one may be shorter. "
        "Block-causal models have a default of their own."),
    Setting("block_origin", "length", str, default="sequence", choices=("sequence", "answer"),
        help="Where block-causal models count blocks from: the first token of the prompt, or of the answer."),
    Setting("min_commits", "rule options", int, default=1, minimum=1,
        help="With any rule: at least this many tokens in each pass, the most confident ones."),
    Setting("commit_order", "rule options", str, default="confidence", choices=("confidence", "left_to_right"),
        help='With `denoising_steps`: the most confident tokens first, or the first ones (`"left_to_right"`).'),
    Setting("exact", "rule options", bool, default=False,
        source="https://huggingface.co/papers/2507.11851",
        help="For models with a causal past: masks after the row only propose tokens, and the causal logits of the "
        "same pass verify them, so that the answer is the one of the autoregressive model, token for token. `True` by "
        "default for converted autoregressive models, for which `False` commits proposals unverified, at least one a "
        "pass."),
    Setting("max_active_blocks", "blocks", int, default=1, minimum=1,
        source="https://huggingface.co/papers/2601.07568",
        help="How many blocks may be decided at the same time. Above 1 needs a commit rule with a threshold."),
    Setting("block_add_threshold", "blocks", float, default=0.5, noun="a fraction", above_minimum=True, maximum=1,
        help="Fraction of the last open block to decide before the next one opens. At most one opens in a pass."),
    Setting("editing_threshold", "revision", float, default=1.0, noun="a probability", maximum=1,
        source="https://huggingface.co/papers/2602.08676",
        help="Editing, for models trained for it: replace decided tokens of the open block where the model predicts "
        "another with more than this probability. 1 replaces nothing. Needs a commit rule with a threshold."),
    Setting("max_post_steps", "revision", int, default=16, maximum=256,
        help="With `editing_threshold`: passes that look for edits after the last mask of a block is decided. The "
        "block is left earlier if a pass finds no edit."),
    Setting("revocation_threshold", "revision", float, default=0.0, noun="a probability", maximum=1,
        source="https://huggingface.co/papers/2507.18578",
        help="Verified commits: predict each decided token of the open block again from all others, and mask it "
        "where its probability is below this. Needs full attention, no cache, and a commit rule with a threshold, "
        "which may then be bolder."),
    Setting("temperature", "sampling", float, default=0.0,
        help="0 takes the likeliest token; above 0, tokens are sampled. Certainty is always measured at "
        "temperature 1."),
    Setting("top_k", "sampling", int, default=0, help="Sample only among this many likeliest tokens; 0 means all."),
    Setting("top_p", "sampling", float, default=1.0, noun="a probability", above_minimum=True, maximum=1,
        help="Sample only among the likeliest tokens that together have this probability."),
    Setting("min_p", "sampling", float, default=0.0, noun="a probability", maximum=1,
        help="Sample only among tokens of at least this fraction of the likeliest one's probability."),
    Setting("repetition_penalty", "processing", float, default=1.0, minimum=0.01, maximum=100,
        help="Lowers the scores of tokens that the row already has, prompt included. 1 changes nothing."),
    Setting("no_repeat_ngram_size", "processing", int, default=0,
        help="For exact decoding: no sequence of this many tokens comes twice, prompt included. 0 changes nothing."),
    Setting("min_new_tokens", "processing", int, default=0,
        help="No answer ends before it has this many tokens."),
    Setting("suppress_tokens", "processing", list[int], default=[], noun="a list of token ids",
        help="Tokens that are never committed."),
    Setting("bad_words_ids", "processing", list[list[int]], default=[],
        noun="a list of lists of one token id each (a word of several tokens cannot be kept out)",
        help="Words that are never committed, each a list of one token id; longer ones can form in a single pass."),
    Setting("cache_implementation", "cache", str, default="none", choices=("none", "prefix", "dual", "block"),
        source="https://huggingface.co/papers/2505.22618",
        help='Keep keys and values: `"prefix"` before the open block, `"dual"` also after it, both approximate; '
        '`"block"`, the default of block-causal models, is exact. With `"none"` every pass computes the whole '
        "sequence."),
    Setting("cache_refresh_interval", "cache", int, minimum=1,
        help="With a cache: recompute everything for each block, and after this many passes in it. 1 is exact."),
    Setting("suffix_length", "cache", int, source="https://huggingface.co/papers/2508.14148",
        help="Masks after the open blocks that a pass computes and sees; by default all. Fewer approximate."),
    Setting("stop_at_eos", "stopping", bool, default=True,
        help="Whether a row ends once an end token and everything before it are decided. The rest is padding."),
    Setting("stop_strings", "stopping", list[str], default=[], noun="a string or a list of strings",
        help="A row ends with the first of these strings. Needs `tokenizer=` in `generate`."),
    Setting("chat_template_kwargs", "chat", dict, noun='a dictionary such as {"enable_thinking": false}',
        help="Further arguments of the chat template, wherever a chat is rendered. Those that a model was trained "
        "with are part of its recipe."),
    Setting("thought_markers", "chat", list[str], default=[], noun="a list of two strings",
        help="What a thought begins and ends with. By default as in the chat template, such as `<think>` and "
        "`</think>`."),
    Setting("num_return_sequences", "output", int, default=1, minimum=1,
        help="Answers to each prompt, next to one another. Needs sampling: without it all of them are equal."),
    Setting("output_certainty", "output", bool, default=False,
        help="Whether to return entropy, confidence and candidates of every masked token at every pass (slower)."),
    Setting("return_dict_in_generate", "output", bool, default=False,
        help="Whether to return a `DiffusionGenerationOutput` instead of the sequences only."),
    Setting("mask_token_id", "tokens", int, noun="a token id (an integer)",
        help="The mask token; by default the model's, then the tokenizer's."),
    Setting("eos_token_id", "tokens", list[int], noun="a token id or a list of token ids",
        help="The token, or list of tokens, that ends an answer."),
    Setting("pad_token_id", "tokens", int, noun="a token id (an integer)",
        help="The token after the end of an answer."),
    Setting("bos_token_id", "tokens", int, noun="a token id (an integer)",
        help="Only a record: decoding does not use it."),
    Setting("compile_config", "compile", object, noun="a transformers.CompileConfig",
        help="A `transformers.CompileConfig`: runs passes through `torch.compile`, with every cache, in few shapes. "
        "The first prompts take longer."),
    Setting("disable_compile", "compile", bool, help="Ignores `compile_config`."),
)
# fmt: on
SETTINGS = {row.name: row for row in _ROWS}
