"""Collectives in traces: intervals, the call of an operation, and computation beside it."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fastcomm._measure.traces import Comms, bytes_of, computation, merged, operations, overlap

Event = dict[str, Any]
INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], sum(p))))


def event(name: str, ts: float, dur: float, **other: Any) -> Event:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "tid": 1, "cat": "cpu_op"} | other


def call(ts: float, dur: float, group: str = "0", seq: int | None = None, **args: Any) -> Event:
    told = {"Collective name": "allreduce", "Process Group Name": group, **args}
    return event("record_param_comms", ts, dur, args=told | ({} if seq is None else {"Seq": seq}))


def slice_of(sequence: int, ts: float, queued: float = 0.0, name: str = "all_reduce") -> Event:
    return event(name, ts, 5, args={"sequence": sequence, "queued (us)": queued, "bytes": 4})


@given(INTERVALS, st.tuples(st.integers(0, 30), st.integers(0, 8)))
def test_overlap_counts_each_moment_once(intervals: list[Any], one: tuple[int, int]) -> None:
    union = merged(intervals)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(union))
    begin, end = one[0], sum(one)
    moments = {m for low, high in intervals for m in range(low, high)}
    assert overlap((begin, end), union) == len(moments & set(range(begin, end)))


def test_bytes_of_a_call() -> None:
    assert bytes_of({"In msg nelems": 3, "Out msg nelems": 9, "dtype": "BFloat16"}) == 6
    assert bytes_of({"In msg nelems": 0, "Out msg nelems": 9, "dtype": "ComplexDouble"}) == 144
    assert bytes_of({"In msg nelems": 5, "dtype": "Byte"}) == 5


def test_an_operation_is_found_by_its_number() -> None:
    first, second, other = call(0, 1, seq=4), call(10, 1, seq=6), call(10, 1, "1", seq=5)
    comms = Comms([second, first, other])
    assert comms.of(slice_of(3, 100), "0") is first
    assert comms.of(slice_of(4, 100), "0") is first  # its second operation
    assert comms.of(slice_of(5, 100), "0") is second
    assert comms.of(slice_of(7, 100), "1") is other


def test_an_operation_without_number_is_found_by_time() -> None:
    first, second = call(0, 10), call(5000, 10)
    comms = Comms([first, second])
    assert comms.of(slice_of(0, 6000, queued=990), "0") is second
    assert comms.of(slice_of(0, 6000, queued=5950), "0") is first
    assert comms.of(slice_of(0, 3000), "0") is None
    message = call(100, 3, seq=9, **{"Collective name": "send"})
    assert Comms([message]).of(slice_of(0, 104, name="send to rank 1"), "0") is message


def test_parts_belong_to_the_operation_that_they_lie_in() -> None:
    track = {"ph": "M", "name": "thread_name", "tid": 7, "args": {"name": "fastcomm: group '3'"}}
    parts = [event("moving data", 0, 5, tid=7), event("waiting", 5, 2, tid=7)]
    wholes = [slice_of(0, 0) | {"tid": 7}, slice_of(1, 5) | {"tid": 7}]
    elsewhere = event("moving data", 0, 5, tid=8)
    found = operations([*parts, elsewhere, *reversed(wholes), track])
    assert [(each.slice, each.parts, each.group) for each in found] == [
        (wholes[0], parts[:1], "3"),
        (wholes[1], parts[1:], "3"),
    ]


def test_operations_of_continuations_are_counted_by_themselves() -> None:
    name = "fastcomm: group '3' of all 2 ranks: in continuations"
    track = {"ph": "M", "name": "thread_name", "tid": 7, "args": {"name": name}}
    (found,) = operations([slice_of(0, 100) | {"tid": 7}, track])
    numbered, near = call(0, 1, "3", seq=1), call(95, 10, "3", seq=9)
    assert Comms([numbered, near]).of(found.slice, found.group) is near


def test_calls_and_what_they_contain_are_no_computation() -> None:
    events = [
        event("aten::mm", 0, 4),
        event("c10d::allreduce_", 5, 10),
        event("aten::copy_", 6, 2),  # within the call
        event("aten::mm", 6, 2, tid=2),  # on another thread
        event("step", 0, 50, cat="user_annotation"),
        event("gemm", 20, 5, cat="kernel"),
        event("nccl", 20, 9, cat="kernel", args={"Collective name": "allreduce"}),
        event("void fastcomm::(anonymous namespace)::reduce<float>", 40, 9, cat="kernel"),
    ]
    assert computation(events) == ([(0, 4), (6, 8)], [(20, 25)])
