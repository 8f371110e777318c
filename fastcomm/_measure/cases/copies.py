"""Cases that move data as it is: broadcast, gathers, scatter, all_to_all."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fastcomm._measure.cases.base import (
    Call,
    Case,
    PartsCase,
    all_gather_single,
    count_wrong,
    pattern,
)


class Broadcast(Case):
    """``dist.broadcast`` from rank 0."""

    name = "broadcast"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.buffer = self.empty(self.numel)

    @staticmethod
    def bus_factor(size: int) -> float:
        return 1.0

    def bind(self, group: dist.ProcessGroup) -> Call:
        buffer = self.buffer
        return lambda: dist.broadcast(buffer, 0, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.buffer.copy_(pattern(self.numel, self.dtype, self.rank))
        self.bind(group)()
        return count_wrong(self.buffer, pattern(self.numel, self.dtype, 0))

    def prepare(self) -> None:
        self.buffer.zero_()


class AllGather(PartsCase):
    """``dist.all_gather`` into a list of separate tensors."""

    name = "all_gather"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.part = self.empty(self.numel)
        self.parts = [self.empty(self.numel) for _ in range(size)]

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, parts = self.part, self.parts
        return lambda: dist.all_gather(parts, part, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        for part in self.parts:
            part.fill_(99)
        self.part.copy_(pattern(self.numel, self.dtype, self.rank))  # it may be one of them
        self.bind(group)()
        return sum(
            count_wrong(part, pattern(self.numel, self.dtype, rank))
            for rank, part in enumerate(self.parts)
        )

    def prepare(self) -> None:
        self.part.zero_()


class Gather(AllGather):
    """``dist.gather`` to rank 0."""

    name = "gather"

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, parts = self.part, self.parts if self.rank == 0 else None
        return lambda: dist.gather(part, parts, 0, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        wrong = super().check(group, control)
        return wrong if self.rank == 0 else 0  # the others get nothing


class AllGatherIntoTensor(AllGather):
    """``dist.all_gather_into_tensor``."""

    name = "all_gather_into_tensor"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.whole = self.empty(size * self.numel)
        self.parts = list(self.whole.chunk(size))

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, whole = self.part, self.whole
        return lambda: all_gather_single(whole, part, group=group)


class AllGatherIntoTensorInPlace(AllGatherIntoTensor):
    """The same with what a rank gives in its place of the result."""

    name = "all_gather_into_tensor_in_place"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.part = self.parts[rank]


class Scatter(PartsCase):
    """``dist.scatter`` from rank 0, from a list of separate tensors."""

    name = "scatter"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.part = self.empty(self.numel)
        self.parts = [self.empty(self.numel) for _ in range(size)] if rank == 0 else None

    def bind(self, group: dist.ProcessGroup) -> Call:
        part, parts = self.part, self.parts
        return lambda: dist.scatter(part, parts, 0, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        for receiver, part in enumerate(self.parts or ()):
            part.copy_(self.part_of(0, receiver))
        self.part.fill_(99)
        self.bind(group)()
        return count_wrong(self.part, self.part_of(0, self.rank))

    def prepare(self) -> None:
        for part in self.parts or ():
            part.zero_()


class AllToAllSingle(PartsCase):
    """``dist.all_to_all_single`` with equal parts."""

    name = "all_to_all_single"

    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.given = self.empty(size * self.numel)
        self.taken = self.empty(size * self.numel)

    def bind(self, group: dist.ProcessGroup) -> Call:
        given, taken = self.given, self.taken
        return lambda: dist.all_to_all_single(taken, given, group=group)

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.given.copy_(pattern(self.size * self.numel, self.dtype, self.rank))
        self.taken.fill_(99)
        self.bind(group)()
        parts = self.taken.view(self.size, -1)
        return sum(
            count_wrong(part, self.part_of(sender, self.rank)) for sender, part in enumerate(parts)
        )

    def prepare(self) -> None:
        self.given.zero_()


class AllToAll(AllToAllSingle):
    """``dist.all_to_all`` of lists."""

    name = "all_to_all"

    def bind(self, group: dist.ProcessGroup) -> Call:
        given, taken = (list(whole.chunk(self.size)) for whole in (self.given, self.taken))
        return lambda: dist.all_to_all(taken, given, group=group)
