"""Device timers: what ranks agree on, and what uses wall-clock time. No device's clock is used."""

from __future__ import annotations

from support import bench_ranks
from support.measured import launched
from support.patience import ENDS


def test_a_sample_that_came_late_on_one_rank_is_taken_again_on_all() -> None:
    results = launched(bench_ranks.time_queued, 2, 3, timeout_s=ENDS)
    for calls, clock, times, host, asked in results:
        assert clock == "device" and calls == 50 and len(times) == 4
        assert set(times) == {2_000_000} and set(host) == {1_000_000}  # rank 1's time, and a call's
        assert asked == results[0][4]
        # Rank 1 was late until the device waited 8 times as long.
        assert asked[:4] == [1_000_000, 2_000_000, 4_000_000, 8_000_000]
        assert set(asked[4:]) == {8_000_000}


def test_what_waits_for_the_device_takes_the_walls_clock() -> None:
    for _, clock, times, host, asked in launched(bench_ranks.time_queued, 2, 99, timeout_s=ENDS):
        assert clock == "wall" and len(times) == 4 and not host
        assert max(asked) <= 200_000_000 and all(time_ns < 50_000_000 for time_ns in times)
