# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Runs the official dParallel samplers for `decode.py --against`, in an environment that they run in.

Imports nothing of hf-dparallel. Reads a task in JSON from standard input, and writes the results to the given file.
"""

import importlib
import json
import statistics
import sys
import time
import types

import torch


def load(task):
    """Returns the official model and its sampling functions by name."""
    is_dream = task["model_type"] == "Dream"
    sys.path.insert(0, f"{task['checkout']}/{'Dream' if is_dream else 'LLaDA'}")
    module = importlib.import_module("model.modeling_dream" if is_dream else "model.modeling_llada")
    model_class = module.DreamModel if is_dream else module.LLaDAModelLM
    model = model_class.from_pretrained(task["weights"], torch_dtype=getattr(torch, task["dtype"]))
    model = model.to(task["device"]).eval()
    if not is_dream:
        return model, vars(importlib.import_module("generate"))
    mixin = importlib.import_module("model.generation_utils_semiar").DreamGenerationMixin
    model._sample = types.MethodType(mixin._sample, model)
    return model, {"diffusion_generate": mixin.diffusion_generate}


def decode(model, functions, task, run, prompt):
    """Decodes the prompt and returns all tokens and the number of passes."""
    function = functions[run["function"]]
    length, block_length, threshold = run["gen_length"], run["block_length"], run["threshold"]
    if task["model_type"] != "Dream":
        return function(
            model,
            prompt,
            steps=length,
            gen_length=length,
            block_length=block_length,
            threshold=threshold,
            mask_id=task["mask_token_id"],
        )
    output, nfe = function(
        model,
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=length,
        return_dict_in_generate=True,
        steps=length,
        temperature=0.0,
        alg="entropy_threshold",
        block_length=block_length,
        threshold=threshold,
    )
    return output.sequences, nfe


def peak_memory(task, function):
    """Megabytes that a call needs at most, beyond what was in use before it."""
    if task["device"] == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before


def resident(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024


def main():
    task = json.load(sys.stdin)
    torch.set_num_threads(task["num_threads"])
    model, functions = load(task)
    prompt = torch.tensor(task["prompt"], device=task["device"])
    clock = time.process_time if task["device"] == "cpu" else time.perf_counter
    results = []
    with torch.no_grad():
        for run in task["runs"]:
            seconds = []
            for _ in range(task["repeats"]):
                start = clock()
                sequences, nfe = decode(model, functions, task, run, prompt)
                tokens = sequences[0, prompt.shape[1] :].tolist()
                seconds.append(clock() - start)
            short = run | {"gen_length": run["block_length"]}
            memory = peak_memory(task, lambda: decode(model, functions, task, short, prompt))  # noqa: B023
            results.append(
                {
                    "seconds": statistics.median(seconds),
                    "nfe": int(nfe),
                    "peak_memory_mb": memory,
                    "tokens": tokens,
                }
            )
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
