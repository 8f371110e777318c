"""A barrier that names missing ranks; ``torch.distributed.monitored_barrier`` takes only Gloo."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from fastcomm._distributed import backend as _backend

_UNSET = timedelta(milliseconds=-1)  # c10d's value for the group's own timeout


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait until all ranks of a group arrive, as ``torch.distributed.monitored_barrier`` does.

    Synchronous, and in order with the group's other operations.

    Args:
        group: a process group of backend fastcomm; None is the default group.
        timeout: the longest wait; None is the group's timeout.
        wait_all_ranks: name all missing ranks instead of the first one.

    Raises:
        CollectiveTimeoutError: not all ranks arrived. On rank 0 the error names those missing. The
            group cannot be used any more.
        ValueError: the group is not of backend fastcomm.
    """
    if _backend.backend_of(group, behind_checks=True) is None:
        raise ValueError("monitored_barrier() needs a process group of backend fastcomm")
    pg = group if group is not None else dist.distributed_c10d._get_default_group()
    pg.monitored_barrier(_UNSET if timeout is None else timeout, wait_all_ranks)
