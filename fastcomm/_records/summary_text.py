"""A summary as text."""

from __future__ import annotations

from fastcomm._measure.units import format_size
from fastcomm._records.summary import Summary


def findings(summary: Summary) -> list[str]:
    """Return sentences: which rank is waited for, and what is not in the numbers."""
    ranks = [rank for rank in summary.ranks if rank.collectives]
    late = sorted((rank for rank in ranks if rank.is_straggler), key=lambda rank: -rank.last)
    found = [
        f"rank {rank.rank} is last in {rank.last / rank.collectives:.0%} of {rank.collectives} "
        f"collectives, by {format_us(rank.by_us or 0)} (median)"
        for rank in late
    ]
    if not ranks:
        found.append("no collective is here with the calls of several ranks, so none is compared")
    elif not late:
        most = max(rank.collectives for rank in ranks)
        found.append(
            f"no rank is last more often than chance explains, of up to {most} collectives"
        )
    for count, why in (
        (summary.open, "open"),
        (summary.failed, "failed"),
        (summary.cut_off, "without the call of each rank: not all records reach so far"),
    ):
        if count:
            found.append(f"not counted: {count} {why}")
    return found


def format_us(us: float) -> str:
    """Return a time as text, with two or three digits: ``12 µs``, ``3.1 ms``, ``2.0 s``."""
    for limit, unit in ((1e3, "µs"), (1e6, "ms")):
        if us < limit:
            value = us * 1e3 / limit
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{us / 1e6:.1f} s"


def format_tables(summary: Summary) -> str:
    """Return tables of text, one of operations and one of ranks, and what the columns mean."""
    from tabulate import tabulate

    costs = [
        [
            *(cost.operation, format_size(cost.bytes), cost.count),
            *(f"{cost.median_us:,.1f}", f"{cost.p99_us:,.1f}"),
            "" if cost.busbw_gbs is None else f"{cost.busbw_gbs:.3g}",
            f"{cost.waiting:.0%}",
        ]
        for cost in summary.costs
    ]
    ranks = [
        [
            *(rank.rank, rank.collectives, rank.last),
            f"{rank.last / rank.collectives:.0%}" if rank.collectives else "",
            "" if rank.by_us is None else f"{rank.by_us:,.1f}",
            f"{rank.waiting:.0%}" if rank.collectives else "",
        ]
        for rank in summary.ranks
    ]
    heads = ["operation", "size from", "count", "median µs", "p99 µs", "busbw GB/s", "waiting"]
    sides = ["left", *["right"] * 6]
    texts = [
        tabulate(costs, heads, colalign=sides, disable_numparse=True) if costs else "",
        tabulate(
            ranks,
            ["rank", "collectives", "last", "last %", "by µs", "waiting"],
            colalign=["right"] * 6,
            disable_numparse=True,
        ),
        "median, p99: from when the last rank has come to the last end. size: of one rank's "
        "message, up to twice that."
        "\nwaiting: the part of the time in calls that was spent waiting for other ranks."
        "\nby: how long after the last but one, in the median of those where it was last.",
    ]
    return "\n\n".join(text for text in texts if text)
