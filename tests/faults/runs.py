"""Schedules and runs that nobody has drawn or played, for tests of the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from faults.oracle import judge
from faults.report import Ended, Fresh, Now, Resources, Result, Run, Told
from faults.schedule import DEADLY, PATIENT, Fault, Op, Schedule, Step, players

PID = 77
HELD = Resources(20, 2, frozenset({1}))
Errors = Mapping[tuple[int, int], Told]  # by rank and operation


def never(rank: int, op: int) -> bool:
    return False


def schedule(
    ops: Sequence[Op],
    groups: Sequence[tuple[int, ...]],
    fault: Fault,
    asynchronous: Callable[[int, int], bool] = never,
    timeout: float = PATIENT,
) -> Schedule:
    """Return a schedule in which each rank waits at its end for what is asynchronous on it."""
    steps = []
    for rank in groups[0]:
        own = [op for op in range(len(ops)) if rank in players(ops[op], groups)]
        mine = [Step(op, asynchronous(rank, op), False) for op in own]
        pending = tuple(step.op for step in mine if step.asynchronous)
        steps.append((*mine[:-1], replace(mine[-1], then_wait=pending)))
    size = len(groups[0])
    return Schedule(1, size, "default", tuple(groups), tuple(ops), tuple(steps), fault, timeout)


def failing(told: Told, failed: Mapping[int, Sequence[int]]) -> Errors:
    """Let these operations of each rank fail alike."""
    return {(rank, op): told for rank, ops in failed.items() for op in ops}


def played(plan: Schedule, errors: Errors) -> Run:
    """Return a run in which all is well except what is in ``errors``: an operation a second."""
    run, fault = Run(plan, struck=Now(2.0, pid=PID)), plan.fault
    for rank, steps in enumerate(plan.steps):
        if rank == fault.victim and fault.kind in DEADLY:
            run.exits[rank] = -9
            continue
        results = []
        for step in steps:
            if rank == fault.victim and fault.kind == "leave" and step.op >= fault.at:
                continue
            group, start = plan.ops[step.op].group, float(step.op)
            waited = float(len(plan.ops)) if step.asynchronous else start
            error = errors.get((rank, step.op))
            results.append(Result(step.op, group, start, waited, waited + 0.1, error))
        run.ended[rank] = Ended(results, left=20.0)
        run.fresh[rank] = Fresh("", 0.1, HELD)
    return run


def result(run: Run, rank: int, op: int) -> Result:
    return next(result for result in run.ended[rank].results if result.op == op)


def setting(find: Callable[[Run], object], **changes: object) -> Callable[[Run], None]:
    """Return what changes attributes of a part of a run."""

    def change(run: Run) -> None:
        for name, value in changes.items():
            setattr(find(run), name, value)

    return change


def with_result(rank: int, op: int, **changes: object) -> Callable[[Run], None]:
    return setting(lambda run: result(run, rank, op), **changes)


def judged(make: Callable[[], Run], change: Callable[[Run], object]) -> list[str]:
    """Return what the oracle finds wrong with a run that was changed."""
    run = make()
    change(run)
    return judge(run)
