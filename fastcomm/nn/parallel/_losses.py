"""The loss inside the replicas of a `DataParallel`: outputs never meet on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import Module

from fastcomm._devices.slots import Device, kind_of
from fastcomm.nn.parallel import scatter_gather
from fastcomm.nn.parallel._compile import Frames, untraced
from fastcomm.nn.parallel._division import weighted
from fastcomm.nn.parallel.parallel_apply import parallel_apply

__all__ = ["DataParallelCriterion", "ReplicaOutputs"]

LossFunction = Callable[..., torch.Tensor]


class ReplicaOutputs(list[Any]):
    """Outputs of the replicas, each on its device, not gathered: see `DataParallelCriterion`.

    Attributes:
        devices: of the replicas.
        sizes: how much of the batch each had.
        dim: the dimension along which it was cut.
    """

    def __init__(
        self,
        outputs: Iterable[Any],
        devices: Sequence[torch.device],
        sizes: Sequence[int],
        dim: int,
    ) -> None:
        super().__init__(outputs)
        self.devices = list(devices)
        self.sizes = list(sizes)
        self.dim = dim


class DataParallelCriterion(Module):
    """The loss of outputs that were not gathered, computed where they are.

    For ``DataParallel(..., gather_outputs=False)``: ``criterion(outputs, targets)`` divides the
    targets as the batch was divided, and returns a vector with one loss for each replica, weighted
    so that their mean is the mean over the batch.

    Args:
        criterion: called as ``criterion(output, targets)`` for each replica.
        output_device: where the losses are gathered; that of the first replica by default.
    """

    def __init__(self, criterion: LossFunction, output_device: Device | None = None) -> None:
        super().__init__()
        self.criterion = criterion
        if output_device is not None:
            kind_of(output_device)  # what is no device raises here
        self.output_device = output_device
        self._frames = Frames()

    @untraced
    def forward(self, outputs: ReplicaOutputs, *targets: Any) -> torch.Tensor:
        """Return the losses."""
        if not isinstance(outputs, ReplicaOutputs):
            raise TypeError(
                "DataParallelCriterion takes what DataParallel(..., gather_outputs=False) returns, "
                f"not {type(outputs).__name__}"
            )
        parts = scatter_gather.scatter(targets, outputs.devices, outputs.dim, outputs.sizes)
        inputs = [(output, *part) for output, part in zip(outputs, parts, strict=True)]
        works = self._frames.traced([self.criterion] * len(inputs), outputs.devices)
        losses = parallel_apply(works, inputs, None, outputs.devices)
        target = outputs.devices[0] if self.output_device is None else self.output_device
        joined: torch.Tensor = scatter_gather.quiet_gather(weighted(losses, outputs.sizes), target)
        return joined


class WithLoss:
    """A replica and its loss as one call: the last positional argument is the targets."""

    def __init__(self, module: Any, loss_fn: LossFunction) -> None:
        self.module = module
        self.loss_fn = loss_fn

    def __call__(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        if not inputs:
            raise TypeError("with loss_fn the last positional argument is the targets")
        *positions, targets = inputs
        loss = self.loss_fn(self.module(*positions, **kwargs), targets)
        if loss.numel() != 1:
            raise ValueError(
                "loss_fn must return one number for each replica, "
                f"not a tensor of {list(loss.shape)}"
            )
        return loss.view(())
