# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Simulated accelerators: mixed devices and waits of the host are seen on a machine without any.

    with SimulatedDevices() as devices:
        model = devices.move(make_llada())
        ids = torch.tensor([[2, 3]], device="cuda")  # `.to("cuda:1")`, `torch.Generator("cuda")` and such work too
        model.generate(ids)
    print(devices.waits)

A tensor "on the device" says `cuda:0`, and holds a tensor of the CPU that the operations compute with. So the
CPU makes the numbers, and what is checked is what a CPU cannot show:

- An operation that mixes devices raises, but for what CUDA allows: copies, tensors of the host without dimensions in
  pointwise operations and as values to write, indices of the host.
- `waits` has each wait of the host for all that is queued, with the nearest line of the package. A copy from the host
  is one, as in PyTorch: `torch.tensor(data, device="cuda")` ends in cudaMemcpyAsync and cudaStreamSynchronize.

Not simulated: streams, memory, `torch.cuda`, autocast, what has no kernel, rounding. In C++ a tensor on `cuda:i` says
`meta:i+1`, as a build without CUDA has no guard for it.
"""

import contextlib
import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


# The host reads their result, or its shape.
_READ_BY_HOST = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique", "_unique2", "unique_dim"),
    *("unique_consecutive", "bincount", "argwhere"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# Not tagged as pointwise, but they take a tensor of the host without dimensions.
_TAKES_SCALARS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "where"}

_Generator = torch.Generator


class SimulatedTensor(torch.Tensor):
    """A tensor on a simulated device, around `elem`, a tensor of the CPU."""

    device = property(lambda self: torch.device("cuda", self.index))
    is_cuda = property(lambda self: True)
    is_meta = is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem, index=0, requires_grad=False):
        # accelerate makes parameters by the type of the ones that were there.
        if isinstance(elem, SimulatedTensor):
            elem, index = elem.elem, elem.index
        if elem.is_meta:
            return torch.nn.Parameter(elem, requires_grad)
        layout = {"strides": elem.stride(), "storage_offset": elem.storage_offset(), "requires_grad": requires_grad}
        device = torch.device("meta", index + 1)
        self = torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype, device=device, **layout)
        self.elem, self.index = elem, index
        return self

    def __init__(self, *args, **kwargs):
        pass

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return SimulatedDevices.current.run(func, args, kwargs or {})

    def data_ptr(self):
        return self.elem.data_ptr()

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __repr__(self, **kwargs):
        return f"SimulatedTensor({self.elem!r}, {self.index})"


class _GeneratorType(type(_Generator)):
    def __instancecheck__(cls, instance):
        return type.__instancecheck__(_Generator, instance)


class SimulatedGenerator(_Generator, metaclass=_GeneratorType):
    """Takes the place of `torch.Generator`, which a build without CUDA makes for the CPU only."""

    device = property(lambda self: torch.device("cuda", 0))

    def __new__(cls, device="cpu"):
        is_simulated = torch.device(device).type == "cuda"
        return _Generator.__new__(cls if is_simulated else _Generator, device="cpu" if is_simulated else device)

    def __init__(self, device="cpu"):
        pass


class SimulatedDevices(TorchDispatchMode):
    """The context in which there are simulated devices.

    Attributes:
        label: what a test calls the present part of its run.
        waits (`list[tuple]`): for each wait, the label, and the operation with its place.
    """

    current = None

    def __init__(self):
        super().__init__()
        self.label, self.waits = None, []

    def __enter__(self):
        self._before = (SimulatedDevices.current, torch.Generator, torch.cuda._lazy_init)
        SimulatedDevices.current, torch.Generator, torch.cuda._lazy_init = self, SimulatedGenerator, lambda: None
        self._others = contextlib.ExitStack()
        self._others.enter_context(_DeviceNames())
        self._others.enter_context(torch.autograd.set_multithreading_enabled(False))
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._others.close()
        SimulatedDevices.current, torch.Generator, torch.cuda._lazy_init = self._before

    @staticmethod
    def move(module: torch.nn.Module, index: int = 0) -> torch.nn.Module:
        """Moves a module to a device: parameters (shared ones once), buffers, and tensors in its attributes."""
        moved: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if _is_host(parameter):
                    if parameter not in moved:
                        tensor = SimulatedTensor(parameter.data, index)
                        moved[parameter] = torch.nn.Parameter(tensor, parameter.requires_grad)
                    part._parameters[name] = moved[parameter]
            for values in (part._buffers, part.__dict__):
                values.update({name: SimulatedTensor(x, index) for name, x in values.items() if _is_host(x)})
        return module

    def waits_of(self, label) -> list[str]:
        """Returns the operations that waited while the label was this."""
        return [operation for of, operation in self.waits if of == label]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):
        """Runs an operation with the tensors of the CPU, if it has to do with a device, and notes a wait."""
        operation = _Operation(func, args, kwargs)
        if not operation.indices:
            return func(*args, **kwargs)
        if not operation.may_mix():
            names = sorted({str(x.device) for x in operation.tensors})
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(names)}! ({func}, shapes {[tuple(x.shape) for x in operation.tensors]}, at {_place()})"
            )
        if operation.waits:
            self.waits.append((self.label, f"{operation.name} at {_place()}"))
        return operation.run()


def _place() -> str:
    """Returns the nearest line of the package or of a test."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and ("/hf_dparallel/" in path or "/tests/" in path):
            return f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


class _Operation:
    """What an operation does on a device. `indices` are the devices of its tensors and of its result, if simulated."""

    def __init__(self, func, args, kwargs):
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = func._schema.name.split("::")[-1]
        self.tensors = list(_tensors((args, kwargs)))
        self.host = [x for x in self.tensors if not isinstance(x, SimulatedTensor)]
        self.indices = {x.index for x in self.tensors if isinstance(x, SimulatedTensor)}
        target = kwargs.get("device")
        # `meta` without a number is PyTorch's own.
        self.target = target.index - 1 if target is not None and target.type == "meta" and target.index else None
        self.to_host = False
        if self.name == "copy_":
            self.to_host = bool(self.indices) and _is_host(self.args[0])
        if self.name == "_to_copy":
            self.to_host = bool(self.indices) and target is not None and target.type == "cpu"
        if self.target is not None:
            self.indices = self.indices | {self.target}

    @property
    def waits(self) -> bool:
        if self.name == "_to_copy":
            return self.to_host or (bool(self.host) and self.target is not None)
        if self.name == "copy_":
            return self.to_host or bool(self.host)
        if self.name in _INDEXING:
            masks = [index is not None and index.dtype in (torch.bool, torch.uint8) for index in self.args[1]]
            # One mask and one value of the host are a masked_fill, which takes the value with the launch.
            is_fill = masks == [True] and len(self.args) > 2 and _is_host(self.args[2])
            return (any(masks) or bool(self.host)) and not is_fill
        if self.name == "repeat_interleave":
            return self.kwargs.get("output_size") is None
        # Many values are sorted, and the size of the result is read.
        if self.name == "isin" and isinstance(self.args[1], torch.Tensor):
            return self.args[1].numel() >= 10 * self.args[0].numel() ** 0.145
        return self.name in _READ_BY_HOST

    def may_mix(self) -> bool:
        devices = {x.index if isinstance(x, SimulatedTensor) else str(x.device) for x in self.tensors}
        if len(devices) < 2 or self.name in ("copy_", "_to_copy"):
            return True
        if len(devices) > 2 or not all(_is_host(x) for x in self.host) or not self.host:
            return False
        if self.name in _INDEXING:
            has_host_values = len(self.args) > 2 and _is_host(self.args[2]) and self.args[2].ndim > 0
            return not _is_host(self.args[0]) and not has_host_values
        writes_to_host = self.name.endswith("_") and _is_host(self.args[0])
        takes_scalars = torch.Tag.pointwise in self.func.tags or self.name in _TAKES_SCALARS
        return takes_scalars and not writes_to_host and all(x.ndim == 0 for x in self.host)

    def run(self):
        """Computes the result, around which are tensors of the device again."""
        kwargs = self.kwargs if self.target is None else self.kwargs | {"device": torch.device("cpu")}
        args, kwargs = _with_each(lambda x: x.elem if isinstance(x, SimulatedTensor) else x, (self.args, kwargs))
        out = self.func(*args, **kwargs)
        arguments = self.func._schema.arguments
        written = [(i, a) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written:
            if torch.Tag.inplace_view in self.func.tags:
                raise NotImplementedError(f"{self.func} on a simulated device")
            outs = [self.kwargs.get(a.name, self.args[i] if i < len(self.args) else None) for i, a in written]
            outs = [out for out in outs if out is not None]
            return None if not self.func._schema.returns else outs[0] if len(outs) == 1 else tuple(outs)
        if self.to_host:
            return out
        index = self.target
        if index is None:
            index = next(x.index for x in self.tensors if isinstance(x, SimulatedTensor))
        return _with_each(lambda x: x if x.is_meta else SimulatedTensor(x, index), out)


class _DeviceNames(TorchFunctionMode):
    """Says `meta:i+1` to C++ where Python says `cuda:i`, and makes constants on the host first, as CUDA does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func("cuda", *args) if type(args[0]) is int else func(*args, **kwargs)
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            return self._make_constant(func, args, kwargs)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], SimulatedTensor):
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            keys = tuple(torch.tensor(key) if isinstance(key, list) else key for key in keys)
            values = [v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=args[0].dtype) for v in args[2:]]
            return func(args[0], keys if isinstance(args[1], tuple) else keys[0], *values)
        if func is torch.Tensor.cuda:
            return args[0].to(_inner_device(torch.device("cuda", *args[1:])))
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        return func(*map(_inner_device, args), **{name: _inner_device(x) for name, x in kwargs.items()})

    @staticmethod
    def _make_constant(func, args, kwargs):
        device = kwargs.pop("device", None)
        if func is torch.Tensor.new_tensor:
            device, kwargs = device or args[0].device, {"dtype": args[0].dtype} | kwargs
            func, args = torch.tensor, args[1:]
        made = func(*args, **kwargs)
        return made if device is None else made.to(_inner_device(torch.device(device)))


def _tensors(values):
    """Yields the tensors in arguments of an operation. (PyTorch's own function for trees takes ten times as long.)"""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


def _with_each(function, values):
    """Returns arguments or results of an operation, with the function applied to their tensors."""
    if isinstance(values, torch.Tensor):
        return function(values)
    if isinstance(values, dict):
        return {name: _with_each(function, value) for name, value in values.items()}
    return type(values)(_with_each(function, x) for x in values) if type(values) in (tuple, list) else values


def _is_host(x) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, SimulatedTensor) and not x.is_meta


def _inner_device(x):
    if isinstance(x, str) and x.split(":")[0] == "cuda":
        x = torch.device(x)
    return torch.device("meta", (x.index or 0) + 1) if isinstance(x, torch.device) and x.type == "cuda" else x
