"""send and recv between rank 0 and 1, 2 and 3, and so on; a last one without a peer is idle."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fastcomm._measure.cases.base import Call, Case, count_wrong, pattern


class _Pairs(Case):
    def __init__(self, nbytes: int, dtype: torch.dtype, rank: int, size: int) -> None:
        super().__init__(nbytes, dtype, rank, size)
        self.peer = rank ^ 1
        self.idle = self.peer >= size
        self.first = rank < self.peer
        self.given, self.taken = self.empty(self.numel), self.empty(self.numel)

    @staticmethod
    def bus_factor(size: int) -> float:
        return 1.0

    def check(self, group: dist.ProcessGroup, control: dist.ProcessGroup) -> int:
        self.given.copy_(pattern(self.numel, self.dtype, self.rank))
        self.taken.fill_(99)
        self.bind(group)()
        return self.wrong()

    def wrong(self) -> int:
        """Elements of ``taken`` that are not the peer's."""
        wanted = pattern(self.numel, self.dtype, self.peer)
        return 0 if self.idle else count_wrong(self.taken, wanted)

    def prepare(self) -> None:
        self.given.zero_()


class PingPong(_Pairs):
    """There and back; the time is that of one way."""

    name = "send_recv"
    repeats = 2

    def bind(self, group: dist.ProcessGroup) -> Call:
        given, taken, peer = self.given, self.taken, self.peer

        def ping() -> None:
            dist.send(given, peer, group=group)
            dist.recv(taken, peer, group=group)

        def pong() -> None:
            dist.recv(taken, peer, group=group)
            dist.send(given, peer, group=group)

        return _nothing if self.idle else ping if self.first else pong


class Stream(_Pairs):
    """Messages one after the other, all in one direction; the time is that of one."""

    name = "send_recv_stream"
    repeats = 16

    def bind(self, group: dist.ProcessGroup) -> Call:
        given, taken, peer = self.given, self.taken, self.peer

        def send() -> None:
            for _ in range(self.repeats):
                dist.send(given, peer, group=group)

        def receive() -> None:
            for _ in range(self.repeats):
                dist.recv(taken, peer, group=group)

        return _nothing if self.idle else send if self.first else receive

    def wrong(self) -> int:
        return 0 if self.first else super().wrong()


def _nothing() -> None:
    pass
