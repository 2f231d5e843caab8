# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The base of all families: a backbone, a head that runs only where needed, adapters and `generate`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import ForMaskedLMLoss
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from hf_dparallel_rules.published import describe_recipe

from ..generation.mixin import DiffusionGenerationMixin
from .adapters import AdapterLoadingMixin
from .backbones import CACHE_ARGUMENT, DiffusionBackbone
from .family import ready_students
from .scoring import (
    ScoringMixin,
    Terms,
    apply_in_chunks,
    select_labels,
    select_positions,
    shift_predictions,
)


logger = logging.get_logger(__name__)

_TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class MaskedDiffusionModel(ScoringMixin, AdapterLoadingMixin, DiffusionGenerationMixin):
    """A masked diffusion language model: `self.model`, of the `backbone_class` of its family, and `self.lm_head`.

    It comes before the `PreTrainedModel` of the family.
    """

    config: PreTrainedConfig
    backbone_class: type[nn.Module]
    is_native = True
    takes_visibility = True
    _supports_flash_attn = DiffusionBackbone._supports_flash_attn
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: PreTrainedConfig):
        if not isinstance(config, self.config_class):  # type: ignore[attr-defined]
            text = f"{type(self).__name__} takes no {type(config).__name__}."
            raise ValueError(f"{text} Load the checkpoint by `AutoModelForMaskedLM`.")
        super().__init__(config)  # type: ignore[call-arg]
        self.model = self.backbone_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Where a family's checkpoints differ, the config has it.
        self.shift_logits = getattr(config, "shift_logits", self.shift_logits)
        self.post_init()  # type: ignore[attr-defined]

    @classmethod
    def can_generate(cls) -> bool:
        """Returns `True`: transformers looks for "GenerationMixin" in names of direct bases."""
        return True

    @classmethod
    def from_pretrained(cls, *args, use_safetensors: bool | None = True, **kwargs):
        """Loads a checkpoint as [`~transformers.PreTrainedModel.from_pretrained`] does, if it is complete and safe.

        Raises:
            ValueError: if weights are missing or left over. transformers would draw them at random, or drop them, and
                only report it.
            OSError: if there are no safetensors; `use_safetensors=False` reads pickled weights.
        """
        given = kwargs.get("quantization_config") or {}
        if not isinstance(given, dict):
            given = given.to_dict()

        quantizer: Any = nullcontext()
        if given.get("load_in_4bit"):
            from .patch_bitsandbytes import quantized_experts

            quantizer = quantized_experts()
        with quantizer:
            return super().from_pretrained(*args, use_safetensors=use_safetensors, **kwargs)  # type: ignore[misc]

    def adjust_generation_fn(self, given, from_auto, from_pipeline, name_or_path, *args, **kwargs) -> None:
        """Reads the recipe of a checkpoint, and applies its authors' to a ready student whose repository has none."""
        super().adjust_generation_fn(given, from_auto, from_pipeline, name_or_path, *args, **kwargs)
        student = ready_students().get(str(name_or_path))
        if given is None and student is not None and self.generation_config.commit_rule() is None:
            self.generation_config = self.generation_config.updated(**student["recipe"])
            logger.warning_once(
                f"{name_or_path} has no recipe, so that of {student['source']} applies: {describe_recipe(student)}. "
                "Settings of yours take precedence."
            )

    def _adjust_missing_and_unexpected_keys(self, loading_info) -> None:
        super()._adjust_missing_and_unexpected_keys(loading_info)  # type: ignore[misc]
        keys = loading_info.missing_keys
        problem = f"lacks {len(keys)} weights of"
        if not keys:
            keys = loading_info.unexpected_keys
            problem = f"has {len(keys)} weights that are none of"
        if keys:
            raise ValueError(
                f"The checkpoint {self.config.name_or_path!r} {problem} {type(self).__name__}, such as {min(keys)!r}. "
                "It is incomplete, or of another architecture under this `model_type`."
            )

    @property
    def attention(self) -> str:  # type: ignore[override]
        """Returns which positions see which others, by the config: "full", "block_causal" or "causal_past"."""
        return self.config.attention

    @property
    def target_modules(self) -> list[str]:
        """Returns the layers that adapters are for by default: linear ones of attention and dense MLPs, by name."""
        names = {name.rpartition(".")[2] for name, _ in self.named_modules()}  # type: ignore[attr-defined]
        return [name for name in _TARGET_MODULES if name in names]

    def score(self, inputs, where, function=None, labels=None, forward=None):
        """Overrides [`ScoringMixin.score`]: the head runs at `where` only, inside the forward pass."""
        if forward is None:
            forward = self.__call__  # type: ignore[operator]
        return forward(**inputs, logits_to_keep=where, labels=labels, head_function=function).logits

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = False,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: int | torch.Tensor | None = None,
        head_function: Callable[[torch.Tensor, torch.LongTensor], Terms] | None = None,
        predicting_columns: torch.LongTensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        r"""
        Predicts the token of every position; `logits[:, i]` always scores token `i`.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Token ids, the mask token where a token is to be predicted.
            attention_mask (`torch.Tensor`, *optional*):
                1 for real tokens, 0 for padding, of shape `(batch_size, sequence_length)`; or a 4-D mask.
            position_ids (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                Positions for the rotary embedding.
            past_key_values (`Cache`, *optional*):
                Keys and values of positions that are not in `input_ids`. From transformers 5.24 on it is also taken as
                `cache`.
            inputs_embeds (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`, *optional*):
                Embeddings, instead of `input_ids`.
            labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                The clean tokens, -100 where nothing is scored: adds the mean cross-entropy at the kept positions as
                `loss`. (Certainty-forcing distillation has its own loss, see [`certainty_forcing_loss`].)
            logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0):
                Where the head runs. 0: everywhere. A positive `int`: the last positions. A tensor of positions,
                `(num_positions,)` or `(batch_size, num_positions)`; or a boolean mask `(batch_size,
                sequence_length)`, which gives logits of shape `(num_true, vocab_size)`. With a vocabulary of 126k
                this is most of the memory and, on small models, of the time.
            num_items_in_batch (`int` or `torch.Tensor`, *optional*):
                Number of labels that `loss` is divided by, by default the number in this batch. The Trainer passes it
                when it accumulates gradients.
            head_function (`Callable`, *optional*):
                A differentiable function that is called with the logits of some kept positions of all rows at a time,
                `(num_positions, vocab_size)`, and with their `labels`, and returns a `NamedTuple` of tensors. The
                output has it, put together field by field, as `logits`. Only the logits of one call are in memory at a
                time, in the backward pass too, where all but the last are computed again.
            predicting_columns (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
                The position whose hidden state predicts each token, by default its own, with `shift_logits` the one
                before.

        Returns:
            [`~transformers.modeling_outputs.MaskedLMOutput`] with `logits` of shape
            `(batch_size, num_positions, vocab_size)`.
        """
        kwargs.setdefault(CACHE_ARGUMENT, past_key_values)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )

        hidden_states = outputs.last_hidden_state
        if self.shift_logits or predicting_columns is not None:
            hidden_states = shift_predictions(hidden_states, position_ids, predicting_columns)
        hidden_states = select_positions(hidden_states, logits_to_keep)
        if labels is not None:
            labels = select_labels(labels, logits_to_keep)

        loss = None
        if head_function is not None:
            logits = apply_in_chunks(self.lm_head, head_function, hidden_states, labels, self.config.vocab_size)
        else:
            logits = self.lm_head(hidden_states)
            if labels is not None:
                loss = ForMaskedLMLoss(logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch)

        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
