"""Summaries of times, and bandwidths.

Percentiles follow the nearest-rank definition: each is one of the samples. Of fewer than 100
samples p99 is therefore the maximum. The median of an even number of samples is the mean of two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Times of one (operation, size, backend), in microseconds, over ``count`` iterations."""

    count: int
    min_us: float
    median_us: float
    p99_us: float
    mean_us: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` per cent of ``values`` do not exceed.

    Raises:
        ValueError: no values, or ``percent`` outside of (0, 100].
    """
    if not values:
        raise ValueError("percentile of no values")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be in (0, 100], got {percent}")
    # Multiplied first: 55 / 100 * 100 is above 55 in floating point, so its ceiling is 56.
    rank = math.ceil(percent * len(values) / 100)
    return sorted(values)[rank - 1]


def summarize(times_ns: Sequence[float]) -> Summary:
    """Summary of ``times_ns``, the times of single iterations in nanoseconds.

    Raises:
        ValueError: no times.
    """
    if not times_ns:
        raise ValueError("summary of no times")
    return Summary(
        count=len(times_ns),
        min_us=min(times_ns) / 1e3,
        median_us=statistics.median(times_ns) / 1e3,
        p99_us=percentile(times_ns, 99) / 1e3,
        mean_us=statistics.fmean(times_ns) / 1e3,
    )


def bandwidth_gbs(nbytes: float, time_us: float) -> float:
    """Bandwidth of ``nbytes`` in ``time_us``, in 10^9 bytes per second; 0 for a time of 0."""
    return nbytes / (time_us * 1e3) if time_us > 0 else 0.0
