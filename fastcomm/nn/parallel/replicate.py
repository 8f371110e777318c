"""Copies of a module for several devices, whose gradients come back to the module.

A replica has the module's attributes as they are at that moment, its own copies of the buffers,
and copies of the parameters that are results of a broadcast: the gradients of all replicas are
summed into the module's parameters in one pass.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.nn import Module

from fastcomm import _native, comm
from fastcomm._devices.slots import CPU, Device, served, slots
from fastcomm.nn.parallel._compile import is_wrapper, rebind
from fastcomm.nn.parallel._functions import Broadcast, as_before, handed_out, summed_back
from fastcomm.nn.parallel._members import can_be_replicated, modules_of

__all__ = ["Replicator", "replicate"]

T = TypeVar("T", bound=Module)
Copies = list[list[torch.Tensor]]  # by device, then by tensor
Children = dict[str, weakref.ref[Module] | None]


def replicate(network: T, devices: Sequence[Device], detach: bool = False) -> list[T]:
    """Return a copy of ``network`` for each device.

    Args:
        network: a module, all of whose parameters and buffers are on ``devices[0]``.
        devices: devices; the first replica shares the module's memory.
        detach: without gradients.

    Raises:
        RuntimeError: a tensor elsewhere; Python modules inside a ScriptModule.
    """
    if not devices:
        return []
    return Replicator(network, devices, lasting=False).replicas(detach)


class Replicator:
    """Replicas of one module that last, with their memory, on CPU slots or on devices.

    Each call of `replicas` gives all of them the module's present state. On CPU slots parameters
    and buffers are compared, and only what differs is written; on devices all is written, by one
    launch per device. Memory that a graph still holds is not written to but replaced, and so is all
    of it where other streams are current than last time. Not thread-safe.

    Args:
        network: as in `replicate`.
        devices: as there.
        lasting: False where `replicas` is called once.
        share_buffers: False if the first replica is to have its own buffers, too.
        zeros: False if a parameter that no replica used is to get no gradient instead of zeros.
    """

    def __init__(
        self,
        network: Module,
        devices: Sequence[Device],
        *,
        lasting: bool = True,
        share_buffers: bool = True,
        zeros: bool = True,
    ) -> None:
        if not can_be_replicated(network):
            raise RuntimeError(
                "Cannot replicate network where python modules are children of ScriptModule"
            )
        self._network = weakref.ref(network)
        self.devices = slots(devices)
        kinds = {device.type for device in self.devices}
        self.lasting = lasting and (kinds == {"cpu"} or kinds == {served()})
        self.share_buffers = share_buffers
        self.zeros = zeros
        self.written_bytes = 0  # by the last call of replicas()
        self._modules: list[Module] = []  # between `replicas` and `release`
        # A module that is replaced by another is not kept alive.
        self._known: list[weakref.ref[Module]] = []
        self._children: list[Children] = []
        self._copies: list[list[Module]] = []  # by device, then by module
        self._counts: list[list[int]] = []  # references to them while nobody else has one
        self._empty = False  # nobody else has had one since `release`
        self._parameters = _BroadcastBuffers(self.devices)
        self._buffers = _BroadcastBuffers(self.devices)

    def is_for(self, network: Module) -> bool:
        """Tell whether it makes replicas of this module."""
        return self._network() is network

    def replicas(self, detach: bool) -> list[Any]:
        """Return the replicas, with the module's present parameters, buffers and attributes."""
        if not self._usable():
            self._build()
        if not self._empty:
            self._forget()
        self._empty = False
        parameters = _unique(module._parameters for module in self._modules)
        buffers = _unique(module._buffers for module in self._modules)
        derived = [b for b in buffers if b.requires_grad and not detach]
        plain = [b for b in buffers if not (b.requires_grad and not detach)]
        self.written_bytes = 0
        tables: list[dict[int, torch.Tensor]] = [{} for _ in self.devices]
        for tensors, sent, without in (
            (parameters, self._parameters, detach),
            (derived, None, False),
            (plain, self._buffers, True),
        ):
            for table, copies in zip(tables, self._send(tensors, sent, without), strict=True):
                table.update((id(t), c) for t, c in zip(tensors, copies, strict=True))
        if not self.share_buffers:
            tables[0].update((id(buffer), buffer.detach().clone()) for buffer in plain)
        for device, table in enumerate(tables):
            self._fill(device, table)
        if self.lasting:
            self._counts = [_references(copies) for copies in self._copies]
        return [copies[0] for copies in self._copies]

    def release(self) -> None:
        """Let go of the module's tensors, and the replicas', unless somebody else has a replica.

        Between passes the module's parameters are then its own, as if it had no replicas: who
        replaces one frees it, and ``torch.utils.swap_tensors`` finds no other holder.
        """
        if self.lasting and not self._empty and self._are_ours():
            self._forget()
            self._modules = []
            self._empty = True

    def _send(
        self, tensors: list[torch.Tensor], sent: _BroadcastBuffers | None, detach: bool
    ) -> Copies:
        if not tensors:
            return [[] for _ in self.devices]
        lasting = self.lasting and sent is not None and all(_is_plain(t) for t in tensors)
        if not lasting or sent is None:
            if detach:
                return [
                    as_before(copies, tensors)
                    for copies in comm.broadcast_coalesced(tensors, self.devices)
                ]
            kind = Broadcast if self.zeros else _BroadcastOfUsed
            flat = kind.apply(self.devices, *tensors)
        elif detach:
            copies, written = sent.refresh(tensors)
            self.written_bytes += written
            return [tensors, *copies]
        else:
            flat = _Refresh.apply(self, sent, *tensors)
        return [list(flat[i : i + len(tensors)]) for i in range(0, len(flat), len(tensors))]

    def _usable(self) -> bool:
        """Tell whether the replicas have the module's structure, and nobody else holds them."""
        if not self.lasting or not self._copies:
            return False
        if self._empty:
            found = [module for known in self._known if (module := known()) is not None]
            if len(found) < len(self._known):
                return False
            self._modules = found
        if any(
            not _are_same(module._modules, children)
            for module, children in zip(self._modules, self._children, strict=True)
        ):
            return False
        kinds = list(map(type, self._modules))
        if any(list(map(type, copies)) != kinds for copies in self._copies):
            return False
        return self._empty or self._are_ours()

    def _are_ours(self) -> bool:
        # Somebody may: a checkpoint, whose recomputation needs the replica as it was.
        return self._counts == [_references(copies) for copies in self._copies]

    def _build(self) -> None:
        network = self._network()
        assert network is not None  # the caller has it
        self._modules = modules_of(network)
        self._known = [weakref.ref(module) for module in self._modules]
        self._children = [
            {
                name: None if child is None else weakref.ref(child)
                for name, child in module._modules.items()
            }
            for module in self._modules
        ]
        self._copies = [
            [_blank(module) if _is_common(module) else module for module in self._modules]
            for _ in self.devices
        ]

    def _forget(self) -> None:
        """Let go of the tensors of the last time, so that their memory can be written to."""
        for copies in self._copies:
            for module, copy in zip(self._modules, copies, strict=True):
                if copy is not module:
                    object.__setattr__(copy, "__dict__", {})

    def _fill(self, device: int, table: dict[int, torch.Tensor]) -> None:
        copies = self._copies[device]
        for i, module in enumerate(self._modules):
            if not _is_common(module):
                copies[i] = module._replicate_for_data_parallel()
        place = {id(module): copy for module, copy in zip(self._modules, copies, strict=True)}
        for module, copy in zip(self._modules, copies, strict=True):
            if _is_common(module):
                _fill_directly(module, copy, place, table)
            else:
                _fill_by_attributes(module, copy, place, table)
            rebind(module, copy, place, self.devices[device], device == 0)


class _BroadcastBuffers:
    """The memory of copies, which lasts."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._lists: Copies = []
        self._streams: list[torch.Stream] = []  # in which they were written last

    def refresh(self, tensors: list[torch.Tensor]) -> tuple[Copies, int]:
        """Return copies that share the lasting memory, and how many bytes were written to it."""
        count = len(self._devices) - 1
        reals = [
            torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.detach() for t in tensors
        ]
        with torch.inference_mode(False):  # what lasts must also serve training
            if self._devices[0] != CPU:
                written = self._refresh_devices(reals)
            elif len(self._lists) == count and all(len(t) == len(reals) for t in self._lists):
                self._lists, written = _native.load().refresh_lists(reals, self._lists)
            else:
                self._lists = _native.load().copy_lists(reals, [-1] * (count + 1))
                written = count * sum(t.nbytes for t in reals)
        return [as_before([t.detach() for t in held], tensors) for held in self._lists], written

    def _refresh_devices(self, reals: list[torch.Tensor]) -> int:
        indices = [device.index for device in self._devices]
        streams = [torch.accelerator.current_stream(device) for device in self._devices[1:]]
        if streams != self._streams:  # other streams may still read the copies
            self._lists, self._streams = [], streams
        written: int | None
        lists, written = _native.load().refresh_device_lists(reals, indices, self._lists)
        if written is None:  # not plain memory of the first device: torch copies, or says why not
            lists = [list(t) for t in comm.broadcast_coalesced(reals, self._devices)[1:]]
            written = len(lists) * sum(t.nbytes for t in reals)
        self._lists = lists
        return written


class _Refresh(torch.autograd.Function):
    """As `fastcomm.nn.parallel._functions.Broadcast`, into memory that lasts."""

    @staticmethod
    def forward(
        ctx: Any, replicator: Replicator, sent: _BroadcastBuffers, *tensors: torch.Tensor
    ) -> Any:
        copies, written = sent.refresh(list(tensors))
        replicator.written_bytes += written
        ctx.zeros = replicator.zeros
        return handed_out(
            ctx, ctx.needs_input_grad[2:], replicator.devices, [list(tensors), *copies]
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return (None, None, *summed_back(ctx, ctx.needs_input_grad[2:], grads, ctx.zeros))


class _BroadcastOfUsed(Broadcast):
    """A `fastcomm.nn.parallel._functions.Broadcast` that makes up no gradients."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return (None, *summed_back(ctx, ctx.needs_input_grad[1:], grads, zeros=False))


def _are_same(now: dict[str, Module | None], before: Children) -> bool:
    """Tell whether two tables hold the same children by the same names, in the same order."""
    if not now and not before:
        return True
    return len(now) == len(before) and all(
        name == known and child is (None if former is None else former())
        for (name, child), (known, former) in zip(now.items(), before.items(), strict=True)
    )


def _blank(module: Module) -> Module:
    kind: Any = type(module)
    blank: Module = kind.__new__(kind)
    return blank


def _references(copies: list[Module]) -> list[int]:
    return [sys.getrefcount(copy) for copy in copies]


def _unique(tables: Any) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for table in tables:
        for tensor in table.values():
            if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
                raise RuntimeError(comm.UNINITIALIZED)
            if tensor is not None:
                found.setdefault(id(tensor), tensor)
    return list(found.values())


def _is_plain(tensor: torch.Tensor) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(tensor) in kinds and tensor.layout == torch.strided and not tensor.is_quantized


def _is_common(module: Module) -> bool:
    """Tell whether a copy of the attributes is a replica: the class has no say of its own in it."""
    kind = type(module)
    return is_wrapper(module) or (
        kind._replicate_for_data_parallel is Module._replicate_for_data_parallel
        and kind.__setattr__ is Module.__setattr__
        and not isinstance(module, torch.jit.ScriptModule)
    )


def _fill_directly(
    module: Module, copy: Module, place: dict[int, Module], table: dict[int, torch.Tensor]
) -> None:
    state = module.__dict__.copy()
    state["_modules"] = {
        name: None if child is None else place[id(child)] for name, child in module._modules.items()
    }
    state["_buffers"] = {
        name: None if buffer is None else table[id(buffer)]
        for name, buffer in module._buffers.items()
    }
    former: dict[str, torch.Tensor] = {}
    state["_parameters"] = {}
    for name, parameter in module._parameters.items():
        if parameter is None:
            state["_parameters"][name] = None
            continue
        former[name] = table[id(parameter)]
        if former[name] is parameter:  # the first replica's, without gradients
            state["_parameters"][name] = parameter
        else:  # not a leaf, so a plain attribute
            state[name] = former[name]
    state.update(_former_parameters=former, _is_replica=True)
    object.__setattr__(copy, "__dict__", state)


def _fill_by_attributes(
    module: Module, copy: Module, place: dict[int, Module], table: dict[int, torch.Tensor]
) -> None:
    former: dict[str, torch.Tensor] = {}
    copy._former_parameters = former
    for name, child in module._modules.items():
        if child is None:
            copy._modules[name] = None
        else:
            setattr(copy, name, place[id(child)])
    for name, parameter in module._parameters.items():
        if parameter is None:
            copy._parameters[name] = None
        else:
            former[name] = table[id(parameter)]
            setattr(copy, name, former[name])
    for name, buffer in module._buffers.items():
        if buffer is None:
            copy._buffers[name] = None
        else:
            setattr(copy, name, table[id(buffer)])
