"""The line-up of a sweep, by the names that are asked for.

A backend of torch's has its own: ``fastcomm``, ``gloo`` (of tensors on devices: through the host),
``nccl``. Others are registered, as are here torch's backend that does nothing, and its operations
on symmetric memory, which have all of all_reduce.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from fastcomm._measure.contenders import SYMMETRIC, Contender, Fake, Symmetric
from fastcomm._measure.launch import Start

Make = Callable[[str, torch.device], Contender]
"""Makes a contender with a label, for tensors on a device; all ranks call it."""


class _Kind(NamedTuple):
    make: Make
    start: Start | None


_REGISTERED: dict[str, _Kind] = {}


def register(name: str, make: Make, start: Start | None = None) -> None:
    """Make a contender known by its name, in this process.

    Args:
        name: what ``--backends`` calls it.
        make: makes it.
        start: starts the ranks of a sweep that it is in; None where any may serve.
    """
    _REGISTERED[name] = _Kind(make, start)


def registered() -> Collection[str]:
    """Return the names that are not backends of torch's."""
    return _REGISTERED.keys()


def starter(backends: Sequence[str]) -> Start | None:
    """Return what has to start the ranks for these, None where it does not matter."""
    kinds = [_REGISTERED[name] for name in backends if name in _REGISTERED]
    return next((kind.start for kind in kinds if kind.start is not None), None)


def label_backends(backends: Sequence[str]) -> list[str]:
    """Names of the backends in results; a repeated one is numbered: ``gloo``, ``gloo-2``."""
    labels: list[str] = []
    for index, backend in enumerate(backends):
        seen = list(backends[:index]).count(backend)
        labels.append(f"{backend}-{seen + 1}" if seen else backend)
    return labels


def make(backends: Sequence[str], device: torch.device) -> list[Contender]:
    """Make a contender of each backend; all ranks have to."""
    return [
        _REGISTERED[backend].make(label, device)
        if backend in _REGISTERED
        else _backend(backend, label, device)
        for label, backend in zip(label_backends(backends), backends, strict=True)
    ]


def _backend(name: str, label: str, device: torch.device) -> Contender:
    if name == "nccl" and not dist.is_nccl_available():
        missing = Contender(label, None)
        missing.failed = "this torch has no NCCL"
        return missing
    if name == "fastcomm" and device.type != "cpu":
        name = f"cpu:fastcomm,{device.type}:fastcomm"
    return Contender(label, dist.new_group(backend=name))


def _fake(label: str, _: torch.device) -> Contender:
    # Known once this is imported.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    return Fake(label, dist.new_group(backend="fake"))


def _symmetric(label: str, device: torch.device) -> Contender:
    # The group is for its store and its name; nothing is sent over it.
    return Symmetric(label, dist.new_group(backend="gloo"), device)


register("fake", _fake)
for _name in SYMMETRIC:
    register(_name, _symmetric)
