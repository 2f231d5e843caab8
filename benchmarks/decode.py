# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Speed of decoding beside the official dParallel code, on the same weights.

    python benchmarks/decode.py --shape small --against ../dParallel --against_python ../official-env/bin/python

A checkout of https://github.com/czg1225/dParallel decodes the same prompt with the same random weights in the same
run, with its own modelling code in an environment of its own (it needs transformers 4.49 and einops), and the tokens
are compared. Both use an entropy threshold that takes about `--passes` passes. On a CPU, seconds are CPU time.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from speed import SHAPES, fixed_recipe, measure_peak_memory, random_model, random_prompts, timed
from transformers import HfArgumentParser, PreTrainedModel

from hf_dparallel import LLaDAConfig
from hf_dparallel.environment import describe_environment
from hf_dparallel.reports import markdown_table, write_json


# By our name, the published function of each model.
OFFICIAL_FUNCTIONS = {
    "llada": {
        "none": "generate",
        "prefix": "generate_with_prefix_cache",
        "dual": "generate_with_dual_cache",
    },
    "Dream": {"none": "diffusion_generate"},
}
# Fields of the published configuration, beside the sizes, that our class takes for granted.
OFFICIAL_LLADA_CONFIG = {
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_type": "llama",
    "embedding_dropout": 0.0,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_device": "meta",
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "residual_dropout": 0.0,
    "rope": True,
    "rope_full_precision": True,
    "scale_logits": False,
}


@dataclass
class SpeedArguments:
    """What is decoded, and how."""

    against: str = field(metadata={"help": "A checkout of the official dParallel repository."})
    against_python: str = field(default=sys.executable, metadata={"help": "Python of an environment that runs it."})
    shape: str = field(default="small", metadata={"help": f"Shape of the model: {', '.join(SHAPES)}."})
    passes: int = field(default=64, metadata={"help": "Forward passes for an answer, about."})
    prompt_length: int = field(default=64, metadata={"help": "Tokens of a prompt."})
    max_new_tokens: int = field(default=256, metadata={"help": "Tokens of an answer."})
    block_length: int = field(default=32, metadata={"help": "Tokens of a block."})
    dtype: str = field(default="float32", metadata={"help": "Of the weights."})
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})
    repeats: int = field(default=3, metadata={"help": "Decodes that are timed; their median counts."})
    output: str | None = field(default=None, metadata={"help": "JSON file for the figures."})


def compare(arguments: SpeedArguments) -> dict[str, Any]:
    """Runs both implementations on one prompt and prints a table of both."""
    dtype = getattr(torch, arguments.dtype)
    model = random_model(arguments.shape, dtype, arguments.device)
    functions = OFFICIAL_FUNCTIONS[model.config.model_type]
    prompt = random_prompts(model, 1, arguments.prompt_length)
    threshold = find_threshold(model, prompt, arguments)
    settings = {"gen_length": arguments.max_new_tokens, "block_length": arguments.block_length, "threshold": threshold}
    runs = [{"function": functions[cache], **settings} for cache in functions]
    official = run_official(model, prompt, runs, arguments)
    rows, lines = [], []
    for cache, theirs in zip(functions, official, strict=True):
        ours = time_ours(model, prompt, threshold, arguments, cache)
        same = ours.pop("tokens") == theirs.pop("tokens")
        rows.append({"cache": cache, "ours": ours, "official": theirs, "same_tokens": same})
        for name, row in (("official", theirs), ("ours", ours)):
            figures = (row["nfe"], f"{row['seconds']:.2f}", f"{row['peak_memory_mb']:.0f}")
            lines.append((cache, name, same, *figures, f"{theirs['seconds'] / row['seconds']:.2f}"))
    header = ["Cache", "Code", "Same tokens", "Passes", "Seconds", "Memory, MB", "Speed-up"]
    print(f"\nentropy threshold {threshold:.4f}\n\n{markdown_table(header, lines, num_text_columns=3)}")
    return {
        "rows": rows,
        "threshold": threshold,
        "settings": vars(arguments),
        "num_threads": torch.get_num_threads(),
        "environment": describe_environment(),
    }


def find_threshold(model: PreTrainedModel, prompt: torch.LongTensor, arguments: SpeedArguments) -> float:
    """Bisects for the entropy threshold that decodes in about the wanted passes, with the fastest decoding."""
    low, high = 0.0, 12.0
    for _ in range(14):
        middle = (low + high) / 2
        nfe = decode(model, prompt, middle, arguments, "dual").nfe.item()
        if nfe == arguments.passes:
            return middle
        low, high = (middle, high) if nfe > arguments.passes else (low, middle)
    return middle


def decode(model: PreTrainedModel, prompt: torch.LongTensor, threshold: float, arguments: SpeedArguments, cache: str):
    """Calls our `generate` with an entropy threshold."""
    config = fixed_recipe(model, arguments.max_new_tokens, arguments.block_length, None if cache == "none" else cache)
    return model.generate(prompt, generation_config=config, entropy_threshold=threshold, return_dict_in_generate=True)


def time_ours(
    model: PreTrainedModel, prompt: torch.LongTensor, threshold: float, arguments: SpeedArguments, cache: str
) -> dict[str, Any]:
    """Returns our `generate`'s median time, passes and tokens."""
    memory = measure_peak_memory(lambda: decode(model, prompt, threshold, arguments, cache), arguments.device)
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    seconds = [
        timed(lambda: decode(model, prompt, threshold, arguments, cache), arguments.device, clock)
        for _ in range(arguments.repeats)
    ]
    out = decode(model, prompt, threshold, arguments, cache)
    return {
        "seconds": statistics.median(seconds),
        "nfe": out.nfe.item(),
        "peak_memory_mb": memory,
        "tokens": out.sequences[0, prompt.shape[1] :].tolist(),
    }


def run_official(
    model: PreTrainedModel, prompt: torch.LongTensor, runs: list[dict[str, Any]], arguments: SpeedArguments
) -> list[dict[str, Any]]:
    """Runs the official functions on the same weights, in a process of the other environment."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder, "config.json")
        config = json.loads(path.read_text())
        if isinstance(model.config, LLaDAConfig):
            config |= OFFICIAL_LLADA_CONFIG | {"embedding_size": model.config.vocab_size}
        # The official classes read the older form.
        config |= {"rope_theta": model.config.rope_parameters["rope_theta"], "torch_dtype": arguments.dtype}
        path.write_text(json.dumps(config))
        task = {
            "checkout": str(Path(arguments.against).resolve()),
            "weights": folder,
            "model_type": model.config.model_type,
            "mask_token_id": model.config.mask_token_id,
            "prompt": prompt.tolist(),
            "runs": runs,
            "dtype": arguments.dtype,
            "device": arguments.device,
            "repeats": arguments.repeats,
            "num_threads": torch.get_num_threads(),
        }
        result = Path(folder, "result.json")
        subprocess.run(
            [arguments.against_python, str(Path(__file__).with_name("official_decode.py")), str(result)],
            input=json.dumps(task),
            text=True,
            check=True,
        )
        return json.loads(result.read_text())


def main() -> None:
    (arguments,) = HfArgumentParser(SpeedArguments).parse_args_into_dataclasses()
    figures = compare(arguments)
    if arguments.output is not None:
        write_json(figures, arguments.output)


if __name__ == "__main__":
    main()
