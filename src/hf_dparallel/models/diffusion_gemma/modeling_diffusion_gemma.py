# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""DiffusionGemma (https://huggingface.co/google/diffusiongemma-26B-A4B-it): canvases of random tokens, denoised."""

from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, DiffusionGemmaConfig, GenerationConfig
from transformers import DiffusionGemmaForBlockDiffusion as PublishedModel
from transformers.cache_utils import Cache, DynamicCache

from hf_dparallel_rules.settings import SettingError

from ...attention_masks import as_attention_mask, noisy_and_clean
from ...generation.configuration import DiffusionGenerationConfig
from ..backbones import CACHE_ARGUMENT
from ..base import DiffusionModel
from ..scoring import apply_in_chunks, shift_predictions


class Expected(NamedTuple):
    """The mean embeddings that logits predict, `(num_positions, hidden_size)`."""

    embeddings: torch.Tensor


class DiffusionGemmaForBlockDiffusion(DiffusionModel, PublishedModel):
    """DiffusionGemma, the class of transformers with [`~DiffusionGenerationMixin.generate`] of this package, for text.

    A causal encoder stores what precedes the canvas, and a decoder, which sees in both directions, reads it. Both have
    the same weights, and adapters of their own.
    """

    attention = "causal_past"
    block_origin = "answer"
    noise = "uniform"
    has_encoder = True
    # As in the published training: not the router, the self-conditioning and the vision tower.
    target_modules = r".*\.(language_model|decoder)\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
    # In releases of transformers that take it, masks differ from the ones here.
    _supports_flash_attn = False

    def __init__(self, config):
        super().__init__(config)
        if self.config.text_config.use_bidirectional_attention == "all":
            raise ValueError(
                "`use_bidirectional_attention='all'` is not supported: DiffusionGemma's encoder is causal. Load a "
                "checkpoint that was trained with 'vision'."
            )

    @property
    def block_length(self) -> int:
        """Returns `canvas_length`."""
        return self.config.canvas_length

    def recipes(self) -> list[GenerationConfig]:
        """Adds the published sampler after the recipes."""
        sampler = DiffusionGenerationConfig(max_denoising_steps=48, entropy_bound=0.1, do_sample=True)
        return [*super().recipes(), sampler]

    def generate(self, *args, pixel_values: Any = None, mm_token_type_ids: torch.Tensor | None = None, **kwargs):
        """Decodes text as in [`~DiffusionGenerationMixin.generate`], and refuses images."""
        if pixel_values is not None or (mm_token_type_ids is not None and mm_token_type_ids.any()):
            remedy = "Leave them out, or use the class of transformers, `AutoModelForImageTextToText`."
            raise SettingError("pixel_values", "images", "must be left out: only text is decoded", remedy)
        return super().generate(*args, **kwargs)

    def embed_canvas(self, input_ids: torch.LongTensor) -> torch.Tensor:
        """Returns the decoder's embeddings, which an adapter can change apart from the encoder's."""
        return self.model.decoder.embed_tokens(input_ids)

    def condition(self, embeddings: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Returns canvas embeddings conditioned on the prediction of the pass before, `(rows, tokens, hidden_size)`.

        In the first pass `expected` is zero.
        """
        return self.model.decoder.self_conditioning(embeddings, expected)

    def expected_embeddings(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the mean embedding that logits `(tokens, vocab_size)` predict, `(tokens, hidden_size)`."""
        embedding = self.model.decoder.embed_tokens
        weight = embedding.weight
        probabilities = logits.to(weight.dtype).softmax(dim=-1, dtype=torch.float32).to(weight.dtype)
        return probabilities @ weight * embedding.embed_scale.to(weight.dtype)

    def score(self, inputs, where, function=None, labels=None, forward=None):
        """Overrides [`ScoringMixin.score`]: scores the whole canvas, or stores the inputs if `where` is empty.

        `attention_mask`, `(rows, keys)`, marks the stored tokens that are seen. With a `function`, the inputs are rows
        of a noisy and a clean copy, of which `forward` scores both.
        """
        if function is not None:
            forward = self.__call__ if forward is None else forward
            return forward(**inputs, where=where, labels=labels, head_function=function)
        if where.shape[1] == 0:
            return self._store(inputs, where)
        states, position_ids, seen = inputs["inputs_embeds"], inputs["position_ids"], inputs["attention_mask"]
        # The whole canvas sees the past from its first position.
        masks = self._masks(seen, position_ids[:, :1].expand_as(position_ids), states.shape[1])
        past = _first_columns(inputs["past_key_values"], seen.shape[1])
        return self._head(self._decode(states, masks, position_ids, past))

    @wraps(PublishedModel.forward)
    def forward(self, *args, head_function=None, **kwargs):
        if head_function is None:
            return super().forward(*args, **kwargs)
        return self._score_copies(head_function, **kwargs)

    def _score_copies(
        self, function, input_ids, position_ids, block_start, num_noisy, self_conditioned, where, labels
    ) -> Any:
        """Scores rows of `num_noisy` tokens in canvases and a clean copy, which the encoder reads and predicts.

        Each canvas sees the clean tokens before it, as in decoding. In the rows `self_conditioned` it also sees what a
        pass without gradients has predicted. All processes run this pass, as sharded weights are gathered in it.
        """
        noisy_ids, clean_ids = input_ids.tensor_split([num_noisy], dim=1)
        noisy_at, clean_at = position_ids.tensor_split([num_noisy], dim=1)
        of_encoder, of_decoder = self._masks_of_copies(position_ids, block_start, num_noisy)
        # Sliding layers, too, keep all tokens: canvases see them from several places.
        past, encoder, size = DynamicCache(), self.model.encoder.language_model, self.config.text_config.vocab_size
        encoded = encoder(
            clean_ids, attention_mask=of_encoder, position_ids=clean_at, **{CACHE_ARGUMENT: past}
        ).last_hidden_state
        embeddings = self.embed_canvas(noisy_ids)

        def decode(expected: torch.Tensor) -> torch.Tensor:
            return self._decode(self.condition(embeddings, expected), of_decoder, noisy_at, past)

        def expect(logits: torch.Tensor, _: torch.LongTensor) -> Expected:
            return Expected(self.expected_embeddings(logits.detach()))

        with torch.no_grad():
            first = decode(torch.zeros_like(embeddings))
        # Older releases of torch would use the casts of this pass, which have no gradients, in the next one.
        torch.clear_autocast_cache()
        expected = apply_in_chunks(self._head, expect, first, noisy_ids.flatten(), size).embeddings
        states = decode(expected.view_as(embeddings) * self_conditioned[:, None, None])
        states = torch.cat([states, shift_predictions(encoded, clean_at)], dim=1)
        return apply_in_chunks(self._head, function, states[where], labels[where], size)

    def _decode(self, states, masks, position_ids, past) -> torch.Tensor:
        """Returns the last hidden states of canvases, which see stored tokens and their own."""
        decoder = self.model.decoder
        rotary = {kind: decoder.rotary_emb(states, position_ids, kind) for kind in decoder.unique_layer_types}
        for kind, layer in zip(self.config.text_config.layer_types, decoder.layers, strict=True):
            states = layer(
                states,
                position_embeddings=rotary[kind],
                attention_mask=masks[kind],
                position_ids=position_ids,
                **{CACHE_ARGUMENT: past},
            )
        return decoder.norm(states)

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.final_logit_softcapping
        return logits.tanh() * self.final_logit_softcapping

    def _store(self, inputs, where):
        self.model.encoder.language_model(
            inputs["input_ids"],
            attention_mask=self._masks(inputs["attention_mask"], inputs["position_ids"]),
            position_ids=inputs["position_ids"],
            **{CACHE_ARGUMENT: inputs["past_key_values"]},
        )
        return where.new_empty(*where.shape, 0, dtype=torch.float32)

    def _masks(self, seen: torch.Tensor, positions: torch.LongTensor, num_own: int = 0) -> dict[str, Any]:
        """Makes the masks of both kinds of layers: a query sees what precedes its position, and `num_own` more tokens.

        Sliding layers see as many preceding tokens as fit into their window.
        """
        seen, query = seen[:, None].bool(), positions[..., None]
        # Padding has the position of a first token and sees it: seeing none gives NaN.
        key = seen.cumsum(dim=-1) - 1
        masks = (seen & (key <= query), query - key < self.config.text_config.sliding_window)
        return self._by_kind(*(pad(mask, (0, num_own), value=True) for mask in masks))

    def _by_kind(self, seen: torch.BoolTensor, near: torch.BoolTensor) -> dict[str, Any]:
        """Makes the masks of both kinds of layers, `(rows, queries, keys)`; sliding ones see only what is `near`."""
        visible = {"full_attention": seen, "sliding_attention": seen & near}
        config = self.config.text_config
        return {kind: as_attention_mask(config, mask, self.dtype) for kind, mask in visible.items()}

    def _masks_of_copies(
        self, positions: torch.LongTensor, block_start: torch.LongTensor, num_noisy: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Makes the masks of encoder and decoder for rows of a noisy and a clean copy, `(rows, length)`."""
        index = torch.arange(positions.shape[1], device=positions.device)
        # Where a token sees the past from.
        block = torch.where(index < num_noisy, block_start, positions)
        row = torch.arange(len(block), device=block.device)[:, None, None]
        seen = noisy_and_clean(block, num_noisy)(row, row, index[:, None], index)
        masks = (seen, block[:, :, None] - block[:, None] < self.config.text_config.sliding_window)
        of_encoder = self._by_kind(*(mask[:, num_noisy:, num_noisy:] for mask in masks))
        # The decoder has its own keys after those of the encoder.
        of_decoder = self._by_kind(*(mask[:, :num_noisy].roll(-num_noisy, dims=2) for mask in masks))
        return of_encoder, of_decoder


# Auto classes that transformers has no model for; the configuration and all others stay those of transformers.
for auto_class in (AutoModelForMaskedLM, AutoModelForCausalLM):
    auto_class.register(DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, exist_ok=True)


def _first_columns(cache: Cache, num_columns: int) -> Any:
    """Returns the first columns of a cache, without a copy."""
    layers = [
        SimpleNamespace(keys=layer.keys[:, :, :num_columns], values=layer.values[:, :, :num_columns])
        for layer in cache.layers
    ]
    return SimpleNamespace(layers=layers, is_compileable=False)
