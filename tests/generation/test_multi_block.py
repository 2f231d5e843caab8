# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Several blocks at once against recorded runs of d3LLM (https://huggingface.co/papers/2601.07568)."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM


def recorded_runs(golden_dir):
    """Those without its end of an answer and without its cache, which are other approximations than ours."""
    runs = [json.loads(line) for line in (golden_dir / "d3llm" / "generation.jsonl").read_text().splitlines()]
    assert len(runs) == 60
    return runs


def check_recorded(golden_dir, runs):
    models = {
        name: AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model") for name in ("llada", "llada_gqa")
    }
    for run in runs:
        params = run["params"]
        out = models[run["model"]].generate(
            torch.tensor([run["prompt_ids"]]),
            max_new_tokens=params["max_new_tokens"],
            block_length=params["block_size"],
            max_active_blocks=params["max_new_tokens"] // params["block_size"],
            block_add_threshold=params["block_add_threshold"],
            entropy_threshold=params["threshold"],
            mask_token_id=params["mask_id"],
            stop_at_eos=False,
            return_dict_in_generate=True,
        )
        assert out.sequences[0, len(run["prompt_ids"]) :].tolist() == run["generated_ids"], params
        assert out.nfe.item() == run["nfe_forward_calls"], params


def test_recorded_runs(golden_dir):
    runs = recorded_runs(golden_dir)
    check_recorded(golden_dir, [run for run in runs if run["nfe_forward_calls"] < 22])


@pytest.mark.slow
def test_all_recorded_runs(golden_dir):
    check_recorded(golden_dir, recorded_runs(golden_dir))
