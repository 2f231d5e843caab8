# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""`hf-dparallel evaluate`: accuracy and cost of decoding on a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..evaluation.decoding import evaluate_decoding
from . import COMMANDS
from .arguments import (
    BatchArguments,
    CommandParser,
    DatasetArguments,
    DecodingArguments,
    LoadingArguments,
    OutputArguments,
)
from .console import say_table, write_json
from .loading import get_reward, load_model, load_prompts


@dataclass
class RewardArguments:
    reward: str = field(
        default="numeric",
        metadata={
            "help": "What makes an answer right. 'numeric': its last number is that of the column 'answer'. 'math': "
            "it is mathematically equal to the column 'solution' (needs math-verify).",
            "choices": ["numeric", "math"],
        },
    )


def run(argv: Sequence[str]) -> None:
    """Prints accuracy, passes, tokens per pass and latency."""
    parser = CommandParser(
        "evaluate",
        COMMANDS["evaluate"],
        [LoadingArguments, DatasetArguments, RewardArguments, BatchArguments, DecodingArguments, OutputArguments],
    )
    loading, data, reward, batch, decoding, output = parser.parse(argv)
    dataset = load_prompts(data, default_split="test")
    reward_function = get_reward(reward.reward, dataset)
    model, tokenizer = load_model(loading)
    recipe = decoding.to_generation_config()
    figures = evaluate_decoding(
        model, tokenizer, dataset, reward_function, recipe, batch.batch_size, seed=decoding.seed
    )
    say_table(figures)
    write_json(figures | {"dataset": data.dataset}, output.json)
