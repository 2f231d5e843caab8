# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Simulated accelerators: mixed devices, waits of the host and launches are seen on a machine without any.

    with SimulatedDevices() as devices:
        model = devices.move(make_llada())
        ids = torch.tensor([[2, 3]], device="cuda")  # `.to("cuda:1")`, `torch.Generator("cuda")` and such work too
        model.generate(ids)
    print(devices.table("wait"))

A tensor "on the device" says `cuda:0`, and holds a tensor of the CPU that the operations compute with. So the
CPU makes the numbers, and what is checked is what a CPU cannot show:

- An operation that mixes devices raises, but for what CUDA allows: copies, tensors of the host without dimensions in
  pointwise operations and as values to write, indices of the host. So does a generator of another device.
- `events` has each launch (an operation that is neither a view nor an allocation), each wait (the host waits for all
  that is queued), each copy from and to the host and between devices, with the nearest line of the package.
- A copy from the host is a wait, as in PyTorch: `torch.tensor(data, device="cuda")` ends in cudaMemcpyAsync and
  cudaStreamSynchronize, unless `non_blocking=True`. A copy to the host with it is garbage until something waits.
- In `capturing()`, which stands for a CUDA graph, what waits raises.

Not simulated: streams, memory, `torch.cuda`, autocast, what has no kernel, rounding. Some operations are several
kernels, so the launches are a lower bound. In C++ a tensor on `cuda:i` says `meta:i+1`, as a build without CUDA has
no guard for it.
"""

import contextlib
import sys
from collections import Counter
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


# The host reads their result, or its shape.
_READ_BY_HOST = {
    *("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique", "_unique2", "unique_dim"),
    *("unique_consecutive", "bincount", "argwhere"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_COPIES = {"copy_", "_to_copy"}
# Neither views nor kernels.
_FREE = {
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach", "detach_", "alias"),
    *("lift_fresh", "is_pinned", "is_same_size", "resize_", "_fused_sdp_choice", "_reshape_alias", "_unsafe_view"),
    "_local_scalar_dense",
}
# Not tagged as pointwise, but they take a tensor of the host without dimensions.
_TAKES_SCALARS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "where"}

_Generator = torch.Generator


@dataclass
class Event:
    """Something that happened on a device: a launch, wait, from_host, to_host or between_devices.

    `where` is the nearest line of the package, or else outside of PyTorch; `in_model` says whether a module called it,
    and `label` is what `SimulatedDevices.label` was. A wait knows how many launches of a model it waits for.
    """

    kind: str
    operation: str
    where: str
    in_model: bool
    label: object
    num_model_launches: int = 0


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
        if SimulatedDevices.current is None:
            raise RuntimeError("A tensor of a simulated device is used outside of its context.")
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

    Args:
        package (`str`): a part of the paths whose lines are named.
    """

    current = None

    def __init__(self, package: str = "/hf_dparallel/"):
        super().__init__()
        self.package, self.label = package, None
        # By the path of a file: its name, if it is not of PyTorch, and whether it is of the package.
        self._files: dict[str, tuple[str | None, bool]] = {}
        self.events: list[Event] = []
        self._num_model_launches = 0
        self._is_capturing = False
        self._arriving: list[tuple[torch.Tensor, torch.Tensor]] = []

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

    @contextlib.contextmanager
    def capturing(self):
        self._is_capturing = True
        try:
            yield
        finally:
            self._is_capturing = False

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

    def count(self, kind: str, **wanted) -> int:
        """Returns how many events of a kind have the wanted attributes."""
        return len(self._select(kind, **wanted))

    def table(self, kind: str, **wanted) -> str:
        """Returns where the events of a kind come from, and how many there are, as lines of text."""
        counts = Counter((event.where, event.operation) for event in self._select(kind, **wanted))
        return "\n".join(f"{count:6} {operation:24} {where}" for (where, operation), count in sorted(counts.items()))

    def _select(self, kind: str, **wanted) -> list[Event]:
        wanted["kind"] = kind
        return [e for e in self.events if all(getattr(e, name) == value for name, value in wanted.items())]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):
        """Runs an operation with the tensors of the CPU, if it has to do with a device, and records it."""
        operation = _Operation(func, args, kwargs)
        if not operation.indices:
            return func(*args, **kwargs)
        where, in_model = self._place()
        if not operation.may_mix():
            names = sorted({str(x.device) for x in operation.tensors})
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(names)}! ({func}, shapes {[tuple(x.shape) for x in operation.tensors]}, at {where})"
            )
        out = operation.run()
        self._record(operation, where, in_model)
        if operation.to_host and kwargs.get("non_blocking"):
            self._arriving.append((out, out.clone()))
            out.copy_(torch.full_like(out, 85))
        return out

    def _record(self, operation: "_Operation", where: str, in_model: bool) -> None:
        def add(kind, **more):
            self.events.append(Event(kind, operation.name, where, in_model, self.label, **more))

        if operation.launches:
            self._num_model_launches += in_model
            add("launch")
        for kind in ("from_host", "to_host", "between_devices"):
            if getattr(operation, kind):
                add(kind)
        if operation.waits:
            add("wait", num_model_launches=self._num_model_launches)
            self._num_model_launches = 0
            if self._is_capturing:
                raise RuntimeError(f"operation not permitted when stream is capturing: {operation.name} at {where}")
            for late, value in self._arriving:
                late.copy_(value)
            self._arriving.clear()

    def _place(self) -> tuple[str, bool]:
        frame, named, other, in_model = sys._getframe(2), None, None, False
        # Up to the test, if it is in this thread.
        while frame is not None and not (named and in_model) and frame.f_code.co_name != "pytest_pyfunc_call":
            code = frame.f_code
            if code.co_filename not in self._files:
                self._files[code.co_filename] = self._file(code.co_filename)
            path, is_package = self._files[code.co_filename]
            if path is not None and not named and (is_package or not other):
                place = f"{path}:{frame.f_lineno} {code.co_name}"
                named, other = (place, other) if is_package else (named, place)
            in_model |= code.co_name == "_call_impl"
            frame = frame.f_back
        return named or other or "?", in_model

    def _file(self, path: str) -> tuple[str | None, bool]:
        if path == __file__:
            return None, False
        if self.package in path:
            return path.split(self.package)[-1], True
        return (None if "/torch/" in path else "/".join(path.split("/")[-3:])), False


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
        self.is_copy = self.name in _COPIES
        self.to_host = self._copies_to_host(target)
        self.from_host = self._copies_from_host()
        self.between_devices = self.is_copy and len(self.indices | {self._result_index()} - {None}) > 1
        if self.target is not None:
            self.indices = self.indices | {self.target}

    def _copies_to_host(self, target) -> bool:
        if self.name == "copy_":
            return bool(self.indices) and _is_host(self.args[0])
        return self.name == "_to_copy" and bool(self.indices) and target is not None and target.type == "cpu"

    def _copies_from_host(self) -> bool:
        if self.name == "_to_copy":
            return bool(self.host) and self.target is not None
        if self.name == "copy_":
            return not _is_host(self.args[0]) and bool(self.host)
        # One mask and one value of the host are a masked_fill, which takes the value with the launch.
        is_fill = self.name in _INDEXING and self._masks() == [True] and len(self.args) > 2 and _is_host(self.args[2])
        return self.name in _INDEXING and bool(self.host) and not is_fill

    def _masks(self) -> list[bool]:
        return [index is not None and index.dtype in (torch.bool, torch.uint8) for index in self.args[1]]

    @property
    def waits(self) -> bool:
        if self.from_host or self.to_host:
            non_blocking = (
                self.kwargs.get("non_blocking") or self.name == "copy_" and len(self.args) > 2 and self.args[2]
            )
            return not non_blocking
        if self.name in _INDEXING:
            is_fill = self._masks() == [True] and len(self.args) > 2 and _is_host(self.args[2])
            return any(self._masks()) and not is_fill
        if self.name == "repeat_interleave":
            return self.kwargs.get("output_size") is None
        # Many values are sorted, and the size of the result is read.
        if self.name == "isin" and isinstance(self.args[1], torch.Tensor):
            return self.args[1].numel() >= 10 * self.args[0].numel() ** 0.145
        return self.name in _READ_BY_HOST

    @property
    def launches(self) -> bool:
        is_transfer = self.is_copy and (self.to_host or self.from_host)
        return not (self.func.is_view or self.name in _FREE or is_transfer)

    def may_mix(self) -> bool:
        devices = {x.index if isinstance(x, SimulatedTensor) else str(x.device) for x in self.tensors}
        if len(devices) < 2 or self.is_copy:
            return True
        if len(devices) > 2 or not all(_is_host(x) for x in self.host) or not self.host:
            return False
        if self.name in _INDEXING:
            has_host_values = len(self.args) > 2 and _is_host(self.args[2]) and self.args[2].ndim > 0
            return not _is_host(self.args[0]) and not has_host_values
        writes_to_host = self.name.endswith("_") and _is_host(self.args[0])
        takes_scalars = torch.Tag.pointwise in self.func.tags or self.name in _TAKES_SCALARS
        return takes_scalars and not writes_to_host and all(x.ndim == 0 for x in self.host)

    def _result_index(self) -> int | None:
        if self.target is not None:
            return self.target
        first = next((x for x in self.tensors if isinstance(x, SimulatedTensor)), None)
        return None if first is None or self.to_host else first.index

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
        index = self._result_index()
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
        self._check_generator(args, kwargs)
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

    @staticmethod
    def _check_generator(args, kwargs):
        # Here, because below it is another Python object.
        generator = kwargs.get("generator")
        if isinstance(generator, _Generator):
            is_simulated = any(isinstance(x, SimulatedTensor) for x in args) or "cuda" in str(kwargs.get("device"))
            if (generator.device.type == "cuda") != is_simulated:
                names = ("cuda", "cpu") if is_simulated else ("cpu", "cuda")
                raise RuntimeError("Expected a '{}' device type for generator but found '{}'".format(*names))


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
