# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""What tells one model from another: answers are kept and used again for the same model only."""

import hashlib
import json

import torch
from accelerate.utils import align_module_device
from transformers import PreTrainedModel


# Values of a tensor that are summed at once.
_PART = 2**24
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# In a config: where it comes from, the type of the weights, which they have themselves, and what transformers adds in
# the first forward pass.
_NOT_COMPUTED = ("_name_or_path", "architectures", "dtype", "is_causal", "transformers_version")


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A hash of what a model computes, wherever it was loaded from: weights, adapters and how they act, config."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    hashed = hashlib.sha256()
    for name, module in model.named_modules():
        # Offloaded weights come back for a moment.
        with align_module_device(module):
            for kind, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                values = f"{tuple(tensor.shape)} {tensor.dtype} {_checksums(tensor)}"
                hashed.update(f"{name}.{kind} {values}".encode())
        if isinstance(module, BaseTunerLayer):
            scaling = sorted(getattr(module, "scaling", {}).items())
            hashed.update(f"{name} {module.disable_adapters} {module.active_adapters} {scaling}".encode())
    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in _NOT_COMPUTED}
    hashed.update(json.dumps([config, model._shift_logits_in_generate], sort_keys=True, default=str).encode())
    return hashed.hexdigest()


@torch.no_grad()
def _checksums(tensor: torch.Tensor) -> list[int]:
    """Sums of the bits of the values times their positions: exact, so the same on every device and in any order."""
    values = tensor.reshape(-1)
    values = values.view(_INTEGERS[values.element_size()])
    return [
        (part.long() * torch.arange(1, len(part) + 1, device=part.device)).sum().item() for part in values.split(_PART)
    ]
