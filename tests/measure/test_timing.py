from support import bench_ranks
from support.measured import launched
from support.patience import ENDS

from fastcomm._measure.timing import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    choose_iterations,
    time_batch,
)


def test_iterations_fill_the_budget_within_limits() -> None:
    # 1 s for two backends in 5 rounds is 100 ms per batch.
    assert choose_iterations([1e6, 1e5], 1.0, 5) == [100, 1000]
    assert choose_iterations([1e3, 1e9], 1.0, 5) == [MAX_ITERATIONS // 5, MIN_ITERATIONS // 5]
    # The pilot calls may have used up the budget.
    assert choose_iterations([0.0], -1.0, 3) == [-(-MIN_ITERATIONS // 3)]


def test_every_call_is_timed() -> None:
    calls = []
    assert len(time_batch(lambda: calls.append(1), 7)) == len(calls) == 7


def test_ranks_agree_and_the_slowest_counts() -> None:
    results = launched(bench_ranks.time_two, 2, timeout_s=ENDS)
    for chosen, slowest, samples in results:
        assert chosen == [10]  # rank 0's
        assert slowest == [1, 5]
        assert samples == results[0][2]
        fast, skewed = samples
        assert min(fast.times_ns) >= 1_000_000
        assert min(skewed.times_ns) >= 4_000_000  # rank 1's time, on rank 0 too
        assert len(fast.batches) == 5
        assert len(fast.times_ns) >= MIN_ITERATIONS
