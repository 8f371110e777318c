"""Cases without a size: the barrier, and forming groups."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from fastcomm._measure.cases.base import Call, UnsizedCase


class Barrier(UnsizedCase):
    """``dist.barrier``."""

    name = "barrier"

    def bind(self, group: dist.ProcessGroup) -> Call:
        return lambda: dist.barrier(group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        # The monotonic clock is one for the whole machine: nobody may leave before the last came.
        time.sleep(0.002 * self.rank)
        came = torch.tensor([time.monotonic_ns()])
        self.bind(group)()
        left = time.monotonic_ns()
        dist.all_reduce(came, dist.ReduceOp.MAX, group=control)
        return int(left < int(came))


class NewGroup(UnsizedCase):
    """``dist.new_group`` of all ranks, one ``all_reduce`` in it, and its end."""

    name = "new_group"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = self.empty(1).zero_()

    def bind(self, group: dist.ProcessGroup) -> Call:
        backend, buffer = dist.get_backend_config(group), self.buffer

        def form() -> None:
            groups = [dist.new_group(backend=backend) for _ in range(self.repeats)]
            for formed in groups:
                dist.all_reduce(buffer, group=formed)
            for formed in groups:
                dist.destroy_process_group(formed)

        return form

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer.fill_(1)
        self.bind(group)()
        return int(self.buffer.item() != self.size**self.repeats)

    def prepare(self) -> None:
        self.buffer.zero_()


class NewGroups(NewGroup):
    """The same of many groups that live at the same time; the time is that of one."""

    name = "new_group_x100"
    repeats = 100

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer = self.buffer.double()
        return super().check(group, control)
