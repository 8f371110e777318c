"""The cost of ranks' collectives, and which rank the others wait for.

Times are in microseconds, from when the last rank has come: how long the others had waited by then
is told beside them. Percentiles are by nearest rank (`fastcomm._measure.stats`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fastcomm._measure.stats import bandwidth_gbs, percentile
from fastcomm._records.busbw import bus_bytes
from fastcomm._records.collectives import Collective, matched
from fastcomm._records.ranks import Rank

_RARE = 0.001  # the probability below which chance explains nothing


@dataclass(frozen=True)
class Cost:
    """Collectives of one operation, with messages of ``bytes`` to less than twice that."""

    operation: str
    bytes: int  # a power of two, or 0; of one rank's message
    count: int
    median_us: float
    p99_us: float
    busbw_gbs: float | None  # median; None if the operation has none
    waiting: float  # the part of the ranks' time in these calls, 0 to 1


@dataclass(frozen=True)
class Lateness:
    """The part of one rank in waits: how often it was the last to come."""

    rank: int
    collectives: int  # of which it might have been the last
    last: int
    by_us: float | None  # median of how long after the last but one; None if it never was last
    waiting: float  # the part of its time in these calls, 0 to 1
    is_straggler: bool  # last more often than chance explains


@dataclass(frozen=True)
class Summary:
    """The costs, the ranks, and how many collectives are in neither."""

    costs: tuple[Cost, ...]
    ranks: tuple[Lateness, ...]
    counted: int
    open: int
    failed: int  # also those in which ranks have called different operations
    cut_off: int  # not all ranks' calls are there, though they may have been


def summarize(ranks: Sequence[Rank]) -> Summary:
    """Return the summary of the collectives of ranks."""
    counted = []
    left_out = {"open": 0, "failed": 0, "cut_off": 0}
    for each in matched(ranks):
        if each.duration is not None:
            counted.append(each)
        else:
            left_out["cut_off" if each.is_cut_off else "open" if each.is_open else "failed"] += 1
    return Summary(
        costs=tuple(_costs(counted)),
        ranks=tuple(_lateness(rank.number, counted) for rank in ranks),
        counted=len(counted),
        **left_out,
    )


def _costs(collectives: Sequence[Collective]) -> list[Cost]:
    classes: dict[tuple[str, int], list[Collective]] = {}
    for each in collectives:
        floor = 1 << each.bytes.bit_length() >> 1
        classes.setdefault((each.first.operation, floor), []).append(each)
    costs = []
    for (operation, floor), members in sorted(classes.items()):
        times = [_us(each.duration or 0) for each in members]
        speeds = [
            bandwidth_gbs(moved, time)
            for each, time in zip(members, times, strict=True)
            if (moved := bus_bytes(operation, each.bytes, each.group.size)) is not None
        ]
        pairs = [(each, rank) for each in members for rank in each.calls]
        costs.append(
            Cost(
                operation=operation,
                bytes=floor,
                count=len(members),
                median_us=statistics.median(times),
                p99_us=percentile(times, 99),
                busbw_gbs=statistics.median(speeds) if speeds else None,
                waiting=_waiting(pairs),
            )
        )
    return costs


def _lateness(rank: int, collectives: Sequence[Collective]) -> Lateness:
    own = [each for each in collectives if rank in each.calls and each.group.size > 1]
    last = [each for each in own if each.straggler == rank]
    chance = statistics.fmean(1 / each.group.size for each in own) if own else 1.0
    return Lateness(
        rank=rank,
        collectives=len(own),
        last=len(last),
        by_us=statistics.median(_us(each.lateness) for each in last) if last else None,
        waiting=_waiting([(each, rank) for each in own]),
        is_straggler=bool(own) and tail(len(own), len(last), chance) < _RARE,
    )


def _waiting(calls: Sequence[tuple[Collective, int]]) -> float:
    """Return which part of the time in calls, each by a rank, was spent waiting for others."""
    waited = sum(each.wait(rank) for each, rank in calls)
    ends = [(each.calls[rank].ended or 0) - each.calls[rank].issued for each, rank in calls]
    return min(1.0, waited / total) if (total := sum(ends)) > 0 else 0.0


def _us(ns: int) -> float:
    return ns / 1000


def tail(tries: int, hits: int, chance: float) -> float:
    """Return how probable ``hits`` or more of ``tries`` are, where each has this ``chance``."""
    if hits <= 0:
        return 1.0
    if not 0 < chance < 1:
        return 1.0 if chance >= 1 else 0.0
    return math.fsum(
        math.exp(
            math.lgamma(tries + 1)
            - math.lgamma(n + 1)
            - math.lgamma(tries - n + 1)
            + n * math.log(chance)
            + (tries - n) * math.log1p(-chance)
        )
        for n in range(hits, tries + 1)
    )
