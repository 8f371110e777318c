"""What collectives cost, and who is named as the one that others wait for."""

from __future__ import annotations

import random

import pytest
from support.made_ranks import BASE, MS, left_alone, made_job, made_rank
from support.record_files import MadeCall

from fastcomm._records.ranks import Rank
from fastcomm._records.summary import summarize, tail
from fastcomm._records.summary_text import findings, format_tables, format_us


def test_a_planted_straggler_is_the_one_named() -> None:
    for late in range(4):
        summary = summarize(made_job(4, 120, late=late))
        assert [rank.rank for rank in summary.ranks if rank.is_straggler] == [late]
        assert findings(summary) == [
            f"rank {late} is last in 85% of 120 collectives, by 3.0 ms (median)"
        ]


def test_its_share_and_lateness() -> None:
    summary = summarize(made_job(4, 120, late=2))
    late = summary.ranks[2]
    assert (late.collectives, late.last, late.by_us) == (120, 102, 3000.0)


def _in_turn(size: int, collectives: int, seed: int) -> list[Rank]:
    """Return ranks that come in random order."""
    generator = random.Random(seed)
    calls: list[list[MadeCall]] = [[] for _ in range(size)]
    for sequence in range(collectives):
        begin = BASE + (sequence + 1) * 10 * MS
        issues = [begin + generator.randrange(MS) for _ in range(size)]
        for own, issued in zip(calls, issues, strict=True):
            end = max(issues) + MS
            own.append(MadeCall(issued, max(issues), end, sequence=sequence))
    return [made_rank(rank, size, own) for rank, own in enumerate(calls)]


@pytest.mark.parametrize("seed", range(5))
def test_chance_names_nobody(seed: int) -> None:
    summary = summarize(_in_turn(4, 120, seed))
    assert not any(rank.is_straggler for rank in summary.ranks)
    assert findings(summary) == [
        "no rank is last more often than chance explains, of up to 120 collectives"
    ]


def test_few_collectives_name_nobody() -> None:
    summary = summarize(made_job(4, 4, late=2, every=1000))
    assert summary.ranks[2].last == 3
    assert "no rank is last more often" in findings(summary)[0]


def test_costs_by_operation_and_size() -> None:
    ranks = []
    for rank in range(2):
        calls = []
        for sequence, (operation, count, took) in enumerate(
            [
                ("all_reduce", 256, 10_000),
                ("all_reduce", 511, 20_000),
                ("all_reduce", 512, 40_000),
                ("barrier", 0, 5_000),
            ]
        ):
            begin = BASE + (sequence + 1) * MS
            last = begin + 10_000
            calls.append(
                MadeCall(
                    *(last if rank else begin, last, last + took),
                    operation=operation,
                    count=count,
                    sequence=sequence,
                )
            )
        ranks.append(made_rank(rank, 2, calls))
    small, large, barrier = summarize(ranks).costs
    assert (small.operation, small.bytes, small.count) == ("all_reduce", 1024, 2)
    assert (small.median_us, small.p99_us) == (15.0, 20.0)
    assert small.busbw_gbs == pytest.approx((0.1024 + 0.1022) / 2)
    assert small.waiting == pytest.approx(20 / (20 + 30 + 30))
    assert (large.bytes, large.count) == (2048, 1)
    assert large.busbw_gbs == pytest.approx(0.0512)
    assert (barrier.operation, barrier.bytes, barrier.busbw_gbs) == ("barrier", 0, None)


def test_what_is_left_out_is_counted() -> None:
    summary = summarize(left_alone(4, 7, by=2))
    assert (summary.counted, summary.open, summary.failed, summary.cut_off) == (7, 1, 0, 0)
    assert "not counted: 1 open" in findings(summary)
    cut = summarize(left_alone(4, 7, by=2)[:3])
    assert (cut.counted, cut.open, cut.cut_off) == (0, 0, 8)
    assert findings(cut) == [
        "no collective is here with the calls of several ranks, so none is compared",
        "not counted: 8 without the call of each rank: not all records reach so far",
    ]
    failed = MadeCall(issued=BASE + 1, ended=BASE + 2, outcome="PeerLostError")
    assert summarize([made_rank(rank, 2, [failed]) for rank in range(2)]).failed == 1


def test_the_tables() -> None:
    pytest.importorskip("tabulate")
    lines = [line.split() for line in format_tables(summarize(made_job(4, 120))).splitlines()]
    assert ["all_reduce", "4", "KiB", "120", "1,030.0", "1,030.0", "0.00597", "64%"] in lines
    assert ["2", "120", "102", "85%", "3,000.0", "0%"] in lines
    assert "rank" in format_tables(summarize([made_rank(0, 2, [])]))


def test_times_as_text() -> None:
    texts = [format_us(us) for us in (0.5, 12.3, 3100, 45_600, 2e6)]
    assert texts == ["0.5 µs", "12 µs", "3.1 ms", "46 ms", "2.0 s"]


def test_the_tail_of_a_binomial_distribution() -> None:
    assert tail(3, 2, 0.5) == pytest.approx(0.5)
    assert tail(10, 10, 0.25) == pytest.approx(0.25**10)
    assert tail(10, 0, 0.25) == tail(3, 2, 1.0) == 1.0
    assert 0 < tail(8192, 2300, 0.25) < 1e-6
