# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`model.generate` for masked diffusion language models: semi-autoregressive decoding with several tokens a pass."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from . import commit_rules
from .canvas import Canvas
from .configuration import DiffusionGenerationConfig
from .inputs import accepted_inputs, check_prompts, resolve_generation_config
from .output import DiffusionGenerationOutput
from .prediction import TokenPrediction, predict_tokens
from .progress import CertaintyHistory, DraftStream, StopCheck


logger = logging.get_logger(__name__)


class DiffusionGenerationMixin(GenerationMixin):
    """Gives [`generate`] to a masked language model whose `logits[:, i]` score token `i`."""

    generation_config_class = DiffusionGenerationConfig
    # Whether the forward pass is ours: its head runs only where it is asked to, and its logits need no shift.
    _runs_head_where_asked = False
    # Whether the logits at position i - 1 score token i, for other classes (`enable_diffusion_generation`).
    _shift_logits_in_generate = False

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

        ```
        1. Check the settings and the prompts, and append a canvas of mask tokens to each prompt.
        2. While there are unfinished rows:
            a. Predict the masked tokens of each row's current block.
            b. Pick the predictions to commit, by the commit rule; at least one in each row.
            c. Write them into the canvas.
            d. Move on: a row whose block is decided enters its next block, a row whose answer has ended leaves.
        3. Pad what follows the end of each answer.
        ```

        Rows are independent: in exact arithmetic a row gives the tokens that it gives alone, whatever else is in the
        batch. (In half precision, sums round differently in batches of another size, which can turn near ties.)

        Args:
            inputs, input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`):
                The prompts, left-padded to one length. Give one of the two.
            generation_config ([`DiffusionGenerationConfig`], *optional*):
                Settings, which take precedence over those of `model.generation_config`.
            logits_processor (`LogitsProcessorList`, *optional*):
                Applied to the logits of every position of the block, with the row's whole sequence as `input_ids`.
            stopping_criteria (`StoppingCriteriaList`, *optional*):
                Called for each newly decided token with the row's decided sequence, as in left-to-right decoding;
                the answer ends with the first token for which one holds.
            streamer (`BaseStreamer`, *optional*):
                Gets the decided tokens from left to right; if it has `put_draft`
                ([`~transformers.TextDiffusionStreamer`]) also the current guess of the rest of the block. One prompt
                only.
            tokenizer (`PreTrainedTokenizerBase`, *optional*):
                Needed for `stop_strings`; also a source of special tokens that neither config names.
            generator (`torch.Generator` or a list of them, *optional*):
                Random state for `temperature > 0`. One per row makes the draws independent of the batch; `None` uses
                torch's global state (`transformers.set_seed`).
            attention_mask (`torch.LongTensor` of shape `(batch_size, prompt_length)`, *optional*):
                0 for padding. Needed for prompts of different lengths.
            kwargs:
                Settings of [`DiffusionGenerationConfig`], which take precedence over `generation_config`.

        Returns:
            `torch.LongTensor` of shape `(batch_size, prompt_length + max_new_tokens)`, or a
            [`DiffusionGenerationOutput`] with `return_dict_in_generate=True`.

        Raises:
            ValueError: for an unknown argument, a setting out of range, or prompts that cannot be decoded (empty,
                right-padded, ids outside the vocabulary).
            FloatingPointError: if the model's logits are NaN, naming the step and the rows.

        Example:

        ```python
        >>> out = model.generate(**inputs, max_new_tokens=256, entropy_threshold=0.5, return_dict_in_generate=True)
        >>> tokenizer.batch_decode(out.sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        ```
        """
        # 1. Check the settings and the prompts, and append a canvas of mask tokens to each prompt.
        _check_arguments(inputs, input_ids, kwargs)
        config = resolve_generation_config(self, generation_config, tokenizer, **kwargs)
        if config.output_certainty and not config.return_dict_in_generate:
            raise ValueError(
                "`output_certainty=True` needs `return_dict_in_generate=True`, to return the certainty in."
            )
        logits_processor = LogitsProcessorList(logits_processor or [])
        input_ids, attention_mask = check_prompts(
            input_ids if inputs is None else inputs, attention_mask, config, self
        )
        canvas = Canvas(
            input_ids,
            attention_mask,
            max_new_tokens=config.max_new_tokens,
            block_length=config.block_length,
            mask_token_id=config.mask_token_id,
            eos_token_ids=_as_list(config.eos_token_id) if config.stop_at_eos else [],
        )
        generators = _generators_per_row(generator, len(input_ids))
        history = CertaintyHistory(canvas) if config.output_certainty else None
        stop_check = StopCheck(canvas, _stopping_criteria(stopping_criteria, config, tokenizer))
        stream = DraftStream(canvas, streamer) if streamer is not None else None

        # 2. While there are unfinished rows:
        while len(canvas.active):
            # a. Predict the masked tokens of each row's current block.
            columns = canvas.block_columns()
            masked = canvas.masked_in(columns)
            prediction = self._predict(canvas, columns, config, logits_processor, generators, history)
            # b. Pick the predictions to commit, by the commit rule; at least one in each row.
            accepted = _pick_commits(prediction, masked, canvas, config)
            # c. Write them into the canvas.
            canvas.commit(columns, prediction.tokens, accepted)
            # d. Move on: a row whose block is decided enters its next block, a row whose answer has ended leaves.
            canvas.advance()
            stop_check.update()
            if stream is not None:
                stream.update(columns, prediction.tokens, stop_check.lengths())

        # 3. Pad what follows the end of each answer.
        lengths = stop_check.lengths()
        answer_lengths = torch.minimum(lengths, canvas.length_to_first(_as_list(config.eos_token_id)))
        canvas.truncate(lengths, _padding_token_id(config))
        if stream is not None:
            stream.end()
        if not config.return_dict_in_generate:
            return canvas.sequences
        return DiffusionGenerationOutput(
            sequences=canvas.sequences,
            nfe=canvas.nfe,
            tokens_per_forward=answer_lengths / canvas.nfe,
            commit_step=canvas.commit_step,
            entropies=history.entropies() if history is not None else None,
            confidences=history.confidences() if history is not None else None,
        )

    def prepare_inputs_for_generation(self, *args, **kwargs):
        """Not used by diffusion decoding; PEFT asks for it on models of task type `CAUSAL_LM`."""
        return super().prepare_inputs_for_generation(*args, **kwargs)

    def adjust_generation_fn(
        self,
        generation_config,
        from_auto_class,
        from_pipeline,
        pretrained_model_name_or_path,
        cache_dir=None,
        force_download=False,
        proxies=None,
        local_files_only=False,
        token=None,
        revision=None,
        subfolder="",
        trust_remote_code=None,
        **kwargs,
    ):
        """Reads generation_config.json as a [`DiffusionGenerationConfig`] when the model is loaded."""
        # The base class does the same with a plain `GenerationConfig`, which does not know our settings.
        if generation_config is not None:
            self.generation_config = self.generation_config_class.from_dict(generation_config.to_dict())
        elif pretrained_model_name_or_path is not None:
            try:
                self.generation_config = self.generation_config_class.from_pretrained(
                    pretrained_model_name_or_path,
                    _from_auto=from_auto_class,
                    _from_pipeline=from_pipeline,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    proxies=proxies,
                    local_files_only=local_files_only,
                    token=token,
                    revision=revision,
                    subfolder=subfolder,
                    **kwargs,
                )
            except OSError:
                logger.info("No generation_config.json found: using the defaults of DiffusionGenerationConfig.")

    def _predict(
        self,
        canvas: Canvas,
        columns: torch.LongTensor,
        config: DiffusionGenerationConfig,
        logits_processor: LogitsProcessorList,
        generators: list[torch.Generator] | None,
        history: CertaintyHistory | None,
    ) -> TokenPrediction:
        """Runs the model and predicts the tokens at `columns` (`(active, block_length)`) of the canvas."""
        if history is not None:
            all_columns = torch.arange(canvas.new_ids.shape[1], device=columns.device).expand(len(columns), -1)
            logits = self._logits_at(canvas, all_columns)
            history.record(logits)
            logits = logits.gather(1, columns[..., None].expand(-1, -1, logits.shape[-1]))
        else:
            logits = self._logits_at(canvas, columns)
        if logits_processor:
            logits = _process_logits(logits_processor, canvas, logits)
        row_generators = None if generators is None else [generators[row] for row in canvas.active.tolist()]
        prediction = predict_tokens(
            logits, config.mask_token_id, config.temperature, config.top_k, config.top_p, row_generators
        )
        _check_not_nan(prediction.entropy, canvas, "logits processors" if logits_processor else "model")
        return prediction

    def _logits_at(self, canvas: Canvas, columns: torch.LongTensor) -> torch.Tensor:
        """Logits of the active rows at `columns` of the canvas, `(active, columns, vocab_size)`."""
        inputs = canvas.model_inputs()
        positions = columns + canvas.prompt_length
        if self._runs_head_where_asked:
            return self(**inputs, logits_to_keep=positions).logits
        # A class that we did not write: the head runs everywhere, and not every class takes positions.
        logits = self(**accepted_inputs(self, inputs)).logits
        if self._shift_logits_in_generate:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        return torch.take_along_dim(logits, positions[..., None], dim=1)


def _check_arguments(
    inputs: torch.LongTensor | None, input_ids: torch.LongTensor | None, kwargs: dict[str, Any]
) -> None:
    if inputs is not None and input_ids is not None:
        raise ValueError("`inputs` and `input_ids` are the same argument, got both. Pass one of them.")
    # Tokenizers of BERT's kind return it. All zeros is what models assume anyway.
    token_type_ids = kwargs.pop("token_type_ids", None)
    if token_type_ids is not None and token_type_ids.any():
        raise ValueError("`token_type_ids` must be all 0: a prompt is one segment. Leave it out.")


def _pick_commits(
    prediction: TokenPrediction, masked: torch.BoolTensor, canvas: Canvas, config: DiffusionGenerationConfig
) -> torch.BoolTensor:
    """Applies the commit rule that is set."""
    if config.entropy_threshold is not None:
        return commit_rules.commit_by_entropy(prediction.entropy, masked, config.entropy_threshold)
    if config.confidence_threshold is not None:
        return commit_rules.commit_by_confidence(prediction.confidence, masked, config.confidence_threshold)
    steps_per_block = config.denoising_steps // canvas.num_blocks
    step = canvas.step_in_block[canvas.active]
    count = commit_rules.scheduled_count(canvas.block_length, steps_per_block, step)
    return commit_rules.commit_by_count(prediction.confidence, masked, count)


def _process_logits(processors: LogitsProcessorList, canvas: Canvas, logits: torch.Tensor) -> torch.Tensor:
    """Processors know one position per row, so each position of the block is passed as a row of its own."""
    rows, tokens, vocab_size = logits.shape
    input_ids = canvas.sequences[canvas.active].repeat_interleave(tokens, dim=0)
    return processors(input_ids, logits.float().reshape(rows * tokens, vocab_size)).view(rows, tokens, vocab_size)


def _check_not_nan(entropy: torch.Tensor, canvas: Canvas, source: str) -> None:
    is_nan = entropy.isnan().any(dim=1)
    if is_nan.any():
        rows = canvas.active[is_nan]
        raise FloatingPointError(
            f"The logits of the {source} are NaN at step {canvas.nfe[rows].tolist()} of row(s) {rows.tolist()}. Check "
            "the weights and the dtype: float16 overflows in models trained in bfloat16, load those in bfloat16."
        )


def _stopping_criteria(
    criteria: StoppingCriteriaList | None,
    config: DiffusionGenerationConfig,
    tokenizer: PreTrainedTokenizerBase | None,
) -> StoppingCriteriaList:
    criteria = StoppingCriteriaList(criteria or [])
    if config.stop_strings is not None:
        if tokenizer is None:
            raise ValueError(
                f"`stop_strings={config.stop_strings!r}` needs the tokenizer: pass `tokenizer=` to `generate`."
            )
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=config.stop_strings))
    return criteria


def _generators_per_row(
    generator: torch.Generator | Sequence[torch.Generator] | None, batch_size: int
) -> list[torch.Generator] | None:
    if generator is None:
        return None
    generators = [generator] * batch_size if isinstance(generator, torch.Generator) else list(generator)
    if len(generators) != batch_size:
        raise ValueError(
            f"`generator` must be one torch.Generator or one per row, got {len(generators)} for {batch_size} rows."
        )
    return generators


def _padding_token_id(config: DiffusionGenerationConfig) -> int:
    if config.pad_token_id is not None:
        return config.pad_token_id
    return (_as_list(config.eos_token_id) or [0])[0]


def _as_list(token_ids: int | list[int] | None) -> list[int]:
    if token_ids is None:
        return []
    return list(token_ids) if isinstance(token_ids, (list, tuple)) else [token_ids]
