# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a pass costs outside of the model, by the number of rows, beside another version of this package.

    git worktree add ../before COMMIT
    python benchmarks/host_time.py --before ../before/src --output benchmarks/results/host_time.json

CPU time of one thread, with a model so small that the loop counts. The versions take turns; the least of each counts.
"""

import argparse
import json
import os
import subprocess
import sys
from unittest.mock import patch

import torch
from speed import fixed_recipe, random_model, recorded

from hf_dparallel.environment import describe_environment
from hf_dparallel.generation.decoder import Decoder
from hf_dparallel.models.llada.configuration_llada import LLaDAConfig
from hf_dparallel.models.sdar.configuration_sdar import SDARConfig
from hf_dparallel.reports import markdown_table, write_json


# A small vocabulary, because reading the logits is no work of the host.
TOKENS = {"vocab_size": 64, "mask_token_id": 63, "eos_token_id": 1, "pad_token_id": 1}
MODELS = {
    "dual": LLaDAConfig(d_model=16, n_layers=1, n_heads=1, mlp_hidden_size=16, **TOKENS),
    "block": SDARConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=16,
        bos_token_id=1,
        **TOKENS,
    ),
}
PROMPT_LENGTH, MAX_NEW_TOKENS, BLOCK_LENGTH, PASSES = 32, 64, 32, 8


def measure(num_rows: list[int]) -> dict[str, float]:
    """Milliseconds of a pass outside of the model, by cache and rows. Prompts have many lengths."""
    torch.set_num_threads(1)
    found = {}
    for cache, config in MODELS.items():
        model = random_model(config, torch.float32, "cpu")
        recipe = fixed_recipe(model, MAX_NEW_TOKENS, BLOCK_LENGTH, cache).updated(denoising_steps=PASSES)
        for rows in num_rows:
            prompts = torch.randint(2, 60, (rows, PROMPT_LENGTH), generator=torch.Generator().manual_seed(0))
            mask = torch.arange(PROMPT_LENGTH) >= torch.arange(rows)[:, None] * 37 % (PROMPT_LENGTH - 4)
            passes, of_model = [], []
            with (
                patch.object(Decoder, "_run_pass", recorded(Decoder._run_pass, passes)),
                patch.object(model, "score", recorded(model.score, of_model)),
            ):
                model.generate(prompts, recipe, attention_mask=mask.long())
            found[f"{cache}, {rows}"] = 1000 * (sum(passes) - sum(of_model)) / len(passes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--before", help="folder of the sources of another version")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", help="JSON file for the figures")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.rows)))
        return
    versions = {"before": arguments.before, "now": None} if arguments.before else {"now": None}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    command = [sys.executable, __file__, "--measure", "--rows", *map(str, arguments.rows)]
    for _ in range(arguments.repeats):
        for name, source in versions.items():
            environment = os.environ | ({"PYTHONPATH": source} if source else {})
            output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            runs[name].append(json.loads(output.splitlines()[-1]))
    best = {name: {case: min(run[case] for run in found) for case in found[0]} for name, found in runs.items()}
    cases = [(case, *(f"{best[name][case]:.2f}" for name in versions)) for case in best["now"]]
    print(markdown_table(("Cache, rows", *(f"{name}, ms" for name in versions)), cases))
    if arguments.output:
        write_json({"ms_outside_of_the_model": best, "environment": describe_environment()}, arguments.output)


if __name__ == "__main__":
    main()
