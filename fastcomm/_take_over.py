"""fastcomm in place of torch's functions and of Gloo for a whole process: ``fastcomm run``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from fastcomm._use import use


@functools.cache
def take_over() -> None:
    """Put fastcomm in place of torch's functions and of Gloo, for the rest of the process."""
    _take_over_gloo()
    use().__enter__()


def instead_of(backend: Any, *, has_cuda: bool) -> Any:
    """Return the backend to use where a script asks for ``backend``.

    It replaces Gloo, and without CUDA also NCCL and the default; other backends stay.
    """
    if backend is None:
        return None if has_cuda else "fastcomm"
    ours = ("gloo",) if has_cuda else ("gloo", "nccl")
    parts = []
    for part in str(backend).lower().split(","):
        device, colon, name = part.rpartition(":")
        parts.append(device + colon + ("fastcomm" if name in ours else name))
    return ",".join(parts) if "fastcomm" in "".join(parts) else backend


def _take_over_gloo() -> None:
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    from fastcomm._distributed import barrier as ours
    from fastcomm._distributed.backend import backend_of

    init, new = dist.init_process_group, dist.new_group

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        chosen = instead_of(backend, has_cuda=torch.cuda.is_available())
        return init(chosen, *arguments, **options)

    @functools.wraps(new)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        if backend is not None:  # None: the default group's backend
            backend = instead_of(backend, has_cuda=torch.cuda.is_available())
        return new(ranks, timeout, backend, *arguments, **options)

    # torch's takes groups named gloo alone, which a script that asked for Gloo does not have now.
    named = dist.monitored_barrier

    @functools.wraps(named)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        outside = dist.distributed_c10d._rank_not_in_group(group)
        if outside or backend_of(group, behind_checks=True) is None:
            return named(group, timeout, wait_all_ranks)
        return ours.monitored_barrier(group, timeout, wait_all_ranks)

    _replace(init, init_process_group)
    _replace(new, new_group)
    _replace(named, monitored_barrier)


def _replace(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Replace a function in ``torch.distributed`` and in all modules below it that import it."""
    for name, module in list(sys.modules.items()):
        inside = f"{name}.".startswith("torch.distributed.")
        if inside and vars(module).get(theirs.__name__) is theirs:
            setattr(module, theirs.__name__, ours)
