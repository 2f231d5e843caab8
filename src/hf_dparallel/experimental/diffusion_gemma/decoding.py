# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The published sampler of DiffusionGemma: canvases of random tokens, denoised as a whole in each pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import LogitsProcessorList
from transformers.cache_utils import DynamicCache
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)
from transformers.utils import ModelOutput

from hf_dparallel_rules.certainty import entropy_from_logits
from hf_dparallel_rules.settings import SettingError

from ...generation.inputs import generators_by_row
from ...models.backbones import CACHE_ARGUMENT


@dataclass
class DiffusionGemmaOutput(ModelOutput):
    """The result of [`generate`] with `return_dict_in_generate=True`.

    Args:
        sequences (`(batch_size, prompt_length + max_new_tokens)`): prompts and answers, padded after the end token.
        nfe (`(batch_size,)`): decoder passes that each row took part in.
        encoder_passes (`(batch_size,)`): encoder passes beside them, one for each canvas.
        tokens_per_forward (`(batch_size,)`): new tokens up to and including the first end token, over `nfe`.
    """

    sequences: torch.LongTensor
    nfe: torch.LongTensor = None
    encoder_passes: torch.LongTensor = None
    tokens_per_forward: torch.FloatTensor = None


@torch.no_grad()
def generate(
    model: Any,
    input_ids: torch.LongTensor,
    generation_config: DiffusionGemmaGenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    *,
    attention_mask: torch.LongTensor | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    do_sample: bool = True,
    return_dict_in_generate: bool = False,
    **kwargs: Any,
) -> torch.LongTensor | DiffusionGemmaOutput:
    r"""
    Decodes canvas after canvas.

    A canvas begins with random tokens. Each pass predicts all of it again: places whose entropies add up to at most
    `entropy_bound`, the surest first, get the drawn token, all others a new random one. The temperature falls from
    `t_max` to `t_min`, and the model sees what it predicted in the pass before. The likeliest tokens are the
    answer once they stay the same and are certain, or after the last pass.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`):
            Prompts, left-padded.
        generation_config ([`~transformers.DiffusionGemmaGenerationConfig`], *optional*):
            Settings, which take precedence over `model.generation_config`.
        logits_processor (`LogitsProcessorList`, *optional*):
            Applied to the logits `(batch_size, canvas_length, vocab_size)` before the temperature, with the tokens
            before the canvas as `input_ids`.
        attention_mask (`torch.LongTensor` of shape `(batch_size, prompt_length)`, *optional*):
            0 for padding.
        generator (`torch.Generator` or a list of them, *optional*):
            Random state, on the device of the prompts. One per row makes the draws independent of the batch;
            by default torch's global state is used, in the order of transformers.
        do_sample (`bool`, *optional*, defaults to `True`):
            Whether to draw the tokens that a pass accepts, or take the likeliest ones.
        return_dict_in_generate (`bool`, *optional*, defaults to `False`):
            Whether to return a [`DiffusionGemmaOutput`].
        kwargs:
            Settings of the configuration: `max_new_tokens`, `max_denoising_steps`, `t_max`, `t_min`,
            `stability_threshold` (passes for which the likeliest tokens must stay the same), `eos_token_id`,
            `pad_token_id`; `entropy_bound`, in nats; `stop_entropy`, the mean entropy in nats below which a canvas is
            certain (`confidence_threshold` of transformers).

    Returns:
        `torch.LongTensor` of shape `(batch_size, prompt_length + max_new_tokens)`, or a [`DiffusionGemmaOutput`].

    Raises:
        ValueError: for images, an unknown argument, a setting out of range, or prompts that are not left-padded.
    """
    config = _read_settings(model, generation_config, kwargs)
    attention_mask = _check_prompts(model, input_ids, attention_mask)
    processors = model._prepare_logits_processor(config, LogitsProcessorList(logits_processor or []))
    generator_of = generators_by_row(generator, len(input_ids))
    loop = _CanvasLoop(model, config, input_ids, attention_mask, processors, generator_of, do_sample)
    text, end = model.config.text_config, input_ids.shape[1] + config.max_new_tokens
    ends = text.eos_token_id if config.eos_token_id is None else config.eos_token_id
    ends = torch.tensor([] if ends is None else ends, dtype=torch.long, device=model.device)
    padding = text.pad_token_id if config.pad_token_id is None else config.pad_token_id
    while loop.sequences.shape[1] < end and not loop.is_finished.all():
        loop.encode()
        canvas = loop.denoise()
        is_end = torch.isin(canvas, ends)
        num_ends = is_end.cumsum(dim=1)
        canvas = canvas.masked_fill((num_ends - is_end.long() > 0) | loop.is_finished[:, None], padding)
        loop.sequences = torch.cat([loop.sequences, canvas], dim=1)
        loop.is_finished |= num_ends[:, -1] > 0
    sequences = pad(loop.sequences, (0, end - loop.sequences.shape[1]), value=padding)
    if not return_dict_in_generate:
        return sequences
    is_end = torch.isin(sequences[:, input_ids.shape[1] :], ends)
    lengths = torch.where(is_end.any(dim=1), is_end.int().argmax(dim=1) + 1, config.max_new_tokens)
    return DiffusionGemmaOutput(sequences, loop.nfe, loop.encoder_passes, lengths / loop.nfe)


@dataclass
class _CanvasLoop:
    """Decodes the next canvas of each row, as often as it is asked to.

    A row whose canvas is decided keeps it, and draws nothing more until the next one.
    """

    model: Any
    config: DiffusionGemmaGenerationConfig
    sequences: torch.LongTensor
    attention_mask: torch.LongTensor
    processors: LogitsProcessorList
    generator_of: Callable[[int], torch.Generator] | None
    do_sample: bool

    def __post_init__(self):
        self.size = self.model.config.canvas_length
        self.cache = DynamicCache(config=self.model.config.text_config)
        self.nfe = torch.zeros(len(self.sequences), dtype=torch.long, device=self.sequences.device)
        self.encoder_passes = self.nfe.clone()
        self.is_finished = torch.zeros_like(self.nfe, dtype=torch.bool)

    def encode(self) -> None:
        """Stores the new tokens of the sequences, and makes room for a canvas after them."""
        positions = (self.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        new = slice(self.cache.get_seq_length(), None)
        self.model.model.encoder.language_model(
            self.sequences[:, new],
            attention_mask=self.attention_mask,
            position_ids=positions[:, new],
            **{CACHE_ARGUMENT: self.cache},
        )
        self.encoder_passes += ~self.is_finished
        self.canvas_positions = positions[:, -1:] + 1 + torch.arange(self.size, device=positions.device)
        self.attention_mask = pad(self.attention_mask, (0, self.size), value=1)

    def denoise(self) -> torch.LongTensor:
        """Returns a denoised canvas, `(rows, canvas_length)`."""
        config, self.is_decided = self.config, self.is_finished.clone()
        canvas = self._draw(self._noise)
        likeliest, num_stable, previous = torch.full_like(canvas, -1), torch.zeros_like(self.nfe), None
        for step in range(config.max_denoising_steps, 0, -1):
            self.nfe += ~self.is_decided
            logits = self.model(
                decoder_input_ids=canvas,
                self_conditioning_logits=previous,
                decoder_attention_mask=self.attention_mask,
                decoder_position_ids=self.canvas_positions,
                **{CACHE_ARGUMENT: self.cache},
            ).logits
            logits = self.processors(self.sequences, logits, cur_step=step)
            best, entropy = logits.argmax(dim=-1), entropy_from_logits(logits)
            tokens = self._sample(logits) if self.do_sample else best
            ascending, order = entropy.sort(dim=-1)
            fits = ascending.cumsum(dim=-1) - ascending <= config.sampler_config.entropy_bound
            accepted = torch.zeros_like(fits).scatter(1, order, fits)
            canvas = torch.where(accepted, tokens, self._draw(self._noise))
            num_stable = (num_stable + 1) * (best == likeliest).all(dim=1)
            likeliest = torch.where(self.is_decided[:, None], likeliest, best)
            is_sure = entropy.mean(dim=1) < config.confidence_threshold
            self.is_decided |= is_sure & (num_stable >= config.stability_threshold)
            previous = logits.to(self.model.dtype)
            if self.is_decided.all():
                break
        return likeliest

    def _draw(self, sample: Callable[[slice, torch.Generator | None], torch.LongTensor]) -> torch.LongTensor:
        """Returns `sample` of all rows at once, or of each undecided row by its own generator."""
        if self.generator_of is None:
            return sample(slice(None), None)
        drawn = torch.zeros(len(self.nfe), self.size, dtype=torch.long, device=self.nfe.device)
        for row in (~self.is_decided).nonzero()[:, 0].tolist():
            drawn[row] = sample(slice(row, row + 1), self.generator_of(row))[0]
        return drawn

    def _noise(self, rows: slice, generator: torch.Generator | None) -> torch.LongTensor:
        shape, vocab_size = (len(self.nfe[rows]), self.size), self.model.config.text_config.vocab_size
        return torch.randint(vocab_size, shape, generator=generator, device=self.nfe.device)

    def _sample(self, logits: torch.Tensor) -> torch.LongTensor:
        probabilities = logits.softmax(dim=-1, dtype=torch.float32)

        def sample(rows: slice, generator: torch.Generator | None) -> torch.LongTensor:
            drawn = torch.multinomial(probabilities[rows].flatten(0, 1), 1, generator=generator)
            return drawn.view(-1, self.size)

        return self._draw(sample)


def _read_settings(
    model: Any, generation_config: DiffusionGemmaGenerationConfig | None, kwargs: dict[str, Any]
) -> DiffusionGemmaGenerationConfig:
    """Returns keywords over `generation_config` over the model's over published defaults, as transformers does."""
    if generation_config is not None and not isinstance(generation_config, DiffusionGemmaGenerationConfig):
        rule = "must be a DiffusionGemmaGenerationConfig of transformers"
        raise SettingError("generation_config", type(generation_config).__name__, rule)
    images = kwargs.pop("pixel_values", None), kwargs.pop("mm_token_type_ids", None)
    if images[0] is not None or (images[1] is not None and images[1].any()):
        remedy = "Leave them out, or use the class of transformers, `AutoModelForImageTextToText`."
        raise SettingError("pixel_values", "images", "must be left out: only text is decoded", remedy)
    for name in ("stop_entropy", "entropy_bound", "stability_threshold"):
        if name in kwargs and not kwargs[name] >= 0:
            raise SettingError(name, kwargs[name], "must be at least 0")
    if "entropy_bound" in kwargs:
        kwargs["sampler_config"] = EntropyBoundSamplerConfig(float(kwargs.pop("entropy_bound")))
    if "stop_entropy" in kwargs:
        kwargs["confidence_threshold"] = float(kwargs.pop("stop_entropy"))
    config, unknown = model._prepare_generation_config(generation_config, **kwargs)
    for name, value in unknown.items():
        raise SettingError(name, value, "is no setting of DiffusionGemma", "See the docstring of its `generate`.")
    return config


def _check_prompts(model: Any, input_ids: Any, attention_mask: Any) -> torch.LongTensor:
    """Raises a `ValueError` for prompts that cannot be decoded, and returns their mask."""
    if not torch.is_tensor(input_ids) or input_ids.dim() != 2 or input_ids.numel() == 0:
        raise ValueError("`input_ids` must be a tensor of shape (batch_size, prompt_length), and not be empty.")
    if (input_ids == model.config.image_token_id).any():
        raise ValueError("`input_ids` has image tokens, and only text is decoded. Remove them.")
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
    if mask.shape != input_ids.shape or not mask[:, -1].all() or (mask.diff(dim=1) < 0).any():
        raise ValueError("`attention_mask` must have the shape of `input_ids` and be 0 for padding on the left.")
    return mask
