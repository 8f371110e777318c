"""``torch.amp.GradScaler`` for gradients that are reduced in the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from fastcomm.optim.sharded_optimizer import ShardedOptimizer

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """torch's GradScaler, with the same arguments, for `fastcomm.optim.ShardedOptimizer` too.

    torch's own checks this rank's gradients for inf and NaN before they are reduced, so ranks would
    skip different steps, and their scales would differ. This one lets the reduction unscale and
    check, and uses its flag, so that all ranks skip the same steps and have the same scale. With
    any other optimizer it does what torch's does. It is used as torch's is::

        scaler = fastcomm.amp.GradScaler("cpu")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    It is not thread-safe. All ranks construct it with the same arguments.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step, or skip the step on all ranks if a gradient of one is infinite or NaN.

        Returns:
            None for a `ShardedOptimizer`, else what torch's scaler returns.

        Raises:
            RuntimeError: a closure, or a second step without ``update()``.
            FastcommError: as for `ShardedOptimizer.step`.
        """
        if not self._enabled or not isinstance(optimizer, ShardedOptimizer):
            stepped: float | None = super().step(optimizer, *args, **kwargs)
            return stepped
        if args or kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        found_inf = optimizer.step_unscaled(self.get_scale())
        state["found_inf_per_device"] = {found_inf.device: found_inf}
        state["stage"] = OptState.STEPPED
        return None

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale gradients as torch's does, except those that are still to be reduced.

        Raises:
            RuntimeError: a `ShardedOptimizer`, which unscales as it reduces.
        """
        if self._enabled and isinstance(optimizer, ShardedOptimizer):
            raise RuntimeError(
                "ShardedOptimizer unscales gradients as it reduces them, in step(): leave "
                "unscale_() out, and clip by ShardedOptimizer(..., max_norm=...)"
            )
        super().unscale_(optimizer)
