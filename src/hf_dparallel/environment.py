# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What a program runs on: versions and devices."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
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
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "hf_dparallel": __version__,
        # With its build, "+cu132", which the metadata of a wheel may lack.
        "torch": torch.__version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "gpus": gpus,
        "bf16_on_gpu": bool(gpus) and torch.cuda.is_bf16_supported(),
    }


def join_processes() -> "PartialState":
    """Returns the processes that `torchrun` started, this one among them. To be called before they could be needed."""
    from accelerate import PartialState

    # Without `cpu`, processes on a machine without accelerator would not know of one another.
    return PartialState(cpu=not torch.accelerator.is_available())


def describe_hardware(model: "PreTrainedModel") -> dict[str, Any]:
    """Returns what decoding times depend on, beside the batch."""
    return {
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "attention": model.config._attn_implementation,
        "torch": torch.__version__,
    }


def device_name(device: torch.device) -> str:
    """Returns the name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """Returns the name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def require(what: str, *libraries: str) -> None:
    """Checks that libraries are installed which this package can do without."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise ImportError(f"`{what}` needs {', '.join(missing)}: `pip install {' '.join(missing)}`.")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
