# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a pass of DiffusionGemma costs outside of the model, beside transformers' own `generate`.

    python benchmarks/canvas_time.py --output benchmarks/results/canvas_time.json

CPU time of one thread, with a small random model and a large vocabulary. The model is the decoder with its head and
self-conditioning, and the encoder. Both take turns with the same numbers; the least of each counts.
"""

import argparse
import time
from typing import Any
from unittest.mock import patch

import torch
from speed import recorded
from transformers import DiffusionGemmaConfig
from transformers import DiffusionGemmaForBlockDiffusion as PublishedModel

from hf_dparallel import DiffusionGemmaForBlockDiffusion
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


PROMPT_LENGTH, NUM_CANVASES, PASSES = 32, 2, 12


def make_model(vocab_size: int, canvas_length: int) -> DiffusionGemmaForBlockDiffusion:
    """Returns a random model of 4 layers, whose rows decode for all of their passes."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    text = heads | {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "global_head_dim": 32,
        "num_global_key_value_heads": 2,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "sliding_window": 64,
    }
    vision = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "head_dim": 8}
    vision |= {"num_attention_heads": 1, "num_key_value_heads": 1, "position_embedding_size": 4}
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=canvas_length, image_token_id=vocab_size
    )
    torch.manual_seed(0)
    return DiffusionGemmaForBlockDiffusion(config).eval()


def measure(vocab_size: int, canvas_length: int, repeats: int) -> dict[str, dict[str, float]]:
    """Returns milliseconds of a decoder pass, by whose `generate` it is: of the whole, and outside of the model."""
    torch.set_num_threads(1)
    model = make_model(vocab_size, canvas_length)
    prompt = torch.randint(3, vocab_size, (1, PROMPT_LENGTH), generator=torch.Generator().manual_seed(0))
    settings = {"max_new_tokens": NUM_CANVASES * canvas_length, "max_denoising_steps": PASSES}
    # By whose it is: the class whose `generate` is called, and the methods that are the model.
    versions = {
        "transformers": (PublishedModel, [(model, "forward"), (model.model.encoder, "forward")]),
        "ours": (DiffusionGemmaForBlockDiffusion, [(model, name) for name in ("score", "condition")]),
    }
    versions["ours"][1].append((model, "expected_embeddings"))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in versions}
    for _ in range(repeats):
        for name, (cls, of_model) in versions.items():
            model.__class__ = cls
            model.generation_config = cls.generation_config_class(**settings)
            found[name].append(_time(model, prompt, of_model))
    passes = NUM_CANVASES * PASSES
    return {
        name: {"whole": 1000 * min(runs)[0] / passes, "outside": 1000 * min(run[1] for run in runs) / passes}
        for name, runs in found.items()
    }


def _time(model: Any, prompt: torch.LongTensor, of_model: list[tuple[Any, str]]) -> tuple[float, float]:
    """Times a call of `generate`, as a whole and outside of the model."""
    inside: list[float] = []
    timed = [patch.object(owner, name, recorded(getattr(owner, name), inside)) for owner, name in of_model]
    for each in timed:
        each.start()
    torch.manual_seed(0)
    start = time.thread_time()
    model.generate(prompt)
    whole = time.thread_time() - start
    for each in timed:
        each.stop()
    return whole, whole - sum(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab_size", type=int, default=32768)
    parser.add_argument("--canvas_length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", help="JSON file for the figures")
    arguments = parser.parse_args()
    found = measure(arguments.vocab_size, arguments.canvas_length, arguments.repeats)
    rows = [(name, f"{times['whole']:.1f}", f"{times['outside']:.1f}") for name, times in found.items()]
    print(markdown_table(("generate", "a pass, ms", "outside of the model, ms"), rows))
    share = found["ours"]["outside"] / found["transformers"]["outside"]
    print(f"\nOutside of the model we take {share:.2f} of the time of transformers.")
    if arguments.output:
        write_json({"ms_of_a_pass": found, "environment": describe_environment()}, arguments.output)


if __name__ == "__main__":
    main()
