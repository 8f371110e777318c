"""What is right: every rank's results of a run, judged against its schedule. Pure.

Positions are places in a group's sequence of calls on one rank. For each rank and group there is
an `Expectation`: operations before ``low`` must be right, those from ``high`` on must fail, what
lies between may do either; and which errors are the right ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from faults.report import EXTRA, Ended, Result, Run, Told
from faults.schedule import DEADLY, PATIENT, WORLD, Schedule

NEVER = 1 << 30
# An error is due at once. So much is allowed where other programs keep the cores busy.
SLACK = 3.0

# Whether a Ctrl-C in work.wait() gives the group up, as one in a synchronous call does.
INTERRUPTED_WAIT_POISONS = False

Blame = tuple[str, int | None]  # type of an error, and the rank at fault
ANYBODY = -2


@dataclass(frozen=True)
class Expectation:
    low: int = NEVER
    high: int = NEVER
    errors: tuple[Blame, ...] = ()


FINE = Expectation()


def judge(run: Run) -> list[str]:
    """Return what is wrong with a run, as sentences; none, if it is as it should be."""
    if run.hung:
        return [f"ranks {run.hung} do not answer"]
    wrong = _ends(run)
    if wrong:
        return wrong
    for rank, ended in run.ended.items():
        wrong += [f"rank {rank}: {text}" for text in _judge_rank(run, rank, ended)]
    wrong += _in_step(run)
    for rank, fresh in run.fresh.items():
        if fresh.trouble:
            wrong.append(f"rank {rank}, in the new group: {fresh.trouble}")
        # A group that is gone lets its memory go when the next one is formed.
        if left := fresh.resources.segments & run.dead_segments:
            wrong.append(f"rank {rank} still maps memory of a rank that is dead: {left}")
        if fresh.resources.sockets:
            wrong.append(f"rank {rank} still has {fresh.resources.sockets} sockets open")
    return wrong


def _ends(run: Run) -> list[str]:
    """Who must have ended, and how; and who must not."""
    fault = run.schedule.fault
    statuses = {
        "kill": (-9,),
        "kill in flight": (-9,),
        "exit": (3,),
        "crash": (-6,),
        "quit": (4,),
        "raise": (1,),
    }
    wrong = []
    for rank in range(run.schedule.size):
        if fault.kind in DEADLY and rank == fault.victim:
            if run.exits.get(rank) not in statuses[fault.kind]:
                wrong.append(f"victim {rank} ended with status {run.exits.get(rank)}")
        elif rank in run.exits:
            wrong.append(f"rank {rank} died with status {run.exits[rank]}")
        elif rank not in run.ended:
            wrong.append(f"rank {rank} gave no answer")
        elif run.ended[rank].trouble:
            wrong.append(f"rank {rank} failed outside of any operation: {run.ended[rank].trouble}")
    return wrong


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
        # An interpreter that ends lets its groups go, which says goodbye; or ends before it does.
        return Expectation(done, issued, (("PeerLostError", victim), ("PeerLeftError", victim)))
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
    errors = (("CollectiveTimeoutError", victim),)
    # A stopped process does nothing for what it has pending; a sleeping one does.
    low = done if stopped else issued
    # All that the victim needs for one more operation may be there already.
    return Expectation(low, (issued + 1 if mine else issued) if too_late else NEVER, errors)


def _judge_rank(run: Run, rank: int, ended: Ended) -> list[str]:
    wrong = _count(run, rank, ended)
    for group in range(len(run.schedule.groups)):
        results = [result for result in ended.results if result.group == group]
        expected = expectation(run, rank, group)
        found = _judge_results(results, expected, run, rank)
        wrong += [f"group {group}, {text}" for text in found[:2]]
    return wrong


def _count(run: Run, rank: int, ended: Ended) -> list[str]:
    """Whether the rank did all that it was to do."""
    fault = run.schedule.fault
    wanted = [step.op for step in run.schedule.steps[rank]]
    if rank == fault.victim:
        if fault.kind in ("leave", "raise and leave"):
            wanted = [op for op in wanted if op < fault.at]
        if fault.kind == "skip":
            wanted.remove(fault.at)
    done = [result.op for result in ended.results if result.op != EXTRA]
    return [] if done == wanted else [f"issued {done} and was to issue {wanted}"]


def _judge_results(results: list[Result], expected: Expectation, run: Run, rank: int) -> list[str]:
    wrong = []
    first: Result | None = None
    for position, result in enumerate(results):
        name = f"call {position} (operation {result.op})"
        if result.expired is not None:
            wrong += [f"{name}: {text}" for text in _judge_expiry(result.expired, run)]
        if result.error is None:
            if not result.right:
                wrong.append(f"{name}: a wrong result")
            if position >= expected.high:
                wrong.append(f"{name}: ended well and was to fail")
            if first is not None:
                wrong.append(f"{name}: ended well after a failure of its group")
            continue
        if position < expected.low:
            wrong.append(f"{name}: failed and was to end well: {result.error}")
            continue
        wrong += [f"{name}: {text}" for text in _judge_error(result, expected, run, rank)]
        if first is None:
            first = result
            if result.error.kind in _NUMBERED and result.error.sequence != position:
                wrong.append(f"{name}: an error about another operation: {result.error}")
            if result.error.kind == "CollectiveTimeoutError" and not _was_due(result, run):
                wrong.append(f"{name}: before the timeout: {result.error}")
        elif first.error is not None and first.error.kind != "KeyboardInterrupt":
            told, before = result.error, first.error
            if (told.kind, told.text) != (before.kind, before.text):
                wrong.append(f"{name}: {told}, before it {before}")
    return wrong


_NAMING = ("PeerLostError", "PeerLeftError", "CollectiveTimeoutError")
_NUMBERED = ("CollectiveMismatchError", "PeerLostError", "PeerLeftError", "CollectiveTimeoutError")


def _judge_error(result: Result, expected: Expectation, run: Run, rank: int) -> list[str]:
    error = result.error
    assert error is not None
    members = run.schedule.groups[result.group]
    blamed = None if error.peer is None else members[error.peer]
    fits = any(error.kind == kind and peer in (ANYBODY, blamed) for kind, peer in expected.errors)
    if error.kind == "CollectiveTimeoutError" and not fits:
        # The first of those that are late is blamed; the victim must be among them.
        fits = ("CollectiveTimeoutError", run.schedule.fault.victim) in expected.errors and bool(
            re.search(rf"not arrived: .*\brank {run.schedule.fault.victim} \(pid", error.text)
        )
    if not fits:
        return [f"{error}, and not one of {expected.errors}"]
    wrong = []
    if error.kind == "CollectiveMismatchError":
        if not result.untouched:
            wrong.append("a tensor was touched in spite of the mismatch")
        if f"rank {members.index(run.schedule.fault.victim)} called" not in error.text:
            wrong.append(f"does not tell what the victim called: {error}")
    named = run.struck is not None and f"(pid {run.struck.pid})" in error.text
    if rank != run.schedule.fault.victim and error.kind in _NAMING and not named:
        wrong.append(f"does not name the victim's process: {error}")
    delay = lateness(run, rank, result)
    if delay is not None and delay > SLACK:
        wrong.append(f"was told {delay:.2f} s late: {error.kind}")
    return wrong


def _was_due(result: Result, run: Run) -> bool:
    """Whether the timeout had passed on any rank: one tells the others."""
    issued = []
    for ended in run.ended.values():
        failed = [r for r in ended.results if r.group == result.group and r.failed]
        issued += [r.issued for r in failed[:1]]
    return result.ended >= min(issued) + run.schedule.timeout * 0.99


def _judge_expiry(expired: Told, run: Run) -> list[str]:
    if expired.kind != "CollectiveTimeoutError":
        return [f"wait(timeout) raised {expired}"]
    took = float(re.findall(r"\(after ([\d.]+) s\)", expired.text)[-1])
    patience = int(run.schedule.fault.after * 1000) / 1000  # torch counts in milliseconds
    if not patience - 0.001 <= took <= patience + SLACK:
        return [f"wait({patience} s) raised after {took} s"]
    return []


def lateness(run: Run, rank: int, result: Result) -> float | None:
    """Seconds from the moment when an error was due to its arrival; None where none is known."""
    fault = run.schedule.fault
    if run.struck is None or result.error is None:
        return None
    if result.error.kind == "CollectiveTimeoutError":
        if run.schedule.timeout >= PATIENT or rank == fault.victim:
            return None
        return result.ended - max(result.issued + run.schedule.timeout, result.waited)
    happened = run.killed_at or run.struck.at
    if fault.kind in ("quit", "raise"):
        # The end of an interpreter takes its time, and says goodbye somewhere in it.
        return max(0.0, result.ended - max(run.ended_at, result.waited))
    if fault.kind == "interrupt":
        happened = max(r.interrupted for r in run.ended[fault.victim].results)
    if fault.kind in ("leave", "raise and leave") and fault.victim in run.ended:
        happened = run.ended[fault.victim].left
    if fault.kind in ("extra", "skip") and result.error.kind == "PeerLeftError":
        happened = max(ended.left for ended in run.ended.values())
    return result.ended - max(happened, result.waited)


def _in_step(run: Run) -> list[str]:
    """No rank completes an operation after one that another rank of the group gave up before."""
    wrong = []
    for group, members in enumerate(run.schedule.groups):
        first = {}
        for rank in members:
            if rank in run.ended and not _ended_early(run, rank):
                results = [r for r in run.ended[rank].results if r.group == group]
                failed = [i for i, result in enumerate(results) if result.failed]
                first[rank] = failed[0] if failed else len(results)
        stuck = {rank: at for rank, at in first.items() if at < _calls(run, rank, group)}
        if stuck and max(first.values()) > min(stuck.values()) + 1:
            wrong.append(f"group {group}: first failures too far apart: {first}")
    return wrong


def _ended_early(run: Run, rank: int) -> bool:
    return rank == run.schedule.fault.victim and run.schedule.fault.kind in (
        *DEADLY, "leave", "raise and leave"
    )  # fmt: skip


def _calls(run: Run, rank: int, group: int) -> int:
    return sum(result.group == group for result in run.ended[rank].results)
