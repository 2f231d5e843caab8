# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The commit rules as a scheduler for pipelines of the library diffusers. Needs the extra `[diffusers]`.

Copy this file beside yours; docs/engines.md shows its use.
"""

import torch
from diffusers import BlockRefinementScheduler
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementSchedulerOutput

from hf_dparallel import DiffusionGenerationConfig
from hf_dparallel.generation.prediction import predict_tokens
from hf_dparallel_rules.commit_rules import make_rule, rules_of_one_pass


class CommitRuleScheduler(BlockRefinementScheduler):
    """
    A scheduler for [`~diffusers.LLaDA2Pipeline`] that commits tokens by one of the rules of this package.

    The pipeline's `threshold` and `minimal_topk` have no effect; its sampling and editing arguments have theirs. Give
    `num_inference_steps` the length of a block, and every block is filled: a rule commits at least one token a pass.

    Args:
        rule (`str`, *optional*, defaults to `"entropy_threshold"`):
            The setting of a commit rule that needs nothing but the predictions of a pass.
        value (`float`, *optional*, defaults to 0.5):
            Its value.
        block_length (`int`, *optional*, defaults to 32):
            Tokens of a block.
        editing_threshold (`float`, *optional*):
            As in [`~diffusers.BlockRefinementScheduler`].

    Raises:
        ValueError: if there is no such rule, it cannot have this value, or it looks beyond a pass.

    Example:

    ```python
    >>> from diffusers import LLaDA2Pipeline

    >>> pipeline = LLaDA2Pipeline(model, CommitRuleScheduler("entropy_threshold", 0.5), tokenizer)  # doctest: +SKIP
    ```
    """

    @register_to_config
    def __init__(
        self,
        rule: str = "entropy_threshold",
        value: float = 0.5,
        block_length: int = 32,
        editing_threshold: float | None = None,
    ):
        super().__init__(block_length=block_length, editing_threshold=editing_threshold)
        if rule not in rules_of_one_pass():
            fitting = ", ".join(rules_of_one_pass())
            raise ValueError(f"`rule={rule!r}` cannot be used here. Choose one of {fitting}.")
        config = DiffusionGenerationConfig(**{rule: value}, min_commits=1, max_active_blocks=1)
        self._rule = make_rule(config, canvas=None)  # type: ignore[arg-type]  # no rule of one pass reads it

    @torch.no_grad()
    def step(
        self,
        model_output: torch.Tensor,
        timestep: int | torch.Tensor,
        sample: torch.LongTensor,
        *,
        mask_token_id: int | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        editing_threshold: float | None = None,
        prompt_mask: torch.BoolTensor | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
        **kwargs,
    ) -> BlockRefinementSchedulerOutput | tuple:
        """Commits and edits tokens of a block, as [`~diffusers.BlockRefinementScheduler.step`] does by its own rule.

        Raises:
            ValueError: without `mask_token_id`, by pipelines of models whose noise is no mask token.
        """
        if mask_token_id is None:
            raise ValueError(
                "`mask_token_id` is not given: a commit rule decides masks, and this pipeline has noise of another "
                "kind. Use a scheduler of diffusers."
            )
        generators = [generator] * len(sample) if generator is not None else None
        prediction = predict_tokens(model_output, mask_token_id, temperature, top_k, top_p, generators)
        masked = sample == mask_token_id
        committed = self._rule(prediction, masked)
        self._is_full = ~(masked & ~committed).any(dim=1)
        edited = torch.zeros_like(masked)
        threshold = self.config.editing_threshold if editing_threshold is None else editing_threshold
        if threshold is not None and threshold > 0:
            likeliest = predict_tokens(model_output, mask_token_id)
            edited = ~masked & (likeliest.tokens != sample) & (likeliest.confidence > threshold)
            edited = edited if prompt_mask is None else edited & ~prompt_mask
            prediction.tokens = torch.where(edited, likeliest.tokens, prediction.tokens)
        output = BlockRefinementSchedulerOutput(
            prev_sample=torch.where(committed | edited, prediction.tokens, sample),
            transfer_index=committed,
            editing_transfer_index=edited,
            sampled_tokens=prediction.tokens,
            sampled_probs=prediction.confidence,
            pred_logits=model_output,
        )
        return output if return_dict else output.to_tuple()

    def check_block_should_continue(self, *, editing_enabled: bool, finished: torch.BoolTensor, **kwargs) -> bool:
        """Checks as [`~diffusers.BlockRefinementScheduler`], but without a last pass over a block that is full."""
        is_done = not editing_enabled and bool((self._is_full | finished).all())
        return not is_done and super().check_block_should_continue(
            editing_enabled=editing_enabled, finished=finished, **kwargs
        )
