# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What packed weights save on a CPU: in a pass, and in an answer of three passes with the check of each call.

    python benchmarks/packed_products.py --output benchmarks/results/packed_products_epyc.json

CPU time of one thread, with random weights. All take turns; the least of each counts.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from hf_dparallel import LLaDAForMaskedDiffusion
from hf_dparallel.environment import describe_environment
from hf_dparallel.generation.packed_products import packed_products
from hf_dparallel.models.llada.configuration_llada import LLaDAConfig
from hf_dparallel.reports import markdown_table, write_json


def make_model(num_layers: int) -> LLaDAForMaskedDiffusion:
    """Returns a random LLaDA, of 93 million weights where it has six layers."""
    size = {"d_model": 1024, "n_layers": num_layers, "n_heads": 16, "n_kv_heads": 16, "mlp_hidden_size": 2816}
    torch.manual_seed(0)
    tokens = {"vocab_size": 8000, "mask_token_id": 7000, "eos_token_id": 1, "pad_token_id": 1}
    return LLaDAForMaskedDiffusion(LLaDAConfig(**size, **tokens)).eval()


@torch.no_grad()
def measure(num_layers: int, repeats: int) -> dict[str, float]:
    """Returns milliseconds by what takes them: "check", and passes and answers that are "plain" or "packed"."""
    torch.set_num_threads(1)
    model = make_model(num_layers)
    products = packed_products(model)

    prompt = torch.arange(8)[None]
    answer = {"max_new_tokens": 24, "block_length": 24, "denoising_steps": 3, "stop_at_eos": False}
    least: dict[str, float] = {}

    def time_it(name: str, function: Callable, *args, **kwargs) -> None:
        start = time.process_time()
        function(*args, **kwargs)
        least[name] = min(least.get(name, float("inf")), 1e3 * (time.process_time() - start))

    for _ in range(repeats):
        time_it("check", packed_products, model)
        for version, context in (("plain", nullcontext()), ("packed", products)):
            with context:
                for columns in (32, 96):
                    input_ids, kept = torch.arange(columns)[None], torch.arange(32)
                    time_it(f"pass of {columns} columns, {version}", model, input_ids, logits_to_keep=kept)
        for version in ("plain", "packed"):
            with torch.backends.mkldnn.flags(enabled=version == "packed"):
                time_it(f"answer of 3 passes, {version}", model.generate, prompt, **answer)
    return least


def main() -> None:
    """Prints the table, and writes it where `--output` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--output", help="JSON file for the figures")
    arguments = parser.parse_args()
    milliseconds = measure(arguments.num_layers, arguments.repeats)
    print(markdown_table(("", "ms"), [(name, f"{value:.0f}") for name, value in milliseconds.items()]))
    if arguments.output:
        write_json({"ms": milliseconds, "environment": describe_environment()}, arguments.output)


if __name__ == "__main__":
    main()
