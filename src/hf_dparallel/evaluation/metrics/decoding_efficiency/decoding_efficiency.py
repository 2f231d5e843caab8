# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What answers cost, as a module of `evaluate`."""

import datasets
import evaluate

from hf_dparallel.evaluation.cost import decoding_efficiency


_DESCRIPTION = "Forward passes of an answer, tokens per pass with and without padding, tokens per second, latency."
_CITATION = """@article{qian2026d3llm,
  title = {d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation},
  author = {Yu-Yang Qian and Junda Su and Lanxiang Hu and Peiyuan Zhang and Zhijie Deng and Peng Zhao and Hao Zhang},
  journal = {arXiv preprint arXiv:2601.07568},
  year = {2026}
}"""
_INPUTS = r"""
Args:
    predictions (`list[list[int]]`): new tokens of each answer, with or without padding.
    nfe (`list[int]`): forward passes of each answer.
    eos_token_id (`int` or `list[int]`): the token, or tokens, that end an answer.
    max_new_tokens (`int`, *optional*): tokens on the canvas of each answer; by default those in `predictions`.
    latency_s (`list[float]`, *optional*): seconds that each answer took.
Returns:
    The figures of `hf_dparallel.evaluation.cost.decoding_efficiency`.
Example:

    >>> from hf_dparallel.evaluation import metrics
    >>> efficiency = metrics.load("decoding_efficiency")
    >>> efficiency.compute(predictions=[[11, 12, 13, 2], [11, 2, 2, 2]], nfe=[2, 2], eos_token_id=2)
    {'nfe': 2.0, 'num_tokens': 3.0, 'num_answer_tokens': 2.0, 'tokens_per_forward': 1.5,
     'answer_tokens_per_forward': 1.0, 'tokens_per_forward_with_padding': 2.0}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class DecodingEfficiency(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Sequence(number), "nfe": number}),
        )

    def _compute(self, predictions, nfe, eos_token_id, max_new_tokens=None, latency_s=None):
        return decoding_efficiency(
            predictions, nfe, eos_token_id=eos_token_id, max_new_tokens=max_new_tokens, latency_s=latency_s
        )
