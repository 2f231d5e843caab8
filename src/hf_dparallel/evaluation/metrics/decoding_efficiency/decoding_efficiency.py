# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What answers cost, as a module of `evaluate`."""

from datasets import Sequence, Value

from hf_dparallel.evaluation import cost
from hf_dparallel.evaluation.metrics.factory import D3LLM_CITATION, metric


@metric(D3LLM_CITATION, predictions=Sequence(Value("int64")), nfe=Value("int64"))
def decoding_efficiency(predictions, nfe, eos_token_id, **options):
    """Forward passes of an answer, tokens per pass with and without padding, tokens per second, latency.

    Args:
        predictions (`list[list[int]]`): new tokens of each answer, with or without padding.
        nfe (`list[int]`): forward passes of each answer.
        eos_token_id (`int` or `list[int]`): the token, or tokens, that end an answer.
        **options: `max_new_tokens` and `latency_s` of `hf_dparallel.evaluation.cost.decoding_efficiency`.
    Returns:
        What `hf_dparallel.evaluation.cost.decoding_efficiency` returns.
    Example:

        >>> from hf_dparallel.evaluation import metrics
        >>> efficiency = metrics.load("decoding_efficiency")
        >>> efficiency.compute(predictions=[[11, 12, 13, 2], [11, 2, 2, 2]], nfe=[2, 2], eos_token_id=2)
        {'nfe': 2.0, 'num_tokens': 3.0, 'num_answer_tokens': 2.0, 'tokens_per_forward': 1.5,
         'answer_tokens_per_forward': 1.0, 'tokens_per_forward_with_padding': 2.0}
    """
    return cost.decoding_efficiency(predictions, nfe, eos_token_id=eos_token_id, **options)
