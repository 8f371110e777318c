"""Which errors are right: for each rank and group of a run, and each kind of fault. Pure.

Positions are places in a group's sequence of calls on one rank. In an `Expectation`, operations
before ``low`` must be right, those from ``high`` on must fail, and what lies between may do either.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults.report import Run
from faults.schedule import STOCK, WORLD, Schedule

NEVER = 1 << 30
# Whether a Ctrl-C in work.wait() gives the group up, as one in a synchronous call does.
INTERRUPTED_WAIT_POISONS = True

Blame = tuple[str, int | None]  # type of an error, and the rank at fault
ANYBODY = -2


@dataclass(frozen=True)
class Expectation:
    low: int = NEVER
    high: int = NEVER
    errors: tuple[Blame, ...] = ()


FINE = Expectation()


def frontier(schedule: Schedule, rank: int, at: int, group: int) -> tuple[int, int]:
    """Where a rank stands in a group before its operation ``at``: (completed, issued) calls."""
    done, issued = 0, 0
    number: dict[int, int] = {}
    for step in schedule.steps[rank]:
        if step.op >= at:
            break
        if schedule.ops[step.op].group == group:
            number[step.op] = issued
            issued += 1
            if not step.asynchronous:
                done = issued
        for op in step.then_wait:
            if op in number:
                done = max(done, number[op] + 1)
    return done, issued


def expectation(run: Run, rank: int, group: int) -> Expectation:
    """What is right for one rank in one group."""
    schedule, fault = run.schedule, run.schedule.fault
    victim = fault.victim
    if victim not in schedule.groups[group] or fault.kind == "none":
        return FINE
    if len(schedule.groups[group]) == 1 and fault.kind not in ("leave", "raise and leave", "abort"):
        return FINE
    mine = rank == victim
    done, issued = frontier(schedule, victim, fault.at, group)
    where = schedule.ops[fault.at].group if fault.at < len(schedule.ops) else WORLD
    if fault.kind in ("kill", "exit", "crash"):
        return Expectation(done, issued, (("PeerLostError", victim),))
    if fault.kind in ("quit", "raise"):
        # A program that ends says goodbye by itself, before its process is gone.
        return Expectation(done, issued, (("PeerLeftError", victim),))
    if fault.kind == "kill in flight":
        return Expectation(done, NEVER, (("PeerLostError", victim),))
    if fault.kind in ("leave", "raise and leave"):
        # To the victim itself its own pending operations say that the group is destroyed.
        return Expectation(
            done, issued, (("GroupPoisonedError", None) if mine else ("PeerLeftError", victim),)
        )
    if fault.kind == "abort":
        if group != WORLD:
            return FINE
        return Expectation(done, issued, (("GroupPoisonedError", None if mine else victim),))
    if group != where:
        return FINE
    if fault.kind == "mismatch":
        return Expectation(issued, issued, (("CollectiveMismatchError", None),))
    if fault.kind == "extra":
        return _extra(schedule, rank, group, issued)
    if fault.kind == "skip":
        return _skip(schedule, rank, issued)
    if fault.kind == "interrupt":
        return _interrupt(run, mine, done, issued)
    if fault.kind in ("delay past timeout", "stop past timeout"):
        return _late(run, mine, done, issued)
    return FINE


def _extra(schedule: Schedule, rank: int, group: int, issued: int) -> Expectation:
    if schedule.fault.at < len(schedule.ops):
        return Expectation(issued, issued, (("CollectiveMismatchError", None),))
    if rank != schedule.fault.victim:
        return FINE
    return Expectation(issued, issued, (("PeerLeftError", ANYBODY),))


def _skip(schedule: Schedule, rank: int, issued: int) -> Expectation:
    """The victim's next call meets the one it left out; with no other call, it has left."""
    at, victim = schedule.fault.at, schedule.fault.victim
    if any(step.op > at for step in schedule.steps[victim]):
        return Expectation(issued, issued, (("CollectiveMismatchError", None),))
    return FINE if rank == victim else Expectation(issued, issued, (("PeerLeftError", victim),))


def _interrupt(run: Run, mine: bool, done: int, issued: int) -> Expectation:
    """The operation itself may end well on peers that need no more of the victim."""
    schedule, fault = run.schedule, run.schedule.fault
    at = [r for r in run.ended[fault.victim].results if r.op == fault.at]
    waiting = any(s.op == fault.at and s.asynchronous for s in schedule.steps[fault.victim])
    if not at or not at[0].interrupted or (waiting and not INTERRUPTED_WAIT_POISONS):
        return FINE
    if mine:
        errors: tuple[Blame, ...] = (("KeyboardInterrupt", None), ("GroupPoisonedError", None))
        # In wait(), the operation may have ended just before the signal.
        return Expectation(done, issued + 1 if waiting else issued, errors)
    return Expectation(done, issued + 1, (("GroupPoisonedError", fault.victim),))


def _late(run: Run, mine: bool, done: int, issued: int) -> Expectation:
    """Peers must time out if the victim came back clearly later than the first one's deadline."""
    schedule, victim = run.schedule, run.schedule.fault.victim
    resumed = run.ended[victim].resumed
    stopped = schedule.fault.kind == "stop past timeout"
    deadlines = [
        result.issued + schedule.timeout
        for rank, ended in run.ended.items()
        for result in ended.results
        if rank != victim and result.op == schedule.fault.at
    ]
    too_late = bool(deadlines) and min(deadlines) < resumed - 0.25
    errors: tuple[Blame, ...] = (("CollectiveTimeoutError", victim),)
    if stopped and any(op.kind in STOCK for op in schedule.ops):
        # Allowed for these, though a native operation names whom it waits for.
        errors += (("CollectiveTimeoutError", ANYBODY),)
    # A stopped process does nothing for what it has pending; a sleeping one does.
    low = done if stopped else issued
    # All that the victim needs for one more operation may be there already.
    return Expectation(low, (issued + 1 if mine else issued) if too_late else NEVER, errors)
