"""A hook for ``DistributedDataParallel``: fused reductions, norms and clipping bucket by bucket.

For a model that is wrapped already::

    state = fastcomm.ddp_comm_hooks.FusedState(model.parameters(), comm_dtype=torch.bfloat16)
    model.register_comm_hook(state, fastcomm.ddp_comm_hooks.fused_hook)
    ...
    loss.backward()
    state.result().total_norm

`fastcomm.nn.parallel.DistributedDataParallel` does this by itself.
"""

# No "from __future__ import annotations": DDP compares a hook's annotations with the types.
import functools
import gc
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _native
from fastcomm._distributed.copies import OfGroup
from fastcomm._gradients.fused import (
    FusedResult,
    check_max_norm,
    clip_grad_norm_,
    combined_norm,
    fused_all_reduce_,
)

__all__ = ["FusedState", "fused_hook"]


class FusedState(OfGroup):
    """The state of `fused_hook`, with the results of the last backward pass.

    Args:
        parameters: all of the model's, in the order in which their norms are combined: the same on
            every rank.
        process_group: the model's; None is the default one.
        average: divide by the number of ranks, after the sum. Stock DDP divides each rank's
            gradient before the sum, which gives other bits unless that number is a power of two.
        scale: a factor.
        comm_dtype: ``torch.bfloat16`` or ``torch.float16``: how gradients of fp32 travel.
        norm_type: 1, 2, ``inf`` or None.
        max_norm: gradients are clipped to it at the end of each backward pass that reduces them.
        error_feedback: with a ``comm_dtype``, add what rounding took from a gradient to the next
            (see `fused_all_reduce_`). It costs as much memory as the gradients. The error is that
            of gradients before ``scale``, so after a change of the loss scale one step has an error
            of the wrong scale, which is small.
        grad_scaler: the scaler of the loss, if there is one. Gradients stay scaled, as it expects,
            and are clipped to ``max_norm`` times its scale. If gradients are clipped without it
            though the process uses a scaler, there is a warning: they would be clipped to
            ``max_norm`` and then divided by the scale.

    A copy has no result yet, and residuals of its own for its own parameters. A deep copy has the
    same ``grad_scaler``. A pickle can be made with the default group only.

    Raises:
        ValueError: ``max_norm`` without a norm, or negative.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        process_group: dist.ProcessGroup | None = None,
        *,
        average: bool = True,
        scale: float = 1.0,
        comm_dtype: torch.dtype | None = None,
        norm_type: float | None = 2.0,
        max_norm: float | None = None,
        error_feedback: bool = False,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        check_max_norm(max_norm, norm_type)
        self.parameters = [p for p in parameters if p.requires_grad]
        self.process_group = process_group
        self.average = average
        self.scale = scale
        self.comm_dtype = comm_dtype
        self.norm_type = norm_type
        self.max_norm = max_norm
        self.error_feedback = error_feedback and comm_dtype is not None
        self.grad_scaler = grad_scaler
        self._residuals: dict[int, torch.Tensor] = {}  # by id(parameter)
        self._results: list[FusedResult] = []
        self._places: dict[int, tuple[int, int]] = {}  # by id(parameter): result, index in it
        self._will_clip = False  # at the end of this backward pass

    def _copied(self) -> dict[str, Any]:
        found = {k: v for k, v in self.__dict__.items() if k not in ("process_group", "_places")}
        # A list in the order of the parameters, since those of a copy have other ids.
        residuals = [self._residuals.get(id(p)) for p in self.parameters]
        return {**found, "_results": [], "_residuals": residuals}

    def _shared(self) -> dict[str, Any]:
        return {"grad_scaler": self.grad_scaler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._places = {}
        self._will_clip = False
        pairs = zip(self.parameters, state["_residuals"], strict=True)
        self._residuals = {id(p): kept.clone() for p, kept in pairs if kept is not None}

    def result(self) -> FusedResult:
        """Return the result of the last backward pass, once it is over.

        Its ``total_norm`` is that of all gradients, before clipping, with the same bits however
        they are divided into buckets.

        Raises:
            RuntimeError: no backward pass has reduced anything yet.
        """
        if not self._results:
            raise RuntimeError("no backward pass has reduced gradients yet")
        places = [self._places[id(p)] for p in self.parameters if id(p) in self._places]
        # Buckets may be on several devices, or some reduced in the host's memory.
        device = self._results[0].found_inf.device
        norms = [result.partial_norms.to(device) for result in self._results]
        parts = torch.stack([norms[k][i] for k, i in places])
        found_inf = torch.stack([result.found_inf.to(device) for result in self._results]).amax()
        total = None
        if self.norm_type is not None:
            wide = any(p.dtype in (torch.float64, torch.complex128) for p in self.parameters)
            total = combined_norm(parts, self.norm_type)
            total = total if wide else total.to(torch.float32)
        return FusedResult(total, found_inf, parts, self.norm_type)

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # In a static graph's first step every bucket says that it is number 0 and not the last.
        if id(bucket.parameters()[0]) in self._places:
            self._results.clear()
            self._places.clear()
            self._will_clip = False
        for i, parameter in enumerate(bucket.parameters()):
            self._places[id(parameter)] = (len(self._results), i)
        buffer = bucket.buffer()
        grads = _gradients_of(bucket)
        result = fused_all_reduce_(
            grads,
            self.process_group,
            average=self.average,
            scale=self.scale,
            comm_dtype=self.comm_dtype,
            norm_type=self.norm_type,
            residuals=self._residuals_of(bucket.parameters(), grads),
            async_op=True,
        )
        self._results.append(result)
        # Under join(), a rank without further inputs reduces buckets outside of a backward pass. It
        # takes no steps.
        in_backward = torch._C._current_graph_task_id() != -1
        if self.max_norm is not None and in_backward and self._is_over(bucket):
            self._will_clip = True
            self._at_the_end(again=True)
        if result.work is not None:
            future: torch.futures.Future[torch.Tensor]
            future = _native.load().future_of(result.work, buffer)
            return future
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _is_over(self, bucket: dist.GradBucket) -> bool:
        """Tell whether this bucket is the last one; True once per pass."""
        if self._will_clip:
            return False
        if bucket.is_last():
            return True
        return bucket.index() == 0 and all(id(p) in self._places for p in self.parameters)

    def _residuals_of(
        self, parameters: list[torch.Tensor], grads: list[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        if not self.error_feedback:
            return None
        found = []
        for parameter, grad in zip(parameters, grads, strict=True):
            residual = self._residuals.get(id(parameter))
            if (
                residual is None
                or residual.stride() != grad.stride()
                or residual.device != grad.device
            ):
                single = grad.dtype == torch.complex64
                residual = torch.zeros_like(grad, dtype=grad.dtype if single else torch.float32)
                self._residuals[id(parameter)] = residual
            found.append(residual)
        return found

    def _at_the_end(self, again: bool) -> None:
        """Clip after DDP's own last callback, which runs after the first one queued here."""
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback((lambda: self._at_the_end(again=False)) if again else self._clip)

    def _clip(self) -> None:
        total = self.result().total_norm
        if self.max_norm is None or total is None:
            return
        if self.grad_scaler is None:
            _warn_of_scalers()
        limit = self.max_norm * (1.0 if self.grad_scaler is None else self.grad_scaler.get_scale())
        # Gradients with a small enough norm would be multiplied by 1. On a device they are, since
        # reading the norm would wait for the device.
        if not total.is_cpu or not limit / (total + 1e-6) >= 1:
            norm_type = 2.0 if self.norm_type is None else self.norm_type
            clip_grad_norm_(self.parameters, limit, norm_type, total_norm=total)


def _gradients_of(bucket: dist.GradBucket) -> list[torch.Tensor]:
    """Return the bucket's gradients; with complex parameters as 1-d tensors of real numbers.

    Such a bucket holds two real numbers per complex element, and torch's list of gradients covers
    the first half only.
    """
    parameters, buffer = bucket.parameters(), bucket.buffer()
    if buffer.is_complex() or not any(p.is_complex() for p in parameters):
        gradients: list[torch.Tensor] = bucket.gradients()
        return gradients
    sizes = [p.numel() * (2 if p.is_complex() else 1) for p in parameters]
    parts: tuple[torch.Tensor, ...] = buffer.split(sizes)
    return list(parts)


@functools.cache
def _warn_of_scalers() -> None:
    """Warn if a scaler has scaled a loss in this process; search all objects, once."""
    for found in gc.get_objects():
        if issubclass(type(found), torch.amp.GradScaler) and found._scale is not None:
            warnings.warn(
                "a GradScaler scales losses in this process, and max_norm is about gradients as "
                "they are: where it scales this model's loss, give it: grad_scaler=scaler",
                RuntimeWarning,
                stacklevel=2,
            )
            return


def fused_hook(state: FusedState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket by one fused operation: a hook for ``register_comm_hook``.

    Gradients are reduced where they lie in the bucket, while the backward pass goes on. The hook
    also divides, since DDP does not where there is a hook. It supports ``join()``, ``no_sync()``,
    ``static_graph``, ``find_unused_parameters`` and ``gradient_as_bucket_view``.
    """
    return state._reduce(bucket)
