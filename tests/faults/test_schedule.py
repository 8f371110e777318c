"""Schedules: the same from the same seed, all faults among them, and fair to every rank."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from faults import runs
from faults.certain import ended_before
from faults.generate import WEIGHTS, make_schedule
from faults.gradient_lists import FLOATS, NORMS, UNSCALES, WIRES, longest
from faults.schedule import LARGEST, MESSAGES, Fault, Op

RING = 32  # messages of one pair that nobody receives
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
            seen |= {one.wire, one.norm, one.scale, *(dtype for dtype, _ in one.tensors)}
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
            assert issued == [op for op in range(len(schedule.ops)) if rank in schedule.players(op)]
            pending = set()
            for step in steps:
                pending |= {step.op} if step.asynchronous else set()
                assert set(step.then_wait) <= pending
                pending -= set(step.then_wait)
            assert not pending, schedule


def test_a_disagreement_differs() -> None:
    for schedule in SCHEDULES:
        fault = schedule.fault
        if fault.kind in ("mismatch", "misfit"):
            assert fault.other is not None
            assert fault.other.call != schedule.ops[fault.at].call
            assert fault.other.group == schedule.ops[fault.at].group


def test_messages_are_of_all_kinds_and_a_pair_has_few_enough_for_its_ring() -> None:
    seen: set[tuple[Any, ...]] = set()
    for schedule in SCHEDULES:
        messages = [op for op in schedule.ops if op.is_message]
        # A rank that does not wait for a short receive leaves earlier messages in the ring.
        assert len(messages) < RING
        seen |= {(op.kind, op.is_long, op.group == 0) for op in messages}
        seen |= {(op.kind, op.tag) for op in messages if op.kind == "message"}
        if schedule.fault.kind == "misfit":
            op, other = schedule.ops[schedule.fault.at], schedule.fault.other
            assert other is not None and (op.tag, op.source, op.root) == (
                other.tag, other.source, other.root,
            )  # fmt: skip
            seen.add(("misfit", op.kind, schedule.fault.victim == op.root))
    assert {(kind, long, world) for kind in MESSAGES for long in (0, 1) for world in (0, 1)} <= seen
    assert {("message", tag) for tag in (0, 1, 7)} <= seen
    assert {("misfit", "message", False), ("misfit", "message", True)} <= seen
    assert ("misfit", "any_source", False) in seen


def test_what_has_ended_before_the_fault_is_found_through_the_other_ranks() -> None:
    """0 sends little to 1, 1 much to 2; these three meet; 2 sends little to 0; all four meet."""
    ops = (
        Op(0, "message", count=2, source=0, root=1),
        Op(0, "message", count=5000, source=1, root=2),
        Op(1, "barrier"),
        Op(0, "message", count=2, source=2, root=0),
        Op(0, "barrier"),
    )
    groups = ((0, 1, 2, 3), (0, 1, 2))

    def ended(victim: int, at: int, later: int = 0) -> dict[int, set[int]]:
        plan = runs.schedule(ops, groups, Fault("kill", victim, at), lambda _, op: op < later)
        return ended_before(plan)

    assert ended(0, 0) == {0: set(), 1: set(), 2: set(), 3: set()}
    assert ended(0, 2) == {0: {0}, 1: set(), 2: set(), 3: set()}  # sent, and received by nobody
    assert ended(1, 1) == {0: set(), 1: {0}, 2: set(), 3: set()}
    assert ended(2, 2) == {0: set(), 1: {0}, 2: {1}, 3: set()}  # 1 has sent, after it received
    assert ended(0, 3) == {0: {0, 2}, 1: {0, 1}, 2: {1}, 3: set()}  # all have called the barrier
    assert ended(0, 3, later=2) == {0: {2}, 1: set(), 2: set(), 3: set()}
    assert ended(0, 4) == {0: {0, 2, 3}, 1: {0, 1}, 2: {1, 2}, 3: set()}
    assert ended(3, 4) == {0: set(), 1: set(), 2: set(), 3: set()}
