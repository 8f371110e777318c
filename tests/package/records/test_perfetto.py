"""Timelines as Perfetto's own trace processor loads them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.made_ranks import BASE, left_alone, made_job, made_rank
from support.perfetto import Loaded, loaded
from support.record_files import MadeCall

from fastcomm._records import saved
from fastcomm._records.ranks import Rank
from fastcomm._records.timeline import timeline

_ROOT = Path(__file__).resolve().parents[3]

_SLICES = """
    select slice.name as name, ts, dur, depth, process.name as process, thread.name as track,
        extract_arg(slice.arg_set_id, 'args.bytes') as bytes
    from slice join thread_track on slice.track_id = thread_track.id
        join thread using (utid) join process using (upid)
"""
_WAITED_FOR = """
    select name, sum(dur) as ns from slice where name glob 'waiting for rank *'
    group by 1 order by 2 desc
"""
_ARROWS = """
    select a.ts as begin, a.dur as length, begins.tid as sender, b.ts as ts, b.dur as dur,
        ends.tid as receiver
    from flow join slice as a on slice_out = a.id join slice as b on slice_in = b.id
        join thread_track as x on a.track_id = x.id join thread as begins on x.utid = begins.utid
        join thread_track as y on b.track_id = y.id join thread as ends on y.utid = ends.utid
"""


def _trace(ranks: Sequence[Rank]) -> tuple[bytes, list[dict[str, Any]]]:
    trace = timeline(ranks)
    return json.dumps(trace).encode(), trace["traceEvents"]


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _check_loaded(perfetto: Loaded, events: Sequence[dict[str, Any]]) -> None:
    """All of a trace is there, where it was put; nothing was dropped or mended."""
    sql = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    assert [(row.name, row.value) for row in perfetto.query(sql)] == []
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    expected = Counter(
        (
            *(event["name"], _ns(event["ts"]), _ns(event.get("dur", 0))),
            *(processes[event["pid"]], tracks[event["tid"]]),
            event.get("args", {}).get("bytes"),
        )
        for event in events
        if event["ph"] in "Xi"
    )
    slices = perfetto.query(_SLICES)
    assert expected == Counter(
        (row.name, row.ts, row.dur, row.process, row.track, row.bytes) for row in slices
    )
    deep = {row.depth for row in slices if row.dur > 0}
    assert deep <= {0, 1}
    arrows = perfetto.query(_ARROWS)
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert Counter((arrow.sender, arrow.receiver) for arrow in arrows) == Counter(
        (begin["tid"], ends[number]["tid"]) for number, begin in begins.items()
    )
    left = Counter((event["tid"], _ns(event["ts"])) for event in begins.values())
    for (tid, time), count in left.items():
        leaving = [each for each in arrows if each.sender == tid]
        assert sum(each.begin <= time <= each.begin + each.length for each in leaving) >= count
    assert all(arrow.begin <= arrow.ts + arrow.dur for arrow in arrows)


def test_it_shows_what_was_written_and_the_straggler() -> None:
    trace, events = _trace(made_job(4, 120, late=2))
    with loaded(trace) as perfetto:
        _check_loaded(perfetto, events)
        assert perfetto.query(_WAITED_FOR)[0].name == "waiting for rank 2"
        marks = perfetto.query("select name from slice where name glob 'rank * is last, by *'")
        assert sum(mark.name.startswith("rank 2 ") for mark in marks) > 0.8 * 120


def test_calls_that_are_open_overlap_or_make_no_sense() -> None:
    generator = random.Random(11)

    def time() -> int:
        return BASE + generator.randrange(1, 3000)

    def call() -> MadeCall:
        return MadeCall(
            issued=time(),
            started=time() * generator.randrange(2),
            ended=time() * generator.randrange(2),
            sequence=generator.randrange(10),
            operation=generator.choice(["all_reduce", "send", "recv"]),
        )

    ranks = [replace(rank, number=rank.number + 10) for rank in left_alone(4, 7, by=2)]
    ranks += [made_rank(number, 3, [call() for _ in range(60)]) for number in range(3)]
    trace, events = _trace(ranks)
    with loaded(trace) as perfetto:
        _check_loaded(perfetto, events)


def test_a_job_that_was_kept() -> None:
    job = saved.load(_ROOT / "benchmarks/results/late-rank.records")
    trace, events = _trace(job.ranks)
    with loaded(trace) as perfetto:
        _check_loaded(perfetto, events)
        assert perfetto.query(_WAITED_FOR)[0].name == "waiting for rank 2"
