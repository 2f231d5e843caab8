# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Hashes that are the same in every process: of a model, and of values that JSON can write."""

import hashlib
import json
from typing import Any

import torch
from accelerate.utils import align_module_device
from transformers import PreTrainedModel


# In a config: where it comes from, the type of the weights, and what transformers adds in the first forward pass.
_NOT_COMPUTED = ("_name_or_path", "architectures", "dtype", "is_causal", "transformers_version")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def stable_hash(*parts: Any) -> int:
    """Hashes values that JSON can write. The hash serves as a seed, too."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])


def model_hash(model: PreTrainedModel) -> str:
    """Hashes what a model computes, wherever it was loaded from: weights, adapters, configuration."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    hashed = hashlib.sha256()
    for name, module in model.named_modules():
        # Offloaded weights come back for a moment.
        with align_module_device(module), torch.no_grad():
            for kind, tensor in module.named_parameters(recurse=False):
                # Of integers, the sum is exact: the same on every device and in any order.
                bits = tensor.reshape(-1).view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64).item()
                hashed.update(f"{name}.{kind} {tuple(tensor.shape)} {tensor.dtype} {bits}".encode())
        if isinstance(module, BaseTunerLayer):
            scaling = sorted(getattr(module, "scaling", {}).items())
            hashed.update(f"{name} {module.disable_adapters} {module.active_adapters} {scaling}".encode())

    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in _NOT_COMPUTED}
    hashed.update(json.dumps([config, model.shift_logits], sort_keys=True, default=str).encode())
    return hashed.hexdigest()
