# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`model.generate` for masked diffusion language models: semi-autoregressive decoding with several tokens a pass."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from hf_dparallel_rules.settings import SettingError, settings_of

from .adapters import check_virtual_tokens
from .compatibility import check, drops_keys
from .configuration import DiffusionGenerationConfig, resolve
from .decoder import Decoder
from .hooks.base import DecodingHook
from .hooks.standard import make_hooks
from .inputs import check_prompts, generators_by_row
from .output import DecodedRow, DiffusionGenerationOutput, collect_rows
from .slots import SlotDecoder


# Arguments of `from_pretrained` that say where a file is.
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


class DiffusionGenerationMixin(GenerationMixin):
    """Gives [`generate`] to a masked language model whose `logits[:, i]` score token `i`."""

    generation_config_class = DiffusionGenerationConfig
    # Whether the class is one of this package: it decodes without `enable_diffusion_generation`, and its forward pass
    # takes a [`CanvasCache`], masks of four dimensions and static shapes to compile.
    is_native = False
    # Whether a mask of four dimensions decides for each position which others it sees.
    takes_visibility = False
    # Whether a mask of two dimensions hides padding, so that rows of several lengths are decoded together.
    hides_padding = True
    # "full"; "block_causal": bidirectional inside the blocks of `config.block_length`, and causal across them; or
    # "causal_past": causal except for the open block, which sees the past and itself.
    attention = "full"

    @property
    def is_autoregressive(self) -> bool:
        """Returns whether causal logits are those of an autoregressive model, token by token."""
        return False

    @property
    def predicts_next_block(self) -> bool:
        """Returns whether the last token of a block predicts the first of the next (shifted block-causal models)."""
        return self.attention != "full" and self.shift_logits

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.LongTensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        streamer: BaseStreamer | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        *,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.LongTensor | None = None,
        **kwargs,
    ) -> torch.LongTensor | DiffusionGenerationOutput:
        r"""
        Decodes `max_new_tokens` tokens after each prompt, several in a forward pass.

        A canvas of mask tokens is appended to each prompt and decoded block by block. A pass predicts the masked
        tokens of each row's open block; the commit rule picks the predictions that are written, at least one in each
        row. A row whose block is decided enters its next block, and a row whose answer has ended leaves.

        Rows are independent: in exact arithmetic a row gives the tokens that it gives alone, whatever else is in the
        batch. (In half precision, sums round differently in batches of another size, which can turn near ties.)

        Args:
            inputs, input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`):
                The prompts, left-padded to one length. Give one of the two.
            generation_config ([`DiffusionGenerationConfig`], *optional*):
                Settings, which take precedence over `model.generation_config`.
            logits_processor (`LogitsProcessorList`, *optional*):
                Applied to the logits of every position of the block, with the row's whole sequence as `input_ids`.
            stopping_criteria (`StoppingCriteriaList`, *optional*):
                Called for each newly decided token with the row's decided sequence, as in left-to-right decoding;
                the answer ends with the first token for which one holds. The keyword argument `answer_start` is the
                column at which the answer begins.
            streamer (`BaseStreamer`, *optional*):
                Gets the decided tokens from left to right; if it has `put_draft`
                ([`~transformers.TextDiffusionStreamer`]) also the current guess of the rest of the block. One prompt
                only.
            tokenizer (`PreTrainedTokenizerBase`, *optional*):
                Needed for `stop_strings`; also a source of special tokens that neither config names.
            generator (`torch.Generator` or a list of them, *optional*):
                Random state for `temperature > 0`, on the device of the model. One per row makes the
                samples independent of the batch; `None` uses torch's global state (`transformers.set_seed`).
            attention_mask (`torch.LongTensor` of shape `(batch_size, prompt_length)`, *optional*):
                0 for padding. Needed for prompts of different lengths.
            kwargs:
                Settings of [`DiffusionGenerationConfig`], which take precedence over `generation_config`.

        Returns:
            `torch.LongTensor` of shape `(batch_size, prompt_length + max_new_tokens)`, or a
            [`DiffusionGenerationOutput`] with `return_dict_in_generate=True`. With `num_return_sequences`, that many
            rows for each prompt.

        Raises:
            ValueError: for an invalid argument or setting, or prompts that cannot be decoded.
            FloatingPointError: if the model's logits are NaN.

        Example:

        ```python
        >>> out = model.generate(**inputs, max_new_tokens=256, entropy_threshold=0.5, return_dict_in_generate=True)
        >>> tokenizer.batch_decode(out.sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        ```
        """
        # 1. Check the settings and the prompts, and append a canvas of mask tokens to each prompt.
        # While a `PeftModel` runs this method, its own one that prepares inputs stands in the place of ours.
        peft_model = getattr(self.prepare_inputs_for_generation, "__self__", None)
        check_virtual_tokens(getattr(peft_model, "active_peft_config", None))

        for name in settings_of("chat"):
            if kwargs.get(name):
                raise SettingError(
                    name,
                    kwargs[name],
                    rule="is for chats, and `generate` takes tokens",
                    remedy="Pass it to `tokenizer.apply_chat_template`.",
                )
        if inputs is not None and input_ids is not None:
            raise ValueError("`inputs` and `input_ids` are the same argument, got both. Pass one of them.")

        token_type_ids = kwargs.pop("token_type_ids", None)
        # Tokenizers like BERT's return it. Models assume zeros anyway.
        if token_type_ids is not None and token_type_ids.any():
            raise ValueError("`token_type_ids` must be all 0: a prompt is one segment. Leave it out.")

        config = resolve(self, generation_config, tokenizer, **kwargs)
        if config.output_certainty and not config.return_dict_in_generate:
            raise SettingError(
                "output_certainty",
                True,
                rule="needs `return_dict_in_generate=True`, to return the certainty in",
                remedy="Set both, or leave `output_certainty` out.",
            )

        prompt_ids: Any = input_ids if inputs is None else inputs
        prompts = check_prompts(prompt_ids, attention_mask, config, self)
        prompts = [prompt for prompt in prompts for _ in range(config.num_return_sequences)]
        hooks = make_hooks(config, logits_processor, stopping_criteria, streamer, tokenizer)
        decoder = self.make_decoder(config, hooks, generators_by_row(generator, len(prompts)))
        decoder.add_prompts(dict(enumerate(prompts)))

        # 2. While there are unfinished rows: one pass.
        rows: dict[int, DecodedRow] = {}
        while decoder:
            for row in decoder.step():
                if row.error is not None:
                    raise row.error
                rows[row.index] = row
        if streamer is not None:
            streamer.end()

        # 3. Put the rows together again.
        prompt_ids = prompt_ids.to(prompts[0]).repeat_interleave(config.num_return_sequences, dim=0)
        return collect_rows([rows[index] for index in sorted(rows)], prompt_ids, config)

    def generate_many(
        self,
        prompts: Iterable[Sequence[int] | torch.Tensor],
        generation_config: GenerationConfig | None = None,
        batch_size: int = 16,
        *,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        generator_for: Callable[[int], torch.Generator] | None = None,
        **kwargs,
    ) -> SlotDecoder:
        r"""
        Decodes any number of prompts, `batch_size` at a time. When one is finished, the next one takes its place.

        Faster than [`generate`] in batches where the answers take different numbers of passes: no row waits for
        another. Prompts of similar length next to one another need the least padding.

        (A `PeftModel` with virtual tokens, which decoding does not support, hands this method to its base model
        without them. [`generate`] refuses such a model.)

        Args:
            prompts (`Iterable`):
                Token ids of each prompt, a list or a one-dimensional tensor, without padding. Read as needed.
            generation_config, kwargs ([`DiffusionGenerationConfig`], *optional*):
                Settings, as in [`generate`].
            batch_size (`int`, *optional*, defaults to 16):
                Prompts decoded together. Does not change the answers (up to the rounding of sums in batches).
            logits_processor, stopping_criteria, tokenizer:
                As in [`generate`].
            generator_for (`Callable`, *optional*):
                Gives the random state of a prompt, by its number, on the device of the model. By default torch's
                global state is used, and draws depend on the batch.

        Returns:
            [`SlotDecoder`]: an iterator over one [`DecodedRow`] for each prompt, in their order. Its method
            `as_completed` gives them as they are finished.

        Raises:
            ValueError: at once for an invalid setting, and for an invalid prompt at its turn; iteration can go on.
            FloatingPointError: if the model's logits are NaN, at the turn of the prompt.

        Example:

        ```python
        >>> for row in model.generate_many(tokenizer(texts)["input_ids"], batch_size=32, entropy_threshold=0.5):
        ...     print(tokenizer.decode(row.tokens, skip_special_tokens=True), row.nfe)
        ```
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise SettingError("batch_size", batch_size, rule="must be a positive integer")

        config = resolve(self, generation_config, tokenizer, **kwargs)
        if config.num_return_sequences > 1:
            raise SettingError(
                "num_return_sequences",
                config.num_return_sequences,
                rule="is for `generate`: here each prompt has one row",
                remedy="Repeat a prompt instead.",
            )

        hooks = make_hooks(config, logits_processor, stopping_criteria, tokenizer=tokenizer)
        decoder = self.make_decoder(config, hooks, generator_for)
        num_slots = batch_size if self.hides_padding else 1

        def check_prompt(prompt: torch.LongTensor) -> torch.LongTensor:
            (checked,) = check_prompts(prompt, None, config, self)
            return checked

        return SlotDecoder(decoder, prompts, num_slots, check_prompt)

    def default_settings(self) -> dict[str, Any]:
        """Returns the defaults that the attention of the model decides."""
        if self.attention == "full":
            return {}

        defaults = {"block_length": self.config.block_length}
        if hasattr(self.config, "block_origin"):
            defaults["block_origin"] = self.config.block_origin
        if self.is_native and not drops_keys(self):
            defaults["cache_implementation"] = "block"
        return defaults

    def check_settings(self, config: DiffusionGenerationConfig) -> None:
        """Raises a [`SettingError`] if settings of a resolved configuration contradict one another or the model."""
        check(config, self)

    def make_decoder(
        self,
        config: DiffusionGenerationConfig,
        hooks: Sequence[DecodingHook],
        generator_for: Callable[[int], torch.Generator] | None = None,
    ) -> Decoder:
        """Returns the decoder of a resolved configuration, see [`Decoder`]."""
        return Decoder(self, config, hooks, generator_for)

    def generate_batch(self, *args, **kwargs):
        """Raises `NotImplementedError`: the inherited method decodes from left to right. Use [`generate_many`]."""
        raise NotImplementedError("`generate_batch` decodes from left to right. Use `generate_many`, or `generate`.")

    def recipes(self) -> list[GenerationConfig]:
        """Returns the recipes that [`resolve`] reads after the settings of the caller, in order of priority."""
        return [self.generation_config]

    def adjust_generation_fn(self, given, from_auto, from_pipeline, name_or_path, trust_remote_code=None, **kwargs):
        """Reads generation_config.json as a [`DiffusionGenerationConfig`] when the model is loaded."""
        # The base class does the same with a plain `GenerationConfig`, which does not know our settings.
        config_class = self.generation_config_class
        if given is not None:
            self.generation_config = config_class.from_dict(given.to_dict())
            return

        if name_or_path is not None:
            # Other keywords are of the model's configuration.
            of_file = {name: value for name, value in kwargs.items() if name in _DOWNLOAD}
            try:
                self.generation_config = config_class.from_pretrained(name_or_path, **of_file)
            except SettingError as error:
                where = f"The generation_config.json of '{name_or_path}' sets it: change or remove it there."
                raise SettingError(error.setting, error.value, rule=error.rule, remedy=where) from None
            except OSError as error:
                if isinstance(error.__context__, ValueError):  # a damaged file
                    raise
