"""Links: latency and bandwidth between two hosts over Gloo, and inside a host in shared memory.

Two hosts are measured by their first ranks, a host by its first two and by all of its ranks; the
other ranks wait meanwhile. Receives are posted before their messages: Gloo asks for a message once
it is expected, so a late receive costs a round trip more (docs/adr/0042-links-beside-gloo.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fastcomm._measure.stats import bandwidth_gbs
from fastcomm._measure.timing import Call, measure

Row = dict[str, Any]

STREAM_BYTES = 8 << 20
"""Bytes of a message that tells the bandwidth; it travels as several, all expected at once."""
_PIECES = 4
_TAG = 1  # of short messages: some are expected while streams flow
_WORD_BYTES = 8
_ROUNDS = 2  # a link drifts less than processors do, and a slow one takes long
_UNTIMED = 1
_MOST_S = 4.0  # more calls tell nothing more


class PingPong:
    """A call: 8 bytes there and back, between two ranks.

    Args:
        goes_first: whether this rank sends first; the other one does not.
        peer: the other one, as a rank of the default group.
        group: over which.
    """

    def __init__(self, goes_first: bool, peer: int, group: dist.ProcessGroup) -> None:
        self._first, self._peer, self._group = goes_first, peer, group
        self._given = torch.zeros(_WORD_BYTES // 4)
        self._taken = torch.zeros(_WORD_BYTES // 4)
        self._expect()

    def __call__(self) -> None:
        if self._first:
            self._send()
        self._awaited.wait()
        self._expect()
        if not self._first:
            self._send()

    def finish(self) -> None:
        """Send what the other one still expects; both have to."""
        self._send()
        self._awaited.wait()

    def _send(self) -> None:
        dist.send(self._given, self._peer, group=self._group, tag=_TAG)

    def _expect(self) -> None:
        work = dist.irecv(self._taken, self._peer, group=self._group, tag=_TAG)
        assert work is not None
        self._awaited = work


def stream(sends: bool, receives: bool, peer: int, group: dist.ProcessGroup) -> Call:
    """Return a call that moves `STREAM_BYTES` to a peer, from it, or both at once."""
    pieces = [torch.zeros(STREAM_BYTES // _PIECES // 4) for _ in range(2 * _PIECES)]
    taken, given = pieces[:_PIECES] * receives, pieces[_PIECES:] * sends

    def move() -> None:
        works = [dist.irecv(each, peer, group=group) for each in taken]
        works += [dist.isend(each, peer, group=group) for each in given]
        for work in works:
            assert work is not None
            work.wait()

    return move


def measure_link(
    pair: tuple[int, int],
    gloo: dist.ProcessGroup,
    control: dist.ProcessGroup,
    budget_s: float,
    iterations: int,
) -> Row:
    """Measure between two ranks; all ranks call it, and get the figures.

    Args:
        pair: ranks of the default group, on two hosts.
        gloo: over which, of all ranks.
        control: of all ranks; nothing is measured over it.
        budget_s: seconds for it, about; ten calls of each kind are made in any case.
        iterations: calls of each kind instead; 0: as many as there is time for.

    Returns:
        ``latency_us`` of 8 bytes one way, and bandwidths in Gbit/s: ``there_gbits`` from the first
        to the second, ``back_gbits``, and ``both_gbits`` each way if both send at once.
    """
    own, ping = dist.get_rank(), None
    calls: list[Call] = [_nothing] * 4
    if own in pair:
        first = own == pair[0]
        peer = pair[1] if first else pair[0]
        ping = PingPong(first, peer, gloo)
        ways = ((first, not first), (not first, first), (True, True))
        calls = [ping, *(stream(sends, receives, peer, gloo) for sends, receives in ways)]
    round_trip, *streams = _medians_us(calls, control, budget_s, iterations)
    if ping is not None:
        ping.finish()
    there, back, both = (round(8 * bandwidth_gbs(STREAM_BYTES, time), 4) for time in streams)
    return {
        "latency_us": round(round_trip / 2, 3),
        "there_gbits": there,
        "back_gbits": back,
        "both_gbits": both,
        "bytes": STREAM_BYTES,
    }


def measure_host(
    ranks: Sequence[int],
    group: Any,
    control: dist.ProcessGroup,
    budget_s: float,
    iterations: int,
) -> Row:
    """Measure inside a host; all ranks call it, and get the figures: none of a single rank.

    Args:
        ranks: of the host.
        group: of these; on other ranks of no use.
        control, budget_s, iterations: as of `measure_link`.

    Returns:
        ``round_trip_us`` of 8 bytes between the first two ranks, and ``all_reduce_gbs``: the bytes
        of an ``all_reduce`` of all of them over its time, in GB/s.
    """
    if len(ranks) < 2:
        return {}
    own, ping = dist.get_rank(), None
    calls: list[Call] = [_nothing] * 2
    if own in ranks[:2]:
        ping = PingPong(own == ranks[0], ranks[1] if own == ranks[0] else ranks[0], group)
        calls[0] = ping
    if own in ranks:
        summed = torch.zeros(STREAM_BYTES // 4)
        calls[1] = lambda: dist.all_reduce(summed, group=group)
    round_trip, all_reduce = _medians_us(calls, control, budget_s, iterations)
    if ping is not None:
        ping.finish()
    return {
        "round_trip_us": round(round_trip, 3),
        "all_reduce_gbs": round(bandwidth_gbs(STREAM_BYTES, all_reduce), 4),
        "bytes": STREAM_BYTES,
    }


def _medians_us(
    calls: Sequence[Call], control: dist.ProcessGroup, budget_s: float, iterations: int
) -> list[float]:
    """Return the median time of each call, in microseconds."""
    samples = measure(
        calls,
        control,
        min(budget_s, _MOST_S),
        rounds=_ROUNDS,
        iterations=iterations,
        warm_up=_UNTIMED,
    )
    return [statistics.median(each.times_ns) / 1e3 for each in samples]


def _nothing() -> None:
    pass
