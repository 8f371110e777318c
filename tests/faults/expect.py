"""Which errors are right: for each rank and group of a run, and each kind of fault. Pure.

Positions are places in a group's sequence of collectives on one rank. In an `Expectation`, those
before ``low`` must be right, those from ``high`` on must fail, and those in between may do either.
Messages have their own order: what holds for them is in `faults.messages_oracle`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from faults.report import Run
from faults.schedule import WORLD, Schedule

NEVER = 1 << 30
# Whether Ctrl-C in work.wait() gives the group up, as in a synchronous call.
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
    """Return a rank's (completed, issued) calls in a group before its operation ``at``."""
    done, issued = 0, 0
    number: dict[int, int] = {}
    for step in schedule.steps[rank]:
        if step.op >= at:
            break
        if schedule.ops[step.op].group == group and not schedule.ops[step.op].is_message:
            number[step.op] = issued
            issued += 1
            if not step.asynchronous:
                done = issued
        for op in step.then_wait:
            if op in number:
                done = max(done, number[op] + 1)
    return done, issued


def expectation(run: Run, rank: int, group: int) -> Expectation:
    """Return what is right for one rank in one group.

    A rank that finds a failure in a message gives up all that it has pending, and whoever still
    waits for it there fails, too. That may be one collective less than the victim has ended, but no
    more: none goes on before all ranks have ended the one before.
    """
    found = _of_collectives(run, rank, group)
    members, last = run.schedule.groups[group], found.low - 1
    if 0 <= last < NEVER - 1 and any(
        _beside_message(run.schedule, member, group, last) for member in members
    ):
        return replace(found, low=last)
    return found


def _beside_message(schedule: Schedule, rank: int, group: int, position: int) -> bool:
    """Tell whether a message of the group may be pending on a rank while a collective is."""
    ends = {op: at for at, step in enumerate(schedule.steps[rank]) for op in step.then_wait}
    spans = [(step.op, at, ends.get(step.op, at)) for at, step in enumerate(schedule.steps[rank])]
    ours = [span for span in spans if schedule.ops[span[0]].group == group]
    collectives = [span for span in ours if not schedule.ops[span[0]].is_message]
    if position >= len(collectives):
        return False
    _, first, last = collectives[position]
    return any(schedule.ops[op].is_message and a <= last and first <= b for op, a, b in ours)


def _of_collectives(run: Run, rank: int, group: int) -> Expectation:
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
        # A program that ends announces on its own that it leaves, before its process is gone.
        return Expectation(done, issued, (("PeerLeftError", victim),))
    if fault.kind == "kill in flight":
        return Expectation(done, NEVER, (("PeerLostError", victim),))
    if fault.kind in ("leave", "raise and leave"):
        # The victim's own pending operations say that the group is destroyed.
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
        return Expectation(issued, issued, _unlike(victim))
    if fault.kind == "misfit":
        return _misfit(schedule, group)
    if fault.kind == "extra":
        return _extra(schedule, rank, group, issued)
    if fault.kind == "skip":
        return _skip(schedule, rank, issued)
    if fault.kind == "interrupt":
        return _interrupt(run, mine, done, issued)
    if fault.kind in ("delay past timeout", "stop past timeout"):
        return _late(run, mine, done, issued)
    return FINE


def _unlike(victim: int) -> tuple[tuple[str, int | None], ...]:
    """Blame the victim, or nobody: of two ranks, for split sizes, or on a device."""
    return (("CollectiveMismatchError", victim), ("CollectiveMismatchError", None))


def _misfit(schedule: Schedule, group: int) -> Expectation:
    """Blame the sender. After the receiver's wait no collective begins."""
    at = schedule.fault.at
    op = schedule.ops[at]
    sender = schedule.fault.victim if op.kind == "any_source" else op.source
    low = max(frontier(schedule, player, at, group)[0] for player in (sender, op.root))
    high = 0
    for step in schedule.steps[op.root]:
        high += schedule.ops[step.op].group == group and not schedule.ops[step.op].is_message
        if at in step.then_wait or (step.op == at and not step.asynchronous):
            break
    return Expectation(low, high, (("CollectiveMismatchError", sender),))


def _extra(schedule: Schedule, rank: int, group: int, issued: int) -> Expectation:
    if schedule.fault.at < len(schedule.ops):
        return Expectation(issued, issued, _unlike(schedule.fault.victim))
    # The victim finds that somebody has left, and gives the group up. So do others that still wait
    # for messages, which have no order. Its collectives are over, so without messages nobody fails.
    if rank != schedule.fault.victim and not any(
        op.is_message and op.group == group for op in schedule.ops
    ):
        return FINE
    return Expectation(issued, issued, (("PeerLeftError", ANYBODY),))


def _skip(schedule: Schedule, rank: int, issued: int) -> Expectation:
    """The victim's next call meets the one it left out; without another call, it has left."""
    at, victim = schedule.fault.at, schedule.fault.victim
    if any(step.op > at for step in schedule.steps[victim]):
        return Expectation(issued, issued, _unlike(victim))
    return FINE if rank == victim else Expectation(issued, issued, (("PeerLeftError", victim),))


def _interrupt(run: Run, mine: bool, done: int, issued: int) -> Expectation:
    """The operation itself may end well on peers that need nothing more from the victim."""
    schedule, fault = run.schedule, run.schedule.fault
    at = [r for r in run.ended[fault.victim].results if r.op == fault.at]
    itself = not schedule.ops[fault.at].is_message
    waiting = any(s.op == fault.at and s.asynchronous for s in schedule.steps[fault.victim])
    if not at or not at[0].interrupted or (waiting and not INTERRUPTED_WAIT_POISONS):
        return FINE
    if mine:
        errors: tuple[Blame, ...] = (("KeyboardInterrupt", None), ("GroupPoisonedError", None))
        # In wait(), the operation may have ended just before the signal.
        return Expectation(done, issued + itself if waiting else issued, errors)
    return Expectation(done, issued + itself, (("GroupPoisonedError", fault.victim),))


def _late(run: Run, mine: bool, done: int, issued: int) -> Expectation:
    """Peers must time out if the victim came back clearly after the first one's deadline."""
    schedule, victim = run.schedule, run.schedule.fault.victim
    resumed = run.ended[victim].resumed
    stopped = schedule.fault.kind == "stop past timeout"
    deadlines = [
        result.issued + schedule.timeout
        for rank, ended in run.ended.items()
        for result in ended.results
        if rank != victim and result.op == schedule.fault.at
    ]
    too_late = bool(deadlines) and min(deadlines) < resumed - 0.6
    errors: tuple[Blame, ...] = (("CollectiveTimeoutError", victim),)
    if any(op.is_message and op.group == WORLD for op in schedule.ops):
        # A rank that waits for a message from one that waits for the victim may give up first.
        errors += (("CollectiveTimeoutError", ANYBODY),)
    # A stopped process does not advance what it has pending; a sleeping one does.
    low = done if stopped else issued
    return Expectation(low, issued if too_late else NEVER, errors)
