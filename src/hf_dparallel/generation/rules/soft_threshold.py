# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The rule of soft decoding (DMax): tokens from left to right."""

from ..commit_rules import commit_rule, most_certain


@commit_rule(
    "soft_threshold",
    float,
    help="Soft decoding: commit the masked tokens before the first one below this probability. Until the block is "
    "left, each pass decides all committed tokens anew, and sees them mixed with the mask token. For models that "
    "were trained for it.",
    noun="a probability",
    maximum=1,
    source="https://huggingface.co/papers/2604.08302",
    counts_as=("commit rule with a threshold", "revision"),
    not_with=("revision", "compile_config"),
    model={"takes_embeddings": "feeds mixtures of embeddings, and {model} takes no `inputs_embeds`"},
)
def commit_prefix(prediction, masked, threshold):
    stops = masked & ~(prediction.confidence >= threshold)
    # The masks of a row come first, from left to right.
    return masked & ((stops.cumsum(dim=-1) == 0) | most_certain(-prediction.columns.float(), masked))
