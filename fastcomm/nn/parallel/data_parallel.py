"""``torch.nn.DataParallel`` on the primitives of this package, for CPU slots too.

There is one process, one module and several devices. Every forward pass divides the batch among
replicas of the module, each run by a thread. Gradients are summed into the module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import torch
from torch.nn import Module

from fastcomm._devices.slots import CPU, Device, slot, slots
from fastcomm.nn.parallel import scatter_gather
from fastcomm.nn.parallel._compile import Frames, traced, untraced
from fastcomm.nn.parallel._division import (
    as_given,
    batch_size,
    check_chunk_sizes,
    check_placement,
    places_of,
    proportional,
    say_where_it_runs,
    weighted,
)
from fastcomm.nn.parallel._losses import (
    DataParallelCriterion,
    LossFunction,
    ReplicaOutputs,
    WithLoss,
)
from fastcomm.nn.parallel._members import buffers_of
from fastcomm.nn.parallel._speeds import Speeds
from fastcomm.nn.parallel._sync_batchnorm import Party, synchronize
from fastcomm.nn.parallel.parallel_apply import get_a_var, parallel_apply
from fastcomm.nn.parallel.replicate import Replicator, replicate

__all__ = ["DataParallel", "DataParallelCriterion", "ReplicaOutputs", "data_parallel"]

T = TypeVar("T", bound=Module)


# Attributes that torch's class lacks, with the values for which this class does the same.
OPTIONS = {"loss_fn": None, "chunk_sizes": None, "buffer_policy": "first", "gather_outputs": True}


class DataParallel(torch.nn.DataParallel, Generic[T]):
    """Run a module on several devices of this process, each with a part of the batch.

    Without further arguments it does what ``torch.nn.DataParallel`` does, with the same arguments,
    attributes, ``state_dict`` and errors. In addition:

    - ``device_ids`` may be ``["cpu", "cpu"]``: replicas in the CPU's memory, in threads. -1 is the
      CPU, too, in every list of devices.
    - Replicas last from one forward pass to the next. On CPU slots their memory does too, and only
      what has changed is written.
    - ``loss_fn``: ``dp(*inputs, targets)`` computes the loss in the replicas and returns a vector
      with one loss for each, weighted so that their mean is the mean over the batch. Outputs never
      meet on one device. Besides its own part, the first one holds only the gradients' sums. The
      weights are the rows of the first tensor that is cut. A loss that is a mean over something
      else, as with ``ignore_index`` or class weights, differs from that of the whole batch: let the
      module return sums (``reduction="sum"``) and counts, and divide their totals once.
    - ``output_device`` may be any device.
    - ``chunk_sizes`` divides the batch unevenly, by given sizes or by measured speed.
    - ``buffers="mean"`` averages the buffers of the replicas; by default the first one's are kept.
      ``buffers="sync_batchnorm"`` lets every BatchNorm see the whole batch.
    - Tensors without dimensions go whole to every replica.
    - Scalars become a vector without a warning, any ``dim`` works, results may be dataclasses.

    Args:
        module: with all parameters and buffers on ``device_ids[0]``.
        device_ids: devices, all of them by default; without an accelerator and without CPU slots
            the module runs as it is, after one warning in a process (none for an empty list).
        output_device: where results are gathered; ``device_ids[0]`` by default.
        dim: the dimension of the batch.
        loss_fn: called as ``loss_fn(output, targets)`` in each replica; its result is the mean over
            the rows of the replica's part.
        chunk_sizes: each device's part of a batch of their total size. Other batches are divided in
            the same proportion, by largest remainders. ``"measured"``: in proportion to the rows
            per second of each replica's forward passes so far.
        buffers: ``"first"``, ``"mean"`` or ``"sync_batchnorm"``.
        gather_outputs: False for `ReplicaOutputs` instead of one result on one device.

    Raises:
        RuntimeError: a device that is not here; in ``forward`` a parameter or buffer on another
            device than the first.
        ValueError: an unknown ``buffers``; ``chunk_sizes`` that do not fit the devices; in
            ``forward`` positional or keyword tensors that would be cut into different numbers of
            parts.

    Thread-safe if the module is. Concurrent forward passes do not share replicas.
    """

    # Indices of devices, as in torch's class; CPU slots are "cpu".
    device_ids: list[int | str]
    output_device: int | str

    _zeros = True  # a parameter that no replica used gets zeros; else no gradient

    def __init__(
        self,
        module: T,
        device_ids: Sequence[Device] | None = None,
        output_device: Device | None = None,
        dim: int = 0,
        *,
        loss_fn: LossFunction | None = None,
        chunk_sizes: Sequence[int] | Literal["measured"] | None = None,
        buffers: Literal["first", "mean", "sync_batchnorm"] = "first",
        gather_outputs: bool = True,
    ) -> None:
        Module.__init__(self)  # torch's own chooses devices in another way
        if buffers not in ("first", "mean", "sync_batchnorm"):
            raise ValueError(f"buffers is 'first', 'mean' or 'sync_batchnorm', not {buffers!r}")
        self.module = module
        self.dim = dim
        object.__setattr__(self, "loss_fn", loss_fn)  # a loss module's state is not this module's
        self.buffer_policy = buffers
        self.gather_outputs = gather_outputs
        self._frames = Frames()
        places = places_of(device_ids)
        self._speeds = Speeds(len(places)) if chunk_sizes == "measured" else None
        self.chunk_sizes = (
            None if chunk_sizes is None or isinstance(chunk_sizes, str) else list(chunk_sizes)
        )
        self.device_ids = [as_given(place) for place in places]
        if not places:
            if device_ids is None or list(device_ids):
                say_where_it_runs()
            return
        if self.chunk_sizes is not None:
            check_chunk_sizes(self.chunk_sizes, len(places))
        self.output_device = as_given(places[0] if output_device is None else slot(output_device))
        self.src_device_obj = places[0]
        self._cache: _ReplicaCache | None = None
        if all(place.type == "cuda" for place in places):
            from torch.nn.parallel.data_parallel import _check_balance

            _check_balance([place.index for place in places])
        if len(places) == 1:
            self.module.to(places[0])

    @untraced
    @torch.autograd.profiler.record_function("DataParallel.forward")
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module on parts of the batch; see the class."""
        if not self.device_ids:
            return self._alone(inputs, kwargs)
        check_placement(self.module, self.src_device_obj)
        try:
            return self._divided(inputs, kwargs)
        except BaseException:
            if self._cache is not None:
                self._cache.drop()
            raise
        finally:
            if self._cache is not None:
                self._cache.release()

    def _divided(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scattered, keywords = self.scatter(inputs, kwargs, self.device_ids)
        if not scattered and not keywords:  # no inputs: one replica has nothing to divide
            scattered, keywords = ((),), ({},)
        used = self.device_ids[: len(scattered)]
        parts = zip(scattered, keywords, strict=True)
        sizes = [batch_size(part, self.dim) for part in parts]
        if len(self.device_ids) == 1:
            replicas: list[Any] = [self.module]
        else:
            replicas = self.replicate(self.module, used)
        works, party = self._works(replicas, sizes)
        try:
            outputs = self._run(works, scattered, keywords)
        finally:
            if party is not None:
                party.close()
        self._settle_buffers(replicas)
        if self.loss_fn is not None:
            return self.gather(weighted(outputs, sizes), self.output_device)
        if not self.gather_outputs:
            return ReplicaOutputs(outputs, slots(used), sizes, self.dim)
        if len(self.device_ids) == 1:
            return outputs[0]
        return self.gather(outputs, self.output_device)

    def _run(self, works: list[Any], inputs: Any, kwargs: Any) -> list[Any]:
        if len(self.device_ids) == 1:
            return [works[0](*inputs[0], **kwargs[0])]
        return self.parallel_apply(works, inputs, kwargs)

    def replicate(self, module: T, device_ids: Sequence[Device]) -> list[T]:
        """Return a replica for each device; they last until the next forward pass."""
        detach = not torch.is_grad_enabled()
        if self._cache is None:
            self._cache = _ReplicaCache(len(self.device_ids), self._zeros)
        return self._cache.replicas(module, device_ids, detach, self.buffer_policy != "mean")

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Device]
    ) -> Any:
        """Divide the arguments among the devices."""
        sizes = None
        weights = self.chunk_sizes if self._speeds is None else self._speeds.weights()
        total = batch_size((inputs, kwargs), self.dim)
        if weights is not None and total > 0:
            sizes = proportional(total, weights)
            sizes = [size for size in sizes if size]  # a short batch has fewer parts
            device_ids = device_ids[: len(sizes)]
        return scatter_gather.scatter_kwargs(inputs, kwargs, device_ids, self.dim, sizes)

    def parallel_apply(
        self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Sequence[dict[str, Any]]
    ) -> list[Any]:
        """Run the replicas, each on its device."""
        return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)])

    def gather(self, outputs: Any, output_device: Device) -> Any:
        """Join the replicas' results."""
        return scatter_gather.quiet_gather(outputs, output_device, self.dim)

    def _works(self, replicas: list[Any], sizes: list[int]) -> tuple[list[Any], Party | None]:
        """Return a callable for each replica, and the `Party` to close after the pass, if any."""
        works = replicas
        if self.loss_fn is not None:
            works = [WithLoss(replica, self.loss_fn) for replica in replicas]
        works = self._frames.traced(works, self.device_ids)
        if self._speeds is not None:
            works = [
                self._speeds.timed(i, size, work)
                for i, (work, size) in enumerate(zip(works, sizes, strict=True))
            ]
        if self.buffer_policy != "sync_batchnorm" or len(replicas) == 1:
            return works, None
        party = synchronize(replicas)
        return [party.watched(i, work) for i, work in enumerate(works)], party

    def _alone(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.loss_fn is not None:
            (work,) = self._frames.traced([WithLoss(self.module, self.loss_fn)], ["cpu"])
            return work(*inputs, **kwargs).view(1)
        (work,) = self._frames.traced([self.module], ["cpu"])
        output = work(*inputs, **kwargs)
        if self.gather_outputs:
            return output
        tensor = get_a_var((output, inputs, kwargs))
        device = CPU if tensor is None else tensor.device
        size = batch_size((inputs, kwargs), self.dim)
        return ReplicaOutputs([output], [device], [size], self.dim)

    def _settle_buffers(self, replicas: Sequence[Module]) -> None:
        """Set the module's buffers to the replicas' mean, integers to the first replica's."""
        if self.buffer_policy != "mean" or replicas[0] is self.module:
            return  # with one device the replica is the module
        with torch.no_grad():
            by_buffer = zip(*map(buffers_of, replicas), strict=True)
            for own, copies in zip(buffers_of(self.module), by_buffer, strict=True):
                terms = [buffer.to(own.device) for buffer in copies]
                if all(torch.equal(term, own) for term in terms):
                    continue  # as in evaluation
                averaged = own.is_floating_point() or own.is_complex()
                own.copy_(torch.stack(terms).mean(0) if averaged else terms[0])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if "_cache" in state:
            state["_cache"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A pickle of torch's class lacks the attributes that only this class has.
        self.__dict__.update({**OPTIONS, "_speeds": None, "_cache": None, "_frames": Frames()})
        super().__setstate__(state)


@untraced
def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Device] | None = None,
    output_device: Device | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call ``module(*inputs, **module_kwargs)`` on several devices, as `DataParallel` does.

    Args:
        module: with all parameters and buffers on ``device_ids[0]``.
        inputs: a tuple of positional arguments, a single argument, or None for no argument.
        device_ids: devices; all of them by default.
        output_device: where results are gathered; ``device_ids[0]`` by default.
        dim: the dimension of the batch.
        module_kwargs: keyword arguments, divided likewise.

    Raises:
        RuntimeError: no device; a parameter or buffer on another device than the first.
        ValueError: tensors that would be cut into different numbers of parts.
    """
    if not isinstance(inputs, tuple):
        inputs = () if inputs is None else (inputs,)
    places = places_of(device_ids)
    if not places:
        raise RuntimeError(
            "no available devices were found; for replicas on the CPU say where: "
            'device_ids=["cpu", "cpu"]'
        )
    target = places[0] if output_device is None else slot(output_device)
    check_placement(module, places[0])
    scattered, keywords = scatter_gather.scatter_kwargs(inputs, module_kwargs, places, dim)
    if not scattered and not keywords:
        scattered, keywords = ((),), ({},)
    if len(places) == 1:
        return traced(module)(*scattered[0], **keywords[0])
    used = places[: len(scattered)]
    replicas = replicate(module, used, not torch.is_grad_enabled())
    outputs = parallel_apply(replicas, scattered, keywords, used)
    return scatter_gather.quiet_gather(outputs, target, dim)


class _ReplicaCache:
    """The replicas of a `DataParallel` on all of its devices.

    A batch too short for all of them, or a pass concurrent with another, gets its own replicas.
    """

    def __init__(self, count: int, zeros: bool) -> None:
        self._count = count
        self._zeros = zeros
        self._lock = threading.Lock()
        self._known: Replicator | None = None

    def replicas(
        self, module: Any, devices: Sequence[Device], detach: bool, share_buffers: bool
    ) -> list[Any]:
        options = {"share_buffers": share_buffers, "zeros": self._zeros}
        if len(devices) != self._count or not self._lock.acquire(blocking=False):
            return Replicator(module, devices, lasting=False, **options).replicas(detach)
        try:
            if self._known is None or not self._known.is_for(module):
                self._known = Replicator(module, devices, **options)
            return self._known.replicas(detach)
        finally:
            self._lock.release()

    def release(self) -> None:
        """Drop the replicas' tensors after a pass, unless another pass uses the replicas."""
        if self._lock.acquire(blocking=False):
            try:
                if self._known is not None:
                    self._known.release()
            finally:
                self._lock.release()

    def drop(self) -> None:
        """Forget the replicas of a failed pass, which are freed with the exception.

        Its frames hold them, so reference counts cannot tell if another pass uses them.
        """
        with self._lock:
            self._known = None
