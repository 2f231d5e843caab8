# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Versions and devices that a program runs on."""

import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ._version import __version__


if TYPE_CHECKING:
    from accelerate import PartialState
    from transformers import PreTrainedModel

_PACKAGES = ("transformers", "peft", "trl", "datasets", "evaluate", "accelerate", "huggingface_hub", "lm_eval")


def describe_environment() -> dict[str, Any]:
    """Returns versions and devices."""
    # torch's own version has its build, "+cu132", which the metadata of a wheel may lack.
    versions = {"hf_dparallel": __version__, "torch": torch.__version__}
    for name in _PACKAGES:
        versions[name] = version(name) if find_spec(name) else "not installed"

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": device_name(torch.device("cpu")),
        "cpu_count": os.cpu_count(),
        "gpus": gpus,
        "bf16_on_gpu": bool(gpus) and torch.cuda.is_bf16_supported(),
    }


def describe_hardware(model: "PreTrainedModel") -> dict[str, Any]:
    """Returns the figures that decoding times depend on, beside the batch."""
    return {
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "attention": model.config._attn_implementation,
        "torch": torch.__version__,
    }


def device_name(device: torch.device) -> str:
    """Returns the name of the GPU, or of the processor, as far as the system tells."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def join_processes() -> "PartialState":
    """Returns the processes that `torchrun` started, this one among them. To be called before they could be needed."""
    from accelerate import PartialState

    # Without `cpu`, processes on a machine without accelerator would not know of one another.
    return PartialState(cpu=not torch.accelerator.is_available())


def require(feature: str, *libraries: str) -> None:
    """Raises an `ImportError` if an optional dependency is missing."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise ImportError(f"`{feature}` needs {', '.join(missing)}: `pip install {' '.join(missing)}`.")
