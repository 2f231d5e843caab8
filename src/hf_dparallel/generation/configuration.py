# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Every setting of diffusion decoding, its check and its message."""

from collections.abc import Iterable
from typing import Any

from transformers import CompileConfig, GenerationConfig
from transformers.utils import logging


logger = logging.get_logger(__name__)

COMMIT_RULES = (
    "denoising_steps",
    "confidence_threshold",
    "entropy_threshold",
    "entropy_bound",
    "confidence_factor",
)
CACHE_IMPLEMENTATIONS = (None, "prefix", "dual")

# Settings of `GenerationConfig` that mean the same here. All its others belong to left-to-right decoding.
_SHARED_SETTINGS = (
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "stop_strings",
    "return_dict_in_generate",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_OWN_SETTINGS: dict[str, Any] = {
    "block_length": None,
    "denoising_steps": None,
    "confidence_threshold": None,
    "entropy_threshold": None,
    "entropy_bound": None,
    "confidence_factor": None,
    "max_active_blocks": 1,
    "block_add_threshold": 0.5,
    "cache_refresh_interval": None,
    "stop_at_eos": True,
    "output_certainty": False,
    "mask_token_id": None,
    "calibration": None,
}
_SETTINGS = (*_SHARED_SETTINGS, *_OWN_SETTINGS)
# Settings under which a model decodes the same tokens in the same passes.
_WITHOUT_EFFECT = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "mask_token_id",
    "compile_config",
    "disable_compile",
    "return_dict_in_generate",
    "output_certainty",
)
# Values at which a setting of left-to-right decoding does nothing; callers that serve all models pass them.
_NEUTRAL = {
    name: value
    for name, value in GenerationConfig._get_default_generation_params().items()
    if name not in ("max_length", "use_cache")
}


class DiffusionGenerationConfig(GenerationConfig):
    r"""
    Settings of [`DiffusionGenerationMixin.generate`]. Saved as `generation_config.json` and read back from it, so
    that a checkpoint or adapter carries its decoding recipe.

    A setting left at `None` is taken from the model's `generation_config`, then from the default below.

    Args:
        max_new_tokens (`int`, *optional*, defaults to 256):
            Length of the canvas of mask tokens that is appended to the prompt. 0 appends none: the mask tokens inside
            the prompt are filled in, block by block (infilling).
        block_length (`int`, *optional*, defaults to 32):
            The canvas is decoded in blocks of this many tokens, from left to right. Must divide `max_new_tokens`;
            `block_length=max_new_tokens` decodes in any order.
        denoising_steps (`int`, *optional*):
            Commit rule 1: the most confident tokens are committed on a fixed schedule that takes this many forward
            passes for the whole canvas. Must be a multiple of the number of blocks. The default rule, with
            `denoising_steps=max_new_tokens`: one token per pass.
        confidence_threshold (`float`, *optional*):
            Commit rule 2: in each pass, commit the tokens of probability at least this, between 0 and 1
            ([Fast-dLLM](https://huggingface.co/papers/2505.22618)).
        entropy_threshold (`float`, *optional*):
            Commit rule 3: in each pass, commit the tokens whose predictive distribution has at most this entropy, in
            nats, over the full vocabulary ([dParallel](https://huggingface.co/papers/2509.26488)). At most one of the
            rules can be set. All commit at least the most certain token of each row in each pass.
        entropy_bound (`float`, *optional*):
            Commit rule 4: in each pass, commit the most certain tokens as long as the sum of their entropies, in
            nats, less the largest, is at most this ([EB-sampler](https://huggingface.co/papers/2505.24857)).
        confidence_factor (`float`, *optional*):
            Commit rule 5: in each pass, commit the `n` most confident tokens, the most for which `n + 1` times one
            minus the probability of the last is below this ([Fast-dLLM](https://huggingface.co/papers/2505.22618)).
        max_active_blocks (`int`, *optional*, defaults to 1):
            How many blocks may be decided at the same time. Above 1, a following block opens before the last one is
            decided ([d3LLM](https://huggingface.co/papers/2601.07568)). Needs a commit rule other than
            `denoising_steps`.
        block_add_threshold (`float`, *optional*, defaults to 0.5):
            The fraction of the last open block that must be decided for the following one to open, above 0 and up to
            1. At most one block opens in a pass.
        temperature (`float`, *optional*, defaults to 0):
            0 takes the likeliest token. Above 0, tokens are drawn from the distribution at this temperature;
            certainty is always measured at temperature 1.
        do_sample (`bool`, *optional*):
            `False` is `temperature=0`; `True` with no temperature is `temperature=1`.
        top_k (`int`, *optional*):
            Draw among the `top_k` likeliest tokens only.
        top_p (`float`, *optional*):
            Draw among the likeliest tokens that make up this probability only.
        cache_implementation (`str`, *optional*):
            `None`: every pass computes the whole sequence, exactly as the published sampler. `"prefix"`: keys and
            values of the prompt and of finished blocks are kept while a block is decided. `"dual"`: also those of all
            that follows the block, so that a pass computes the block only. Both are approximations
            ([Fast-dLLM](https://huggingface.co/papers/2505.22618)); all is computed anew when a row enters a block.
        cache_refresh_interval (`int`, *optional*):
            With a cache: passes after which all is computed anew inside a block, too. 1 is the exact path.
        compile_config ([`~transformers.CompileConfig`], *optional*):
            Runs the forward pass through `torch.compile` with these arguments. Prompts are then padded to multiples of
            64 columns and batches to powers of two, so that few shapes have to be compiled. Nothing else is compiled:
            a setting of the decoding never reaches into compiled code.
        disable_compile (`bool`, *optional*):
            Ignores `compile_config`.
        stop_at_eos (`bool`, *optional*, defaults to `True`):
            Whether a row is finished once an end-of-sequence token stands and everything before it is decided; the
            rest is filled with padding.
        stop_strings (`str` or `list[str]`, *optional*):
            A row is finished when its decided text ends with one of them. Needs `tokenizer=` in `generate`.
        output_certainty (`bool`, *optional*, defaults to `False`):
            Whether to return entropy, confidence and candidates of every masked token at every pass. Runs the head on
            the whole canvas, which is slower.
        return_dict_in_generate (`bool`, *optional*, defaults to `False`):
            Whether to return a [`DiffusionGenerationOutput`] instead of the sequences only.
        mask_token_id, eos_token_id, pad_token_id (`int`, *optional*):
            Special tokens, by default those of the model's config. `eos_token_id` may be a list.
        calibration (`dict`, *optional*):
            How `hf-dparallel calibrate` found the recipe. Only a record: it changes nothing, and is left out of a copy
            that decodes otherwise.

    Raises:
        ValueError: for a setting that is unknown, out of range, or has no meaning in diffusion decoding.

    ```python
    >>> from hf_dparallel import DiffusionGenerationConfig

    >>> recipe = DiffusionGenerationConfig(max_new_tokens=256, block_length=32, entropy_threshold=0.5)
    ```
    """

    def __init__(self, **kwargs):
        _check_known(kwargs)
        for name, default in _OWN_SETTINGS.items():
            setattr(self, name, kwargs.pop(name, default))
        super().__init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Reads a saved config. Settings that only another sampler knows are left out, and named in the log.

        Keyword arguments override what was saved; a commit rule among them replaces the saved one.
        """
        unused = sorted(
            name
            for name, value in config_dict.items()
            if value is not None and name not in _SETTINGS and name[0] != "_"
        )
        if unused:
            logger.info(f"Settings of another sampler are not used by diffusion decoding: {', '.join(unused)}.")
        replaced = COMMIT_RULES if any(name in kwargs for name in COMMIT_RULES) else ()
        saved = {name: value for name, value in config_dict.items() if name in _SETTINGS and name not in replaced}
        return super().from_dict(saved, **kwargs)

    @classmethod
    def from_generation_config(cls, config: GenerationConfig) -> "DiffusionGenerationConfig":
        """Reads a config object that a caller made; unlike in a file, an unknown setting in it is an error."""
        if isinstance(config, cls):
            config.validate()
            return config
        settings = {
            name: value
            for name, value in config.to_dict().items()
            if value is not None and name[0] != "_" and name != "transformers_version"
        }
        return cls(**settings)

    @classmethod
    def from_model_config(cls, model_config):
        # Caught by `PreTrainedModel`, which then makes an empty config: a model's config holds no decoding settings.
        raise NotImplementedError("A DiffusionGenerationConfig is not derived from a model's config.")

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        """Checks every setting that can be checked without the inputs.

        Raises:
            ValueError: naming the setting, its value, the rule and the remedy.
        """
        _check_known(vars(self))
        self._check_no_foreign_settings()
        self._check_types()
        rules = [f"{name}={getattr(self, name)}" for name in COMMIT_RULES if getattr(self, name) is not None]
        if len(rules) > 1:
            raise ValueError(f"At most one commit rule can be set, got {' and '.join(rules)}. Remove all but one.")
        for name in (
            "block_length",
            "denoising_steps",
            "top_k",
            "max_active_blocks",
            "cache_refresh_interval",
        ):
            _check(self, name, lambda value: isinstance(value, int) and value > 0, "a positive integer")
        _check(
            self,
            "max_new_tokens",
            lambda value: isinstance(value, int) and value >= 0,
            "a positive integer, or 0 to fill in the mask tokens of the prompt",
        )
        _check(self, "entropy_bound", lambda value: value >= 0, "at least 0 (nats)")
        _check(self, "confidence_factor", lambda value: value > 0, "above 0")
        _check(self, "block_add_threshold", lambda value: 0 < value <= 1, "a fraction above 0 and up to 1")
        _check(self, "entropy_threshold", lambda value: value >= 0, "at least 0 (nats)")
        _check(self, "confidence_threshold", lambda value: 0 < value <= 1, "a probability above 0 and up to 1")
        _check(self, "top_p", lambda value: 0 < value <= 1, "a probability above 0 and up to 1")
        _check(self, "temperature", lambda value: value >= 0, "at least 0 (0 takes the likeliest token)")
        if self.cache_implementation not in CACHE_IMPLEMENTATIONS:
            raise ValueError(
                f"`cache_implementation` must be one of {CACHE_IMPLEMENTATIONS}, got {self.cache_implementation!r}."
            )
        self._check_lengths()

    def commit_rule(self) -> str | None:
        """Returns the name of the commit rule that is set, or `None`."""
        return next((name for name in COMMIT_RULES if getattr(self, name) is not None), None)

    def updated(self, **settings) -> "DiffusionGenerationConfig":
        """Returns a copy with these settings, `None` meaning the default.

        A commit rule replaces the one there was, and so does a wish to draw (`do_sample=True`, `temperature` above 0)
        an earlier wish not to, or the reverse.
        """
        kept = {name: value for name, value in self.settings().items() if name not in settings}
        if not settings.keys() <= {"calibration", *_WITHOUT_EFFECT}:
            kept.pop("calibration", None)
        if any(settings.get(name) is not None for name in COMMIT_RULES):
            kept = {name: value for name, value in kept.items() if name not in COMMIT_RULES}
        if settings.get("temperature") and kept.get("do_sample") is False:
            del kept["do_sample"]
        if settings.get("temperature") == 0 and kept.get("do_sample"):
            del kept["do_sample"]
        if settings.get("do_sample") and kept.get("temperature") == 0:
            del kept["temperature"]
        return type(self)(**kept, **{name: value for name, value in settings.items() if value is not None})

    def one_token_per_pass(self) -> "DiffusionGenerationConfig":
        """Returns a copy that commits one token in each pass, the likeliest one, without a cache.

        That is what other recipes are compared with. `max_new_tokens` must be set.
        """
        kept = ("cache_implementation", "cache_refresh_interval", "max_active_blocks", "block_add_threshold")
        drawn = ("do_sample", "temperature", "top_k", "top_p")
        return self.updated(denoising_steps=self.max_new_tokens, **dict.fromkeys((*kept, *drawn)))

    def settings(self) -> dict[str, Any]:
        """Returns the settings that have a value other than the default."""
        values = {name: getattr(self, name) for name in _SETTINGS}
        return {
            name: value for name, value in values.items() if value is not None and value != _OWN_SETTINGS.get(name)
        }

    def with_defaults(self) -> "DiffusionGenerationConfig":
        """Returns a copy in which every setting that decoding needs has a value."""
        defaults: dict[str, Any] = {
            "max_new_tokens": 256,
            "block_length": 32,
            "return_dict_in_generate": False,
        }
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        if self.do_sample is False or self.temperature is None:
            missing["temperature"] = 1.0 if self.do_sample else 0.0
        config = self.updated(**missing)
        if config.temperature == 0 and (config.top_k is not None or config.top_p is not None):
            logger.warning_once(
                "`top_k` and `top_p` change nothing at temperature 0. Set `temperature` to draw tokens."
            )
        config._check_combinations()
        if config.commit_rule() or not config.max_new_tokens:
            return config
        return config.updated(denoising_steps=config.max_new_tokens)

    @property
    def steps_per_block(self) -> int:
        """Passes that the schedule of `denoising_steps` takes for a block; without a rule, one a token."""
        if self.denoising_steps is None:
            return self.block_length
        return self.denoising_steps * self.block_length // self.max_new_tokens

    @property
    def compiles(self) -> bool:
        """Whether the forward pass is compiled."""
        return self.compile_config is not None and not self.disable_compile

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end an answer."""
        if self.eos_token_id is None:
            return []
        return list(self.eos_token_id) if isinstance(self.eos_token_id, list | tuple) else [self.eos_token_id]

    @property
    def padding_token_id(self) -> int:
        """What is written after the end of an answer."""
        return self.pad_token_id if self.pad_token_id is not None else (self.eos_token_ids or [0])[0]

    def _check_combinations(self) -> None:
        """Checks settings that need one another, which only a resolved config has to have."""
        if self.cache_refresh_interval is not None and self.cache_implementation is None:
            raise ValueError(
                f"`cache_refresh_interval={self.cache_refresh_interval}` needs a cache. Set `cache_implementation` to "
                '"prefix" or "dual", or leave it out.'
            )
        if self.max_active_blocks > 1 and self.commit_rule() in (None, "denoising_steps"):
            raise ValueError(
                f"`max_active_blocks={self.max_active_blocks}` needs a commit rule with a threshold, got "
                f"{self.commit_rule()}. Set `entropy_threshold`, `confidence_threshold`, `entropy_bound` or "
                "`confidence_factor`."
            )
        if self.max_new_tokens == 0 and self.denoising_steps is not None:
            raise ValueError(
                f"`denoising_steps={self.denoising_steps}` spreads the new tokens over passes, and `max_new_tokens=0` "
                "appends none. Use a threshold, or no rule for one token per pass."
            )
        if self.max_new_tokens == 0 and self.stop_strings is not None:
            raise ValueError("`stop_strings` end an answer, and `max_new_tokens=0` has none to end. Leave them out.")

    def _check_no_foreign_settings(self) -> None:
        for name, value in vars(self).items():
            if name in _SETTINGS or name[0] == "_" or name == "transformers_version":
                continue
            if value is not None and value is not False and value != _NEUTRAL.get(name):
                raise ValueError(
                    f"`{name}={value!r}` has no meaning in diffusion decoding. Remove it. "
                    f"(Settings: {', '.join(_SETTINGS)}.)"
                )

    def _check_types(self) -> None:
        for name in ("stop_at_eos", "output_certainty", "do_sample", "return_dict_in_generate", "disable_compile"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}.")
        for name in ("mask_token_id", "pad_token_id"):
            if not isinstance(getattr(self, name), int | None):
                raise ValueError(f"`{name}` must be a token id (an integer), got {getattr(self, name)!r}.")
        eos = self.eos_token_id if isinstance(self.eos_token_id, list | tuple) else [self.eos_token_id]
        if not all(isinstance(token_id, int | None) for token_id in eos):
            raise ValueError(f"`eos_token_id` must be a token id or a list of them, got {self.eos_token_id!r}.")
        if not isinstance(self.calibration, dict | None):
            raise ValueError(f"`calibration` must be a dict, got {self.calibration!r}.")
        if not isinstance(self.compile_config, CompileConfig | None):
            raise ValueError(f"`compile_config` must be a transformers.CompileConfig, got {self.compile_config!r}.")
        if self.do_sample and self.temperature == 0:
            raise ValueError("`do_sample=True` draws tokens and `temperature=0` does not. Remove one of them.")

    def _check_lengths(self) -> None:
        if self.max_new_tokens is None or self.block_length is None:
            return
        if self.max_new_tokens % self.block_length:
            shorter = self.max_new_tokens // self.block_length * self.block_length
            remedy = f"max_new_tokens={shorter or self.block_length}"
            divisor = max(
                d for d in range(1, min(self.block_length, self.max_new_tokens) + 1) if self.max_new_tokens % d == 0
            )
            raise ValueError(
                f"`block_length` must divide `max_new_tokens`, got block_length={self.block_length} and "
                f"max_new_tokens={self.max_new_tokens}. Use block_length={divisor} or {remedy}."
            )
        num_blocks = self.max_new_tokens // self.block_length
        if (
            self.max_new_tokens
            and self.denoising_steps is not None
            and (self.denoising_steps % num_blocks or self.denoising_steps > self.max_new_tokens)
        ):
            raise ValueError(
                f"`denoising_steps` must be a multiple of the number of blocks and at most `max_new_tokens`, got "
                f"denoising_steps={self.denoising_steps} with {num_blocks} blocks (max_new_tokens="
                f"{self.max_new_tokens}, block_length={self.block_length}). Use denoising_steps="
                f"{min(max(self.denoising_steps // num_blocks, 1) * num_blocks, self.max_new_tokens)}."
            )


def _check_known(settings: Iterable[str]) -> None:
    known = {*_SETTINGS, *vars(GenerationConfig())}
    unknown = sorted(name for name in settings if name not in known and name[0] != "_")
    if unknown:
        raise ValueError(
            f"Unknown generation setting(s): {', '.join(unknown)}. Diffusion decoding knows {', '.join(_SETTINGS)}."
        )


def _check(config: DiffusionGenerationConfig, name: str, is_valid, rule: str) -> None:
    value = getattr(config, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_valid(value):
        raise ValueError(f"`{name}` must be {rule}, got {value!r}.")
