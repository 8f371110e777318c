import pytest

from fastcomm._measure.stats import bandwidth_gbs, percentile, summarize


def test_percentile_is_nearest_rank() -> None:
    values = list(range(100, 0, -1))
    assert percentile(values, 99) == 99
    assert percentile(values, 100) == 100
    assert percentile(values, 50) == 50
    assert percentile(values, 0.5) == 1
    assert percentile([3.0], 99) == 3.0
    # Of fewer than 100 values the 99th percentile is the largest: nothing is interpolated.
    assert percentile([1, 2, 1000], 99) == 1000


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101)])
def test_percentile_refuses(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def test_summary_of_known_times() -> None:
    summary = summarize([1000 * value for value in range(1, 201)])
    assert (summary.count, summary.min_us, summary.median_us) == (200, 1.0, 100.5)
    assert (summary.p99_us, summary.mean_us) == (198.0, 100.5)


def test_bandwidth_is_in_decimal_gigabytes() -> None:
    assert bandwidth_gbs(10**9, 1e6) == 1.0
    assert bandwidth_gbs(8, 0) == 0.0
