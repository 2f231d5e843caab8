# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Measures of speed for the other scripts: models of any shape with random weights, times, memory, the least time.

Random weights are certain of nothing, so the tokens to commit are counted out: as many passes as asked for, spread
over the blocks, whatever the model predicts. So are the drafts that exact decoding accepts.
"""

import contextlib
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoModelForMaskedLM, CompileConfig, PreTrainedConfig, PreTrainedModel

from hf_dparallel.exact.decoder import SpeculativeDecoder
from hf_dparallel.generation.configuration import DiffusionGenerationConfig, resolve
from hf_dparallel.models.a2d.modeling_a2d import A2DLlamaForMaskedDiffusion
from hf_dparallel.models.dream.configuration_dream import DreamConfig
from hf_dparallel.models.llada.configuration_llada import LLaDAConfig
from hf_dparallel.models.sdar.configuration_sdar import SDARConfig


# Of exact decoding: a Llama with masks after its row.
_EXACT: dict[str, Any] = {
    "block_length": 16,
    "causal_past": True,
    "shift_logits": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_Llama: Any = A2DLlamaForMaskedDiffusion.config_class

SHAPES: dict[str, PreTrainedConfig] = {
    "llada-8b": LLaDAConfig(),
    "dream-7b": DreamConfig(),
    "sdar-8b": SDARConfig(),
    "llama-8b": _Llama(
        vocab_size=128256,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        max_position_embeddings=8192,
        mask_token_id=128256,
        **_EXACT,
    ),
    "small": LLaDAConfig(d_model=512, n_layers=8, n_heads=8, mlp_hidden_size=1536),
    "small-dream": DreamConfig(
        hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, intermediate_size=1536
    ),
    # With the vocabulary of "small", too, to be compared with it.
    "small-sdar": SDARConfig(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=126464,
        mask_token_id=126336,
        bos_token_id=126080,
        eos_token_id=126081,
    ),
    "tiny": LLaDAConfig(
        d_model=64,
        n_layers=2,
        n_heads=4,
        mlp_hidden_size=128,
        vocab_size=512,
        mask_token_id=500,
        eos_token_id=481,
        pad_token_id=481,
    ),
    "tiny-sdar": SDARConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=512,
        mask_token_id=500,
        eos_token_id=481,
        pad_token_id=481,
        bos_token_id=481,
    ),
    "tiny-llama": _Llama(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=4096,
        mask_token_id=512,
        **_EXACT,
    ),
}
# Exact decoding rejects the draft of one token in so many of an answer, so a pass decides about as many. Adapters of
# docs/exact.md reach 4.5.
REJECTED_EVERY = 4
# Times of one measurement: no further call after so many seconds.
_LONGEST = 20.0
# Wide enough for entropies between 0 and several nats.
_HEAD_LOGIT_STD = 6.0


def random_model(
    shape: str | PreTrainedConfig, dtype: torch.dtype, device: str, attn_implementation: str = "sdpa"
) -> PreTrainedModel:
    """Makes a model of one of `SHAPES` with random weights, always the same ones, directly on the device."""
    config = SHAPES[shape] if isinstance(shape, str) else shape
    config._attn_implementation = attn_implementation
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config, dtype=dtype)
    model = model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                is_head = name.startswith("lm_head")
                std = _HEAD_LOGIT_STD / config.hidden_size**0.5 if is_head else config.initializer_range
                parameter.normal_(std=std, generator=generator)
        # The mask token scores 0 everywhere: the published samplers never end where it is the likeliest. That of exact
        # decoding is none of the vocabulary.
        model.lm_head.weight[config.mask_token_id : config.mask_token_id + 1] = 0
        # The rotary embedding's buffers are not parameters, and were made on the meta device.
        with torch.device(device):
            model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@dataclass
class Machine:
    """What a machine can do at best.

    Args:
        bandwidth (`float`): bytes per second, read from memory in matrix-vector products.
        flops (`float`): floating-point operations per second in matrix products.
    """

    bandwidth: float
    flops: float


def measure_machine(dtype: torch.dtype, device: str) -> Machine:
    """Measures memory bandwidth and compute rate with large matrices of `dtype`."""
    size = 16384 if device == "cuda" else 4096
    matrix = torch.randn(size, size, device=device).to(dtype)
    vector, other = matrix[:, :1].contiguous(), matrix[: size // 2].contiguous()
    return Machine(
        bandwidth=matrix.nbytes / _seconds_per_call(lambda: matrix @ vector, device),
        flops=2 * size * size * (size // 2) / _seconds_per_call(lambda: other @ matrix, device),
    )


def floor_seconds(
    model: PreTrainedModel, machine: Machine, num_tokens: int, num_scored: int, num_keys: int = 0
) -> float:
    """Returns the least time of a pass over `num_tokens` positions, `num_scored` with the head, that see `num_keys`.

    Every weight, key and value has to be read once, and every weight is multiplied once for each position; what
    attention multiplies is left out.
    """
    head = model.lm_head.weight.numel()
    body = sum(parameter.numel() for parameter in model.model.layers.parameters())
    operations = 2 * (body * num_tokens + head * num_scored)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    read = body + head + 2 * num_keys * config.num_hidden_layers * config.num_key_value_heads * head_dim
    return max(read * model.dtype.itemsize / machine.bandwidth, operations / machine.flops)


def measure_decoding(
    model: PreTrainedModel,
    machine: Machine,
    *,
    batch_size: int,
    prompt_length: int,
    max_new_tokens: int,
    block_length: int,
    passes: int,
    cache: str | None,
    repeats: int,
    compiled: bool = False,
    profiled: bool = False,
) -> dict[str, Any]:
    """Decodes random prompts, and returns a row of the table.

    A profiled decode, after the timed ones, counts launches and waits.
    """
    config = fixed_recipe(model, max_new_tokens, block_length, cache).updated(denoising_steps=passes)
    prompts = random_prompts(model, batch_size, prompt_length)
    # On average half of a block is still masked.
    num_scored = batch_size * (block_length + 1) // 2
    # The block cache grows.
    num_keys = batch_size * (prompt_length + max_new_tokens // (2 if cache == "block" else 1))
    figures = _measure(model, machine, config, prompts, num_scored, num_keys, repeats, compiled, profiled)
    return {"batch_size": batch_size, "cache": cache or "none"} | figures


def measure_exact(
    model: PreTrainedModel,
    machine: Machine,
    *,
    batch_size: int,
    prompt_length: int,
    max_new_tokens: int,
    repeats: int,
    compiled: bool = False,
    profiled: bool = False,
) -> dict[str, Any]:
    """Decodes random prompts exactly, by a [`CountedDecoder`], and returns a row of the table."""
    recipe = DiffusionGenerationConfig(max_new_tokens=max_new_tokens, confidence_threshold=1e-9, stop_at_eos=False)
    prompts = random_prompts(model, batch_size, prompt_length)
    # Scores are those of drafts and masks, up to a block of them.
    num_scored = batch_size * model.config.block_length
    num_keys = batch_size * (prompt_length + max_new_tokens // 2)
    with mock.patch("hf_dparallel.exact.causal_past.SpeculativeDecoder", CountedDecoder):
        config = resolve(model, recipe)
        figures = _measure(model, machine, config, prompts, num_scored, num_keys, repeats, compiled, profiled)
    return {"batch_size": batch_size, "tokens_per_pass": max_new_tokens / figures["passes"]} | figures


class CountedDecoder(SpeculativeDecoder):
    """Accepts the drafts of an answer but each one that is `REJECTED_EVERY` after another."""

    def _predict_causal(self, columns: torch.LongTensor, *args: Any) -> Any:
        prediction = super()._predict_causal(columns, *args)
        drafts = self.canvas.drafts.value.gather(1, columns)
        number = self.canvas.block.gather(1, columns)
        is_rejected = number % REJECTED_EVERY == REJECTED_EVERY - 1
        counted = torch.where(is_rejected, (drafts + 1) % self.model.config.vocab_size, drafts)
        prediction.tokens = torch.where(drafts == self.config.mask_token_id, prediction.tokens, counted)
        return prediction


def _measure(
    model: PreTrainedModel,
    machine: Machine,
    config: DiffusionGenerationConfig,
    prompts: torch.LongTensor,
    num_scored: int,
    num_keys: int,
    repeats: int,
    compiled: bool,
    profiled: bool,
) -> dict[str, Any]:
    """Times calls of `generate`, after some that warm up, compile and record."""
    device = model.device.type
    batch_size = len(prompts)
    nfe: list[int] = []

    def decode() -> None:
        out = model.generate(prompts, config, return_dict_in_generate=True)
        nfe.append(int(out.nfe.max()))

    # Each measurement has its own shapes, and torch compiles only so many.
    torch.compiler.reset()
    # This also warms up.
    with computed_widths(model) as computed:
        memory = measure_peak_memory(decode, device)
    first_seconds = None
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    if compiled:
        config = config.updated(compile_config=CompileConfig())
        start = time.perf_counter()
        memory = measure_peak_memory(decode, device)
        first_seconds = time.perf_counter() - start
        # CUDA graphs are recorded the second time that a shape is met.
        decode()

    times: list[float] = []
    while len(times) < repeats and sum(times) < _LONGEST:
        times.append(timed(decode, device))
    seconds = statistics.median(times)
    # Some more than asked for where a block-causal model shares a block between prompt and answer.
    passes = nfe[-1]
    floors = [floor_seconds(model, machine, batch_size * tokens, num_scored, num_keys) for tokens in computed]
    floor = statistics.mean(floors)
    row = {
        "compiled": compiled,
        "passes": passes,
        "seconds": times,
        "ms_per_pass": 1000 * seconds / passes,
        "tokens_per_s": batch_size * config.max_new_tokens / seconds,
        "floor_ms_per_pass": 1000 * floor,
        "part_of_floor": floor * passes / seconds,
        "peak_memory_mb": memory,
        "first_call_s": first_seconds,
        # CUDA graphs keep memory in which nothing is allocated.
        "reserved_mb": (torch.cuda.memory_reserved() - reserved) / 2**20,
    }
    if profiled:
        try:
            row |= _profile(decode, passes, seconds)
        except RuntimeError as error:
            # The times are more than what they are made of.
            row["profile_error"] = str(error)
    return row


def _profile(decode: Callable[[], Any], passes: int, seconds: float) -> dict[str, Any]:
    """Counts a pass's launches on a GPU and waits for it, and the part of `seconds` in which the GPU is busy."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        decode()
    averages, on_gpu = profile.key_averages(), torch.profiler.DeviceType.CUDA

    def count(*words: str) -> float:
        return sum(event.count for event in averages if any(word in event.key for word in words)) / passes

    return {
        "launches": count("LaunchKernel", "GraphLaunch"),
        "waits": count("StreamSynchronize", "DeviceSynchronize", "EventSynchronize"),
        # Events that launch a kernel have its time, too.
        "busy": sum(event.self_device_time_total for event in averages if event.device_type == on_gpu) / 1e6 / seconds,
    }


def fixed_recipe(
    model: PreTrainedModel, max_new_tokens: int, block_length: int, cache: str | None
) -> DiffusionGenerationConfig:
    """Makes settings with which random weights take a fixed number of passes."""
    recipe = DiffusionGenerationConfig(
        max_new_tokens=max_new_tokens,
        block_length=block_length,
        stop_at_eos=False,
        cache_implementation=cache,
        # Block-causal models have a cache unless told otherwise.
        use_cache=None if cache else False,
    )
    return resolve(model, recipe)


def random_prompts(model: PreTrainedModel, batch_size: int, length: int) -> torch.LongTensor:
    """Draws random token ids, `(batch_size, length)`, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(10, 450, (batch_size, length), generator=generator).to(model.device)


def measure_peak_memory(function: Callable[[], Any], device: str) -> float | None:
    """Megabytes that a call needs at most, beyond what was in use before it.

    On a CPU only Linux counts them; elsewhere the function is called and `None` returned.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if sys.platform != "linux":
        function()
        return None
    # Freed memory must not hide what is needed now. C libraries other than glibc give memory back at once.
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)(0)
    # The kernel tracks the peak of a process, and resets it on request.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident_mb("VmRSS")
    function()
    return _resident_mb("VmHWM") - before


@contextlib.contextmanager
def computed_widths(model: PreTrainedModel) -> Iterator[list[int]]:
    """Collects how many columns each pass computes."""
    widths: list[int] = []
    hook = model.model.layers[0].register_forward_hook(lambda module, args, output: widths.append(output.shape[1]))
    try:
        yield widths
    finally:
        hook.remove()


def timed(function: Callable[[], Any], device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds of a call, until the device is done."""
    _wait(device)
    start = clock()
    function()
    _wait(device)
    return clock() - start


def _seconds_per_call(function: Callable[[], Any], device: str, count: int = 5) -> float:
    """Times several calls together, so that neither their launch nor the wait for the last one counts."""
    function()
    return timed(lambda: [function() for _ in range(count)], device) / count


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _resident_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
