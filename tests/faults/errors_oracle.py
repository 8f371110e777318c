"""What an error says, and when it comes. Pure."""

from __future__ import annotations

import re

from faults.expect import ANYBODY, Expectation
from faults.messages_oracle import nobody_is_left
from faults.report import EXTRA, Result, Run
from faults.schedule import PATIENT, Schedule

# An error is due at once. This many seconds are allowed where other programs keep cores busy.
SLACK = 30.0

_NAMING = ("PeerLostError", "PeerLeftError", "CollectiveTimeoutError")
NUMBERED = ("CollectiveMismatchError", *_NAMING)
# What messages call an operation that has another name in schedules.
_CALLED = {
    "all_gather_uneven": "all_gather",
    "reduce_scatter_uneven": "reduce_scatter",
    "all_reduce_sparse": "all_reduce",
    "all_gather_coalesced": "all_gather_into_tensor_coalesced",
}
_CALLS = re.compile(r"(?:^|[;:\]] )ranks? ([\d, -]+) called (\w+)\(")


def judge_error(result: Result, expected: Expectation, run: Run, rank: int) -> list[str]:
    """Return what is wrong with an error where one may be."""
    error = result.error
    assert error is not None
    members, victim = run.schedule.groups[result.group], run.schedule.fault.victim
    blamed = None if error.peer is None else members[error.peer]
    fits = any(error.kind == kind and peer in (ANYBODY, blamed) for kind, peer in expected.errors)
    if error.kind == "CollectiveTimeoutError" and not fits:
        # The first rank that is late is blamed; the victim must be among those.
        fits = ("CollectiveTimeoutError", victim) in expected.errors and bool(
            re.search(rf"not arrived: .*\brank {victim} \(pid", error.text)
        )
    alone = (
        (error.kind, blamed) == ("PeerLeftError", None)
        and "all other ranks destroyed their process groups" in error.text
        and nobody_is_left(run, rank, result.group)
    )
    if not (fits or alone):
        return [f"{error}, and not one of {expected.errors}"]
    wrong = []
    if found := re.search("gloo|engine|stock", error.text, re.IGNORECASE):
        wrong.append(f"speaks of {found[0]!r}, which the user has not asked for: {error}")
    if error.kind == "CollectiveMismatchError" and not _tells_both_calls(run, error.text, members):
        wrong.append(f"does not tell what the victim called: {error}")
    named = run.struck is not None and f"(pid {run.struck.pid})" in error.text
    anybody = (error.kind, ANYBODY) in expected.errors
    if rank != victim and error.kind in _NAMING and not (named or anybody or alone):
        wrong.append(f"does not name the victim's process: {error}")
    if rank != victim and run.schedule.fault.kind == "extra" and error.kind == "PeerLeftError":
        # Only the victim misses whoever has left: the others are told what it found.
        found_by_victim = f" gave the group up: [rank {members.index(victim)} of {len(members)}, "
        wrong += [] if found_by_victim in error.text else [f"does not tell what it found: {error}"]
    delay = lateness(run, rank, result)
    if delay is not None and delay > SLACK:
        wrong.append(f"was told {delay:.2f} s late: {error.kind}")
    return wrong


def _tells_both_calls(run: Run, text: str, members: tuple[int, ...]) -> bool:
    """Tell whether a mismatch names two calls, one of them the victim's and no one else's.

    Split sizes are compared as a sum over all ranks, which does not tell whose is wrong.
    """
    calls = _CALLS.findall(text)
    if len(calls) < 2 or "split sizes of the ranks do not fit" in text:
        return len(calls) >= 2
    victim = str(members.index(run.schedule.fault.victim))
    return any(ranks == victim and op in _called_by_victim(run.schedule) for ranks, op in calls)


def _called_by_victim(schedule: Schedule) -> tuple[str, ...]:
    fault = schedule.fault
    if fault.kind == "misfit":
        return ("recv" if fault.victim == schedule.ops[fault.at].root else "send",)
    later = [step.op for step in schedule.steps[fault.victim] if step.op > fault.at]
    op = schedule.ops[later[0]] if fault.other is None else fault.other
    if op.kind == "fused_all_reduce":  # a list that does not fit into blocks is gathered
        return (op.kind, "all_gather")
    return (_CALLED.get(op.kind, op.kind),)


def lateness(run: Run, rank: int, result: Result) -> float | None:
    """Return the seconds from when an error was due to its arrival; None where that is unknown."""
    fault = run.schedule.fault
    if run.struck is None or result.error is None:
        return None
    if result.error.kind == "CollectiveTimeoutError":
        if run.schedule.timeout >= PATIENT or rank == fault.victim:
            return None
        message = result.op != EXTRA and run.schedule.ops[result.op].is_message
        begun = result.waited if message else result.issued  # for a message it counts from wait()
        return result.ended - max(begun + run.schedule.timeout, result.waited)
    happened = run.killed_at or run.struck.at
    if fault.kind == "interrupt":
        happened = max(r.interrupted for r in run.ended[fault.victim].results)
    if fault.kind in ("leave", "raise and leave") and fault.victim in run.ended:
        happened = run.ended[fault.victim].left
    everybody = fault.kind in ("extra", "skip") or result.error.peer is None
    if everybody and result.error.kind == "PeerLeftError":
        happened = max(ended.left for ended in run.ended.values())
    return result.ended - max(happened, result.waited)
