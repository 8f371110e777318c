"""Several devices in one process of a `fastcomm.nn.parallel.DistributedDataParallel`.

torch's once had this: one process for each machine, one replica for each of its devices. Here the
replicas are those of `DataParallel`, whose backward pass leaves the process's gradients in the
module, where DDP finds them as it does any module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Module, SyncBatchNorm

from fastcomm._devices.slots import Device, check_list, kind_of, slots
from fastcomm.nn.parallel._division import check_placement
from fastcomm.nn.parallel._losses import LossFunction
from fastcomm.nn.parallel._members import modules_of
from fastcomm.nn.parallel.data_parallel import DataParallel

# These hook parameters or modules of which each process must have one.
_NOT_WITH_REPLICAS = ("delay_all_reduce_named_params", "mixed_precision")


class Replicas(DataParallel[Module]):
    """The replicas of one process; parameters that none of them used get no gradient.

    By that DDP tells which are unused, for ``find_unused_parameters`` and ``static_graph``.
    """

    _zeros = False


def replicas_of(
    module: Module,
    device_ids: Sequence[Device] | None,
    output_device: Device | None,
    dim: int,
    loss_fn: LossFunction | None,
    others: Mapping[str, Any],
) -> Replicas | None:
    """Return what runs the module, or None where torch's DDP does: at most one device, no loss.

    Args:
        module: with all parameters and buffers on ``device_ids[0]``.
        device_ids: as in `fastcomm.nn.parallel.DistributedDataParallel`, like the next three.
        output_device: as there.
        dim: as there.
        loss_fn: as there.
        others: DDP's other arguments.

    Raises:
        ValueError: devices of several types; an option that cannot be combined with replicas.
        RuntimeError: a device that is not here; a tensor on another device than the first.
    """
    check_list(device_ids)
    given = [] if device_ids is None else list(device_ids)
    if loss_fn is None and len(given) < 2 and "cpu" not in map(kind_of, given):
        return None
    kinds = sorted(set(map(kind_of, given)))
    if len(kinds) > 1:
        raise ValueError(f"device_ids must be of one type, but these are {' and '.join(kinds)}")
    for name in _NOT_WITH_REPLICAS:
        if others.get(name) is not None:
            raise ValueError(f"{name} is for a process with one device and without loss_fn")
    if len(given) > 1 and any(isinstance(child, SyncBatchNorm) for child in modules_of(module)):
        raise ValueError(
            "SyncBatchNorm is for a process with one device: replicas of one process would call "
            "its collectives in any order"
        )
    places = slots(given)
    if places:
        check_placement(module, places[0])
    return Replicas(module, places, output_device, dim, loss_fn=loss_fn)
