"""Timelines of ranks, read as a viewer of traces reads them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

from support.made_ranks import BASE, MS, NOW, left_alone, made_job, made_rank
from support.record_files import MadeCall, MadeGroup

from fastcomm._records.ranks import Rank
from fastcomm._records.timeline import timeline

Event = dict[str, Any]


def _events(ranks: list[Rank]) -> list[Event]:
    """Return the events of a trace, which is checked."""
    events: list[Event] = json.loads(json.dumps(timeline(ranks)))["traceEvents"]
    _check_nesting(events)
    _check_arrows(events)
    return events


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _check_nesting(events: list[Event]) -> None:
    """Slices of a track lie in each other or apart; the one that is around comes first."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len({tid for _, tid in tracks}) == len(tracks)  # no two processes share a number
    for slices in tracks.values():
        around: list[tuple[int, int]] = []
        for each in sorted(slices, key=lambda each: _ns(each["ts"])):  # stable
            begin, end = _ns(each["ts"]), _ns(each["ts"] + each["dur"])
            assert begin <= end
            while around and around[-1][1] <= begin:
                around.pop()
            assert len(around) < 2
            assert not around or end <= around[-1][1]
            around.append((begin, end))


def _check_arrows(events: list[Event]) -> None:
    """Each begins and ends once, within a slice, and does not lead back."""
    slices = [event for event in events if event["ph"] == "X"]
    ends: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            assert any(
                (each["pid"], each["tid"]) == (event["pid"], event["tid"])
                and _ns(each["ts"]) <= _ns(event["ts"]) <= _ns(each["ts"] + each["dur"])
                for each in slices
            )
    for begin, end in ends.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert begin["ts"] <= end["ts"] and begin["pid"] != end["pid"]


def _named(events: list[Event], kind: str) -> dict[Any, str]:
    return {
        event.get("tid", event["pid"]): event["args"]["name"]
        for event in events
        if event["name"] == kind
    }


def test_a_row_for_each_rank_and_a_track_for_each_group() -> None:
    groups = [MadeGroup(0, 2), MadeGroup(0, 1, name="3", description="", token=9)]
    calls = [
        MadeCall(issued=BASE + 1, ended=BASE + 2),
        MadeCall(issued=BASE + 3, ended=BASE + 4, lane=1),
        MadeCall(issued=BASE + 5, ended=BASE + 6, group=1),
        MadeCall(issued=BASE + 7, ended=BASE + 8, operation="send", rank=1, tag=5),
        MadeCall(issued=BASE + 9, ended=BASE + 10, operation="recv"),
    ]
    events = _events([made_rank(0, 2, calls, groups), replace(made_rank(1, 2, []), state="")])
    assert _named(events, "process_name") == {
        4711: "rank 0 (pid 4711, sleeping)",
        4712: "rank 1 (pid 4712)",
    }
    assert list(_named(events, "thread_name").values()) == [
        "group '0' of all ranks",
        "group '0' of all ranks, lane 1",
        "group '3'",
        "messages",
    ]
    slices = [event for event in events if event["ph"] == "X"]
    assert [each["name"] for each in slices] == [
        *("all_reduce", "all_reduce", "all_reduce", "send to rank 1", "recv from any rank")
    ]
    assert slices[3]["args"]["tag"] == 5
    assert (slices[0]["ts"], slices[0]["dur"], slices[4]["ts"]) == (0.0, 0.001, 0.008)


def test_a_call_has_its_parts_and_facts() -> None:
    call = MadeCall(issued=BASE + 1000, started=BASE + 4500, ended=BASE + 9000, sequence=3)
    events = _events([made_rank(0, 1, [call])])
    whole, waiting, moving = (event for event in events if event["ph"] == "X")
    assert (waiting["name"], waiting["ts"], waiting["dur"]) == ("waiting", 0, 3.5)
    assert (moving["name"], moving["ts"], moving["dur"]) == ("moving data", 3.5, 4.5)
    assert whole["args"] == {
        "sequence": 3,
        "bytes": 4096,
        "dtype": "float32",
        "reduction": "sum",
        "path": "one-shot",
        "engine": "shared memory",
        "outcome": "ok",
    }


def test_a_planted_straggler_is_marked() -> None:
    events = _events(made_job(4, 10, late=2))
    marks = [event for event in events if event["ph"] == "i"]
    late = [mark for mark in marks if mark["name"] == "rank 2 is last, by 3.000 ms"]
    assert len(late) == 8 and {mark["pid"] for mark in late} == {4713}
    waiting = [e for e in events if e["name"] == "waiting for rank 2" and e["dur"] >= 3000]
    assert len(waiting) == 8 * 3 and not any(event["pid"] == 4713 for event in waiting)
    arrows = [event for event in events if event["ph"] == "s" and event["pid"] == 4713]
    assert len(arrows) == 8 * 3
    assert {arrow["ts"] for arrow in arrows} == {mark["ts"] for mark in late}


def test_an_open_call_ends_when_it_was_read() -> None:
    events = _events(left_alone(4, 7, by=2))
    still = [event for event in events if event.get("args", {}).get("open")]
    assert len(still) == 3
    assert {_ns(event["ts"] + event["dur"]) for event in still} == {NOW - BASE - 20 * MS}
    ends = {event["ts"] for event in still}
    waits = [e for e in events if e["ph"] == "X" and e["ts"] in ends and e not in still]
    assert [event["name"] for event in waits] == ["waiting for rank 2"] * 3


def test_several_absent_ranks_are_named() -> None:
    call = MadeCall(issued=BASE + 5)
    events = _events([made_rank(0, 3, [call]), made_rank(1, 3, []), made_rank(2, 3, [])])
    assert "waiting for ranks 1, 2" in [event["name"] for event in events]


def test_a_failed_call_has_waited() -> None:
    call = MadeCall(issued=BASE + 5, ended=BASE + 9, outcome="PeerLostError")
    whole, waiting = (e for e in _events([made_rank(0, 2, [call])]) if e["ph"] == "X")
    assert whole["args"]["outcome"] == "PeerLostError"
    assert (waiting["name"], waiting["dur"]) == ("waiting", whole["dur"])


def test_calls_that_overlap_have_rows_of_their_own() -> None:
    calls = [
        MadeCall(issued=BASE + 10 * n, started=BASE + 30 + 10 * n, ended=BASE + 60 + 10 * n)
        for n in range(12)
    ]
    events = _events([made_rank(0, 1, calls)])
    names = list(_named(events, "thread_name").values())
    assert names == ["group '0' of all ranks"] * 6


def test_ranks_with_the_same_number_of_process_stay_apart() -> None:
    ranks = [replace(rank, pid=1) for rank in made_job(3, 2)]
    assert len(_named(_events(ranks), "process_name")) == 3


def test_hostile_times_nest_too() -> None:
    generator = random.Random(7)

    def time() -> int:
        return BASE + generator.randrange(1, 3000)

    for _ in range(30):
        ranks = []
        for number in range(3):
            calls = [
                MadeCall(
                    issued=time(),
                    started=time() * generator.randrange(2),
                    ended=time() * generator.randrange(2),
                    sequence=generator.randrange(10),
                    operation=generator.choice(["all_reduce", "send", "recv"]),
                )
                for _ in range(40)
            ]
            ranks.append(replace(made_rank(number, 3, calls), read_at=0))
        _check_nesting(timeline(ranks)["traceEvents"])


def test_no_call_is_an_empty_timeline() -> None:
    assert [e for e in _events([made_rank(0, 2, [])]) if e["ph"] != "M"] == []
