"""Schedules: the same from the same seed, all faults among them, and fair to every rank."""

from __future__ import annotations

from collections import Counter
from math import prod

from faults.generate import WEIGHTS, make_schedule
from faults.gradient_lists import FLOATS, NORMS, UNSCALES, WIRES, longest
from faults.schedule import LARGEST

SCHEDULES = [make_schedule(seed) for seed in range(600)]


def test_a_seed_is_a_schedule() -> None:
    assert [make_schedule(seed) for seed in range(600)] == SCHEDULES


def test_every_fault_and_every_number_of_ranks_comes_up() -> None:
    assert {schedule.fault.kind for schedule in SCHEDULES} == set(WEIGHTS)
    assert {schedule.size for schedule in SCHEDULES} == {2, 3, 4, 5, 6}
    kinds = Counter(op.kind for schedule in SCHEDULES for op in schedule.ops)
    assert min(kinds.values()) > 100, kinds


def test_lists_of_gradients_are_of_all_kinds_and_fit_a_rank_s_share() -> None:
    seen, lengths = set(), Counter[int]()
    for schedule in SCHEDULES:
        for one in [op.gradients for op in schedule.ops if op.gradients is not None]:
            seen |= {one.wire, one.norm, one.unscale, *(dtype for dtype, _ in one.tensors)}
            lengths[len(one.tensors)] += 1
            sizes = [prod(shape) for _, shape in one.tensors]
            assert max(sizes, default=0) <= longest(schedule.configuration)
            assert sum(sizes) <= LARGEST
    assert seen == {*WIRES, *NORMS, *UNSCALES, *FLOATS}
    assert lengths[0] > 10 and lengths[1] > 10 and max(lengths) == 60
    assert longest("small blocks") < 4096 < longest("unit blocks") <= longest("default")


def test_every_rank_issues_its_operations_in_order_and_waits_for_all() -> None:
    for schedule in SCHEDULES:
        for rank, steps in enumerate(schedule.steps):
            issued = [step.op for step in steps]
            assert issued == [op for op in range(len(schedule.ops)) if rank in schedule.members(op)]
            pending = set()
            for step in steps:
                pending |= {step.op} if step.asynchronous else set()
                assert set(step.then_wait) <= pending
                pending -= set(step.then_wait)
            assert not pending, schedule


def test_a_disagreement_differs() -> None:
    for schedule in SCHEDULES:
        fault = schedule.fault
        if fault.kind == "mismatch":
            assert fault.other is not None
            assert fault.other.call != schedule.ops[fault.at].call
            assert fault.other.group == schedule.ops[fault.at].group
