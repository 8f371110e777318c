"""Nested inputs and outputs, cut into chunks for devices and joined again.

As ``torch.nn.parallel.scatter_gather``, for CPU slots too, and for more: dataclasses, given
chunk sizes, scalars without a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from fastcomm._devices.slots import Device, slots
from fastcomm.nn.parallel._functions import Broadcast, Gather, Scatter

__all__ = ["gather", "scatter", "scatter_kwargs"]


def scatter(
    inputs: Any,
    target_gpus: Sequence[Device],
    dim: int = 0,
    chunk_sizes: Sequence[int] | None = None,
) -> Any:
    """Cut every tensor in a nested structure into chunks, and build the structure for each device.

    Args:
        inputs: tensors in tuples, named tuples, lists, dicts and dataclasses. One without
            dimensions goes whole to every device, with its gradients summed. Anything else is
            handed to every device as it is.
        target_gpus: devices.
        dim: the dimension to cut. Tensors may differ in their size there, as in torch, if all of
            them have the same number of parts, such as a batch and a table for each of its halves.
        chunk_sizes: how much of ``dim`` each device gets; equal chunks by default.

    Returns:
        A list with the structure for each device, a tuple for a single tensor, as in torch. Shorter
        than ``target_gpus`` where a tensor is too short to be cut into that many chunks.

    Raises:
        ValueError: tensors that are cut into different numbers of parts. (torch drops what is in
            the later parts of the longer ones, and says nothing.)
    """
    targets = slots(target_gpus)
    if chunk_sizes is None:
        _check_parts(inputs, len(targets), dim)
    return _scatter(inputs, targets, dim, chunk_sizes)


def _check_parts(value: Any, count: int, dim: int) -> None:
    """Raise ValueError where rows of one tensor would have no rows of another beside them."""
    sizes = [tensor.size(dim) for tensor in _tensors(value) if tensor.dim() > 0]
    parts = {size: _parts(size, count) for size in dict.fromkeys(sizes)}
    for size, cut in parts.items():
        if cut != parts[sizes[0]]:
            raise ValueError(
                f"tensors of {sizes[0]} and of {size} along dimension {dim} are cut into "
                f"{parts[sizes[0]]} and {cut} parts for {count} devices: what is left over would "
                "be lost. Give them the same size there; one that every replica is to have whole "
                "can be expanded by a dimension of that size, or belong to the module"
            )


def _parts(size: int, count: int) -> int:
    """Return how many chunks ``torch.chunk`` makes; of nothing, as many empty ones as asked."""
    return -(-size // -(-size // count)) if size and count else count


def _scatter(
    value: Any, targets: Sequence[torch.device], dim: int, sizes: Sequence[int] | None
) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and targets:
            return Broadcast.apply(targets, value.to(targets[0]))
        return Scatter.apply(targets, sizes, dim, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not any(True for _ in _tensors(value)):
            return [value for _ in targets]
        columns = _columns(_fields(value), targets, dim, sizes)
        return [_with_fields(value, fields) for fields in columns]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [type(value)(*items) for items in _columns(value, targets, dim, sizes)]
    if isinstance(value, tuple) and value:
        return _columns(value, targets, dim, sizes)
    if isinstance(value, list) and value:
        return [list(items) for items in _columns(value, targets, dim, sizes)]
    if isinstance(value, dict) and value:
        columns = _columns(list(value.values()), targets, dim, sizes)
        return [_like_dict(value, items) for items in columns]
    return [value for _ in targets]


def _columns(
    values: Sequence[Any], targets: Sequence[torch.device], dim: int, sizes: Sequence[int] | None
) -> list[tuple[Any, ...]]:
    scattered = [_scatter(value, targets, dim, sizes) for value in values]
    return list(zip(*scattered, strict=False)) if scattered else [() for _ in targets]


def _fields(value: Any) -> list[Any]:
    """Return the fields that are set; those that are not have no value to be cut."""
    names = [field.name for field in dataclasses.fields(value)]
    return [getattr(value, name) for name in names if hasattr(value, name)]


def _with_fields(value: Any, fields: Sequence[Any]) -> Any:
    """Return a dataclass like ``value`` with other fields, whatever its constructor does."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    if isinstance(value, dict):  # transformers' ModelOutput is both, and leaves out what is None
        given = {n: f for n, f in zip(names, fields, strict=True) if f is not None}
        return type(value)(**given)
    result = object.__new__(type(value))
    state = dict(getattr(value, "__dict__", {}))
    for name, field in zip(names, fields, strict=True):
        state.pop(name, None)
        object.__setattr__(result, name, field)
    for name, other in state.items():
        object.__setattr__(result, name, other)
    return result


def _like_dict(value: dict[Any, Any], items: Sequence[Any]) -> Any:
    kind: Any = type(value)
    pairs = zip(value, items, strict=True)
    if hasattr(value, "default_factory"):
        return kind(value.default_factory, pairs)
    return kind(pairs)


def scatter_kwargs(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    target_gpus: Sequence[Device],
    dim: int = 0,
    chunk_sizes: Sequence[int] | None = None,
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Scatter positional and keyword arguments over the same number of devices.

    Where one of the two holds no tensor to be cut it follows the other: a short batch has fewer
    chunks than there are devices, and what is not cut must not create replicas without data. (torch
    pads with empty arguments there, and calls replicas without the tensors they need.) Tensors
    without dimensions alone are for one device.

    Raises:
        ValueError: tensors that are cut into different numbers of parts, as in `scatter`.

    Returns:
        The positional arguments of each device, and the keyword arguments of each.
    """
    targets = slots(target_gpus)
    if chunk_sizes is None:
        _check_parts((inputs, kwargs), len(targets), dim)
    positions = _scatter(inputs, targets, dim, chunk_sizes) if inputs else []
    keywords = _scatter(kwargs, targets, dim, chunk_sizes) if kwargs else []
    counts = [len(parts) for parts in (positions, keywords) if parts]
    tensors = list(_tensors((inputs, kwargs)))
    if any(tensor.dim() > 0 for tensor in tensors):
        count = min(counts)
    else:
        count = 1 if tensors else max(counts, default=0)
    positions = list(positions[:count]) + [()] * (count - len(positions))
    keywords = list(keywords[:count]) + [{} for _ in range(count - len(keywords))]
    return tuple(positions), tuple(keywords)


def first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor that `scatter` would cut; None without one."""
    return next((tensor for tensor in _tensors(value) if tensor.dim() > 0), None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield what `scatter` would cut or copy."""
    parts: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = _fields(value)
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    for part in parts:
        yield from _tensors(part)


def gather(outputs: Any, target_device: Device, dim: int = 0) -> Any:
    """Join what several devices returned into one structure on one device.

    Args:
        outputs: a structure for each device, all alike: tensors in tuples, named tuples, lists,
            dicts and dataclasses.
        target_device: where to.
        dim: the dimension to join. Scalars become a vector, with torch's warning.

    Returns:
        The structure. None stays None; a dataclass field that is no such structure becomes a list
        of each device's value.

    Raises:
        TypeError: anything else, such as a number or a string.
        ValueError: dicts with different keys, or sequences of different lengths.
    """
    return _gather(list(outputs), target_device, dim, quiet=False)


def quiet_gather(outputs: Any, target_device: Device, dim: int = 0) -> Any:
    """As `gather`, but scalars become a vector without a warning, whatever ``dim``."""
    return _gather(list(outputs), target_device, dim, quiet=True)


def _gather(outputs: list[Any], target: Device, dim: int, *, quiet: bool) -> Any:
    def join(column: Sequence[Any]) -> Any:
        return _gather(list(column), target, dim, quiet=quiet)

    def each(columns: Iterable[Sequence[Any]]) -> list[Any]:
        return [join(column) for column in columns]

    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if quiet and all(output.dim() == 0 for output in outputs):
            outputs, dim = [output.view(1) for output in outputs], 0
        return Gather.apply(target, dim, *outputs)
    if first is None:
        return None
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        columns = zip(*map(_fields, outputs), strict=True)
        fields = [join(c) if _is_structure(c[0]) else list(c) for c in columns]
        return _with_fields(first, fields)
    if isinstance(first, dict):
        if any(output.keys() != first.keys() for output in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return _like_dict(first, each([output[key] for output in outputs] for key in first))
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*each(zip(*outputs, strict=True)))
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        kind: Any = type(first)
        return kind(each(zip(*outputs, strict=True)))
    raise TypeError(
        f"an output of type {type(first).__name__} cannot be gathered, only tensors and None, "
        "alone or in tuples, lists, dicts and dataclasses; DataParallel(..., gather_outputs=False) "
        "returns what the replicas did, as it is"
    )


def _is_structure(value: Any) -> bool:
    """Tell whether `gather` joins a value, or what is inside it."""
    if value is None or isinstance(value, torch.Tensor | dict):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return True
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
