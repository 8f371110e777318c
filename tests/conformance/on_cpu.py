"""Run on the CPU what torch's tests do on a GPU for each rank, for tests that need none.

Most tests of DistributedDataParallel are written for devices, although only the placement of their
tensors has to do with one. Here every device is the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Sends tensors meant for a device to the CPU; copies are made where they would be."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0].clone()
        if name == "to":
            args = (args[0], *map(_on_cpu, args[1:]))
        return func(*args, **kwargs)


def _streams_of_the_cpu(stream: type) -> type:
    """Return what stands in for ``torch.Stream``, also behind ``isinstance``."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stream)

    class Stream(metaclass=Kind):
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return stream(*arguments, **{"device": CPU, **named})

    return Stream


def _on_cpu(value: Any) -> Any:
    """Return the CPU for what names a device; so does an integer, where a device may be named."""
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, str) and value.startswith("cuda"):
        return CPU
    return CPU if isinstance(value, int) and not isinstance(value, bool) else value


def open_gates(method: Any) -> Any:
    """Return the method without the decorators that ask for devices."""
    from torch.testing._internal import common_distributed as common

    def nothing() -> None: ...

    gates = {common.skip_if_lt_x_gpu(2)(nothing).__code__, common.skip_if_no_gpu(nothing).__code__}
    while getattr(method, "__code__", None) in gates:
        method = method.__wrapped__
    outer = method
    while (inner := getattr(outer, "__wrapped__", None)) is not None:
        behind = inner
        while behind.__code__ in gates:
            behind = behind.__wrapped__
        if behind is not inner:
            for cell in outer.__closure__ or ():
                if cell.cell_contents is inner:
                    cell.cell_contents = behind
        outer.__wrapped__ = outer = behind
    return method


def install(tests: Any) -> None:
    """Make every device the CPU in this process, from now on."""
    tests.init_multigpu_helper = lambda size, _: {rank: [rank] for rank in range(size)}
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: 0
    if torch.version.cuda and not torch.cuda.is_available():
        # A stream of such a build is one of CUDA, which has no driver here.
        torch.Stream = _streams_of_the_cpu(torch.Stream)
    parallel = nn.parallel.DistributedDataParallel
    original = parallel.__init__

    @functools.wraps(original)
    def without_devices(self: Any, *arguments: Any, **named: Any) -> None:
        for name in ("device_ids", "output_device"):
            named.pop(name, None)
        original(self, *arguments, **named)

    parallel.__init__ = without_devices
    module_cuda = nn.Module.cuda

    @functools.wraps(module_cuda)
    def stay(self: Any, device: Any = None) -> Any:
        return self

    nn.Module.cuda = stay
    module_to = nn.Module.to

    @functools.wraps(module_to)
    def to(self: Any, *arguments: Any, **named: Any) -> Any:
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        return module_to(self, *map(_on_cpu, arguments), **named)

    nn.Module.to = to
    new_group = tests.dist.new_group

    @functools.wraps(new_group)
    def of_gloo(*arguments: Any, **named: Any) -> Any:
        if named.get("backend") == "nccl":
            named["backend"] = "gloo"
        return new_group(*arguments, **named)

    tests.dist.new_group = of_gloo
    OnCpu().__enter__()
