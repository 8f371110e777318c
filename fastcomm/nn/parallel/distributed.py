"""torch's DistributedDataParallel with fused reductions, and several devices per process.

The replicas of a process are those of `DataParallel`. Its backward pass leaves the process's
gradients in the module, where DDP finds them. Early versions of torch had several devices too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module, SyncBatchNorm

from fastcomm._devices.slots import Device, check_list, kind_of, slots
from fastcomm._gradients.fused import FusedResult
from fastcomm.ddp_comm_hooks import FusedState, fused_hook
from fastcomm.nn.parallel._division import check_placement
from fastcomm.nn.parallel._losses import LossFunction
from fastcomm.nn.parallel._members import modules_of
from fastcomm.nn.parallel.data_parallel import DataParallel

__all__ = ["DistributedDataParallel"]

# Options for which DDP hooks modules or parameters. Replicas are others, without the hooks.
_NOT_WITH_REPLICAS = ("delay_all_reduce_named_params", "mixed_precision")


class _Replicas(DataParallel[Module]):
    """The replicas of one process; parameters that none of them used get no gradient.

    For ``find_unused_parameters`` and ``static_graph`` DDP takes parameters without a gradient for
    unused.
    """

    _zeros = False


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DDP, with gradients reduced by `fused_hook`, and with several devices per process.

    With several ``device_ids`` the batch of a process is divided among replicas on them, as
    `DataParallel` does, and their results are joined on ``output_device``. Gradients are summed
    over the replicas first, in the tree's order; then each bucket is summed over the processes, in
    the tree's order again, and divided by the number of processes. So the mean is over processes,
    however many replicas they have. Early versions of torch took the same mean, but divided before
    the sum over the processes.

    Buffers are those of the first replica and, with ``broadcast_buffers``, of the first process:
    all get its BatchNorm statistics, which each replica updates from its own part. A parameter
    that no replica used has no gradient in its process, so ``find_unused_parameters`` and
    ``static_graph`` take it for unused. Without these options it is no error, and gets zeros.

    Gradients on CUDA devices are reduced there where fastcomm serves their tensors natively, or
    NCCL does, else in the host's memory: see `fastcomm.fused_all_reduce_`.

    Args:
        module: the model; with several devices all of it on ``device_ids[0]``.
        device_ids: one or none, as in torch; or several of one type, also CPU slots: ``["cpu",
            "cpu"]``.
        output_device: where the replicas' results are joined; ``device_ids[0]`` by default.
        dim: the dimension of the batch.
        args, kwargs: torch's other arguments, passed on. ``mixed_precision`` and
            ``delay_all_reduce_named_params`` are for one device only.
        comm_dtype: as in `FusedState`.
        max_norm: as in `FusedState`.
        norm_type: as in `FusedState`.
        scale: as in `FusedState`.
        error_feedback: as in `FusedState`.
        grad_scaler: as in `FusedState`.
        loss_fn: as in `DataParallel`: ``ddp(*inputs, targets)`` returns a vector with a loss
            for each replica, whose mean is the mean over the process's batch.

    It can be copied and pickled as torch's can: with the default process group only.

    Raises:
        ValueError: devices of several types; SyncBatchNorm, or an option for one device, with
            several.
        RuntimeError: a device that is not here; a parameter or buffer that is not on the first.

    Attributes:
        data_parallel: runs the replicas; None without them. Where it is set, DDP's own attributes
            ``device_ids`` and ``output_device`` are None.
    """

    data_parallel: _Replicas | None

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[Device] | None = None,
        output_device: Device | None = None,
        dim: int = 0,
        *args: Any,
        comm_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        norm_type: float | None = 2.0,
        scale: float = 1.0,
        error_feedback: bool = False,
        grad_scaler: torch.amp.GradScaler | None = None,
        loss_fn: LossFunction | None = None,
        **kwargs: Any,
    ) -> None:
        replicas = _replicas_of(module, device_ids, output_device, dim, loss_fn, kwargs)
        if replicas is not None:
            device_ids = output_device = None  # the module stays where it is
        super().__init__(module, device_ids, output_device, dim, *args, **kwargs)
        object.__setattr__(self, "data_parallel", replicas)  # no submodule: DDP has the module
        self.fused = FusedState(
            module.parameters(),
            self.process_group,
            scale=scale,
            comm_dtype=comm_dtype,
            norm_type=norm_type,
            max_norm=max_norm,
            error_feedback=error_feedback,
            grad_scaler=grad_scaler,
        )
        self.register_comm_hook(self.fused, fused_hook)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_comm_hooks": []}  # `__setstate__` registers it again

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # The new reducer has not seen its static graph yet; torch's copies keep the old flag.
        self._static_graph_delay_allreduce_enqueued = False
        # The state follows the buckets of one reducer, so even a shallow copy needs its own.
        self.fused = copy.copy(self.fused)
        self.register_comm_hook(self.fused, fused_hook)

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.data_parallel is None:
            return super()._run_ddp_forward(*inputs, **kwargs)
        return self.data_parallel(*inputs, **kwargs)

    def result(self) -> FusedResult:
        """Return norm and flag of the last backward pass; see `FusedState.result`."""
        return self.fused.result()


def _replicas_of(
    module: Module,
    device_ids: Sequence[Device] | None,
    output_device: Device | None,
    dim: int,
    loss_fn: LossFunction | None,
    others: Mapping[str, Any],
) -> _Replicas | None:
    """Return the `DataParallel` that runs the replicas, or None where torch's DDP runs the module.

    DDP runs it without ``loss_fn`` and with at most one device, which is not the CPU.

    Args:
        module: with all parameters and buffers on ``device_ids[0]``.
        device_ids: as in `DistributedDataParallel`.
        output_device: as in `DistributedDataParallel`.
        dim: as in `DistributedDataParallel`.
        loss_fn: as in `DistributedDataParallel`.
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
    return _Replicas(module, places, output_device, dim, loss_fn=loss_fn)
