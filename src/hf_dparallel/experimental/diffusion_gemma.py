# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Certainty forcing on top of the published training of DiffusionGemma, which transformers decodes."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.cache_utils import DynamicCache

from ..attention_masks import make_attention_mask
from ..models.backbones import CACHE_ARGUMENT
from ..training.collator import DrawsByRow, MaskingCallback
from ..training.losses import row_terms
from ..training.objective import IGNORE_INDEX, Objective
from ..training.student import add_adapter, base_model


# Layers that an adapter is for by default, as in the published training: linear ones of attention and dense MLPs.
_TARGET_MODULES = r".*\.(language_model|decoder)\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"


@dataclass
class DiffusionGemmaCollator(DrawsByRow):
    """Data collator that puts noise into all canvases of an answer, and leaves a clean copy for the encoder.

    Each canvas has a share of noise of its own, drawn uniformly; a noisy token is drawn from the vocabulary. Half of
    the rows are to be predicted once before, as in decoding (`self_conditioning_mask`). All draws depend on the tokens
    of the row, `seed` and the epoch alone.

    Args:
        canvas_length, vocab_size (`int`): those of the model.
        eos_token_id (`int`): fills up the last canvas, and is learned there.
        max_length (`int`, *optional*, defaults to 384): of prompt and completion together; longer rows are refused.
        seed (`int`, *optional*, defaults to 0): seed of the draws.
    """

    canvas_length: int
    vocab_size: int
    eos_token_id: int
    max_length: int = 384
    seed: int = 0

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns the inputs of the model, `labels` of all canvases `(rows, tokens)`, and `encoder_labels`."""
        rows = [self._read(example) for example in examples]
        batch = {}
        for name in rows[0]:
            padding = IGNORE_INDEX if name.endswith("labels") else self.eos_token_id
            batch[name] = pad_sequence([row[name] for row in rows], batch_first=True, padding_value=padding)

        batch["self_conditioning_mask"] = batch["self_conditioning_mask"][:, 0]
        return batch

    def _read(self, example: dict[str, Any]) -> dict[str, torch.Tensor]:
        prompt = example["prompt_ids"]
        completion = example["completion_ids"]
        if not (prompt and completion and len(prompt) + len(completion) <= self.max_length):
            raise ValueError(
                f"A row has {len(prompt)} `prompt_ids` and {len(completion)} `completion_ids`: both must be there, "
                f"and together at most `max_length={self.max_length}`. Raise it, or drop the row."
            )

        clean = torch.tensor([*prompt, *completion])
        num_canvases = -(-len(completion) // self.canvas_length)
        target = torch.full((num_canvases, self.canvas_length), self.eos_token_id)
        target.view(-1)[: len(completion)] = clean[len(prompt) :]

        generator = self.generator_of(clean[: len(prompt)], clean[len(prompt) :])
        share = torch.rand(num_canvases, 1, generator=generator)
        noise = torch.randint(self.vocab_size, target.shape, generator=generator)
        noisy = torch.where(torch.rand(target.shape, generator=generator) < share, noise, target)

        return {
            "input_ids": clean,
            # Nothing predicts the first token.
            "encoder_labels": torch.cat([torch.tensor([IGNORE_INDEX]), clean[1:]]),
            "decoder_input_ids": noisy.flatten(),
            "labels": target.flatten(),
            "decoder_position_ids": len(prompt) + torch.arange(target.numel()),
            "self_conditioning_mask": torch.rand(1, generator=generator) < 0.5,
        }


@dataclass
class DiffusionGemmaTrainingArguments(TrainingArguments):
    """`TrainingArguments`, and the settings of the loss.

    Args:
        max_length (`int`, *optional*, defaults to 384):
            Tokens of prompt and completion together at most.
        consistency_weight, certainty_weight, encoder_weight (`float`, *optional*, default to 1, 2 and 1):
            Weights of the cross-entropy of the canvases, of the entropy of their correct predictions (Eq. 7 of
            https://huggingface.co/papers/2509.26488), and of the encoder's next-token cross-entropy.
        certainty_temperature (`float`, *optional*, defaults to 0.5):
            Temperature of that entropy.
    """

    max_length: int = 384
    consistency_weight: float = 1.0
    certainty_weight: float = 2.0
    encoder_weight: float = 1.0
    certainty_temperature: float = 0.5
    # The collator reads the columns, not the model.
    remove_unused_columns: bool = False


class DiffusionGemmaTrainer(Trainer):
    """Trainer for certainty forcing of a DiffusionGemma on its own answers, on one process or in data parallel.

    Each canvas sees the clean tokens before it, as in decoding, also in sliding layers. It logs `consistency_loss`,
    `certainty_loss` and `encoder_loss` beside `loss`, each the mean over rows.

    Args:
        model ([`~transformers.DiffusionGemmaForBlockDiffusion`]): the student, which starts as a copy of the teacher.
        args ([`DiffusionGemmaTrainingArguments`]): settings.
        train_dataset, eval_dataset (`Dataset`, *optional*): rows of `prompt_ids` and `completion_ids`.
        peft_config ([`~peft.PeftConfig`], *optional*): the adapter to train, by default of attention and dense MLPs.
        kwargs: other arguments of [`~transformers.Trainer`].
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: DiffusionGemmaTrainingArguments,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        peft_config: Any = None,
        **kwargs: Any,
    ):
        config = model.config
        if config.text_config.use_bidirectional_attention == "all":
            raise ValueError(
                "`use_bidirectional_attention='all'` is not supported: DiffusionGemma's encoder is causal. Load a "
                "checkpoint that was trained with 'vision'."
            )
        if peft_config is not None:
            model.target_modules = _TARGET_MODULES
            model = add_adapter(model, peft_config)

        ends = config.text_config.eos_token_id
        collator = DiffusionGemmaCollator(
            canvas_length=config.canvas_length,
            vocab_size=config.text_config.vocab_size,
            eos_token_id=ends if isinstance(ends, int) else ends[0],
            max_length=args.max_length,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        super().__init__(model, args, collator, train_dataset, eval_dataset, **kwargs)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError("DiffusionGemmaTrainer runs on whole weights: use data parallel processes instead.")

        self.add_callback(MaskingCallback(collator))
        self.label_names = ["labels"]
        # The loss is a mean over rows, whatever they hold.
        self.model_accepts_loss_kwargs = False
        # By prefix and name, what each batch since the last log gave.
        self._sums: dict[str, Any] = {"": defaultdict(list), "eval_": defaultdict(list)}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """Returns the weighted sum of the terms, from two passes: without gradients, then conditioned on the first."""
        args = self.args
        base = base_model(self.model)
        given = {name: value for name, value in inputs.items() if not name.endswith("labels")}
        is_conditioned = given.pop("self_conditioning_mask")
        given["decoder_attention_mask"] = _make_masks(base, given["input_ids"], given["decoder_position_ids"])

        def predict(**conditions: torch.Tensor) -> Any:
            # A cache that keeps all tokens in sliding layers, too: canvases see them from several places.
            return model(**given, **conditions, **{CACHE_ARGUMENT: DynamicCache()})

        with torch.no_grad():
            first = predict().logits
        # Autocast would use the casts of this pass, which have no gradients, in the next one.
        torch.clear_autocast_cache()
        output = predict(self_conditioning_logits=first, self_conditioning_mask=is_conditioned)

        cap = base.final_logit_softcapping
        of_encoder = base.lm_head(output.encoder_last_hidden_state[:, :-1]).float()
        of_encoder = (of_encoder / cap).tanh() * cap
        of_canvases = row_terms(Objective(args.certainty_temperature), output.logits, inputs["labels"])
        of_next_tokens = row_terms(Objective(), of_encoder, inputs["encoder_labels"][:, 1:])
        terms = {
            "consistency": of_canvases.losses[:, 0].mean(),
            "certainty": of_canvases.losses[:, 1].mean(),
            "encoder": of_next_tokens.losses[:, 0].mean(),
        }

        sums = self._sums["" if model.training else "eval_"]
        loss = torch.zeros((), device=output.logits.device)
        for name, term in terms.items():
            sums[f"{name}_loss"].append(term.detach())
            loss = loss + getattr(args, f"{name}_weight") * term
        return (loss, {"logits": output.logits}) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the means of the terms since the last log."""
        for prefix, sums in self._sums.items():
            if f"{prefix}loss" not in logs:
                continue
            for name, values in sums.items():
                mean = self.accelerator.reduce(torch.stack(values).mean(), reduction="mean")
                logs[f"{prefix}{name}"] = mean.item()
            sums.clear()

        super().log(logs, *args, **kwargs)


def _make_masks(
    model: PreTrainedModel, clean: torch.LongTensor, position_ids: torch.LongTensor
) -> dict[str, torch.Tensor]:
    """Returns the masks of both kinds of layers, for canvases at `position_ids`, `(rows, tokens)`.

    A canvas sees itself, and the clean tokens before it; in sliding layers as many of those as fit into the window.
    """
    config = model.config.text_config
    rows, num_tokens = position_ids.shape
    num_clean = clean.shape[1]
    tokens = torch.arange(num_tokens, device=clean.device)
    canvas = tokens // model.config.canvas_length
    start = position_ids - tokens % model.config.canvas_length

    def full(row, head, query, key):
        own = key - num_clean
        return torch.where(own < 0, key < start[row, query], canvas[own.clamp(min=0)] == canvas[query])

    def sliding(row, head, query, key):
        is_near = start[row, query] - key < config.sliding_window
        return full(row, head, query, key) & ((key >= num_clean) | is_near)

    shape = (rows, num_tokens, num_clean + num_tokens)
    form = {"dtype": model.dtype, "device": clean.device}
    return {
        "full_attention": make_attention_mask(config, full, shape, **form),
        "sliding_attention": make_attention_mask(config, sliding, shape, **form),
    }
