"""Ways in which a worker's model is run: as it is, or wrapped, with messages and without."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastcomm import comm
from fastcomm._advise.costs import clock
from fastcomm._advise.told import Pass
from fastcomm.nn import parallel
from fastcomm.nn.parallel import scatter_gather
from fastcomm.nn.parallel.replicate import Replicator


class Quiet:
    """`DistributedDataParallel` whose buckets are not sent.

    All of its own work is in the record: buckets are filled and emptied, and ranks wait for each
    other after each backward pass's last bucket, where they would wait for its sum.
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.passes: list[Pass] = []
        self._device = next(model.parameters()).device.type
        self._begin = 0.0
        self._buckets: list[tuple[int, float]] = []
        self._wrapped = DistributedDataParallel(model, **options)
        # A lambda, since DDP refuses annotations that are strings.
        self._wrapped.register_comm_hook(None, lambda _, bucket: self._keep(bucket))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._wrapped(*arguments, **keywords)

    def begin(self) -> None:
        """Begin a round. Collective."""
        self.passes, self._buckets = [], []
        self._begin = clock(self._device)
        dist.barrier()

    def _keep(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        now = clock(self._device)
        self._buckets.append((buffer.nbytes, now))
        if bucket.is_last():
            self.passes.append(Pass(self._begin, tuple(self._buckets)))
            self._begin, self._buckets = now, []
            dist.barrier()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


class QuietSlots:
    """DataParallel that moves nothing: replicas keep their parameters and gradients.

    Only the batch is cut and the results are joined. The first replica is the model itself.
    """

    def __init__(self, model: nn.Module, devices: Sequence[Any]) -> None:
        self._replicas = [model, *(copy.deepcopy(model).to(each) for each in devices[1:])]
        self._devices = devices

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        for replica in self._replicas[1:]:
            replica.zero_grad()
        inputs, options = scatter_gather.scatter_kwargs(arguments, keywords, self._devices)
        count = len(inputs)
        outputs = parallel.parallel_apply(
            self._replicas[:count], inputs, options, self._devices[:count]
        )
        return parallel.gather(outputs, self._devices[0])


def moved_by_slots(model: nn.Module, devices: Sequence[Any], repeats: int) -> float:
    """Return the seconds that DataParallel takes to move parameters and gradients, the median."""
    twin = copy.deepcopy(model)
    kind = next(twin.parameters()).device.type
    parameters = [p for p in twin.parameters() if p.requires_grad]
    replicator = Replicator(twin, devices)
    gradients = comm.broadcast_coalesced([p.detach() for p in parameters], devices)
    times = []
    for _ in range(repeats):
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(1e-6)  # what has not changed is not written
        begin = clock(kind)
        replicator.replicas(detach=False)
        replicator.release()
        comm.reduce_add_coalesced(gradients, devices[0])
        times.append(clock(kind) - begin)
    return statistics.median(times)
