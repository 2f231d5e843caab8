# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""A stand-in for CUDA graphs on the CPU: what these forbid is forbidden, and what they overwrite is overwritten."""

import threading

import torch
from torch.profiler import record_function
from transformers import CompileConfig


class _Returned(threading.local):
    """What graphs have returned to a thread, and after how many passes had begun, in all threads."""

    def __init__(self):
        self.num_passes = 0
        self.tensors = []


class Graphs:
    """Runs traced graphs as they are, and counts them and their recordings.

    A CUDA graph is recorded for the addresses of its static inputs, and for others again. It may write to no other
    input. The first one after a pass has begun ([`begin_pass`]), in whatever thread, overwrites what graphs have
    returned to its own before.
    """

    def __init__(self):
        self.config = CompileConfig(backend=self, fullgraph=True, dynamic=False)
        self.num_graphs = 0
        # The graph and the addresses of its static inputs.
        self.recordings = set()
        self.devices = set()
        self._num_passes = 0
        self._returned = _Returned()

    def __call__(self, graph, example_inputs, **kwargs):
        self.num_graphs += 1
        number = self.num_graphs
        for node in graph.graph.nodes:
            if isinstance(node.meta.get("example_value"), torch.Tensor):
                self.devices.add(node.meta["example_value"].device)
        places = [node.meta.get("tensor_dict", {}) for node in graph.graph.find_nodes(op="placeholder")]
        is_static = [place.get("_dynamo_static_input_type") is not None for place in places]

        def run(*inputs):
            self._overwrite()
            static = [tensor for tensor, where in zip(inputs, is_static, strict=True) if where]
            others = [tensor for tensor, where in zip(inputs, is_static, strict=True) if not where]
            versions = [tensor._version for tensor in others]
            self.recordings.add((number, *(tensor.data_ptr() for tensor in static)))
            with record_function("graph"):
                outputs = graph.forward(*inputs)

            assert [tensor._version for tensor in others] == versions, "writes to an input that is not static"
            of_inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
            for output in outputs:
                if output.untyped_storage().data_ptr() not in of_inputs:
                    self._returned.tensors.append(output)
            return outputs

        return run

    def __deepcopy__(self, memo):
        return self

    def begin_pass(self) -> None:
        self._num_passes += 1

    def _overwrite(self) -> None:
        returned = self._returned
        if returned.num_passes == self._num_passes:
            return
        with record_function("graph"):
            for tensor in returned.tensors:
                # No column and no token.
                tensor.fill_(torch.nan if tensor.is_floating_point() else 10**9)
        returned.num_passes = self._num_passes
        returned.tensors = []
