"""What is right: every rank's results of a run, judged against its schedule. Pure."""

from __future__ import annotations

import re

from faults.expect import ANYBODY, Expectation, expectation
from faults.report import EXTRA, Ended, Result, Run, Told
from faults.schedule import DEADLY, PATIENT, STOCK

# An error is due at once. So much is allowed where other programs keep the cores busy.
SLACK = 3.0


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
        by_gloo = _is_stock(result, run)
        if result.expired is not None:
            wrong += [f"{name}: {text}" for text in _judge_expiry(result.expired, run)]
        if result.error is None:
            if not result.right:
                wrong.append(f"{name}: a wrong result")
            if position >= expected.high:
                wrong.append(f"{name}: ended well and was to fail")
            if first is not None and not by_gloo:
                wrong.append(f"{name}: ended well after a failure of its group")
            continue
        if position < expected.low and not (by_gloo and expected.errors):
            wrong.append(f"{name}: failed and was to end well: {result.error}")
            continue
        wrong += [f"{name}: {text}" for text in _judge_error(result, expected, run, rank)]
        if by_gloo:
            continue
        if first is None:
            first = result
            # The first failure is this one, or one of STOCK before it.
            failed = [at for at, one in enumerate(results[: position + 1]) if one.failed]
            if result.error.kind in _NUMBERED and result.error.sequence not in failed:
                wrong.append(f"{name}: an error about another operation: {result.error}")
            if result.error.kind == "CollectiveTimeoutError" and not _was_due(result, run):
                wrong.append(f"{name}: before the timeout: {result.error}")
        elif first.error is not None:
            told, before = result.error, first.error
            by_hand = "KeyboardInterrupt" in (told.kind, before.kind)
            same = (told.kind, _failure_in(told.text)) == (before.kind, _failure_in(before.text))
            if not by_hand and not same:
                wrong.append(f"{name}: {told}, before it {before}")
    return wrong


def _failure_in(text: str) -> str:
    """Return what a message says of the failure, without the call that came after it."""
    return re.sub(r"this call of \w+ comes after .*? named in front: ", "", text)


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
        # Split sizes are compared as a sum over all ranks: it does not tell whose are wrong.
        sums = "split sizes of the ranks do not fit" in error.text
        if f"rank {members.index(run.schedule.fault.victim)} called" not in error.text and not sums:
            wrong.append(f"does not tell what the victim called: {error}")
    named = run.struck is not None and f"(pid {run.struck.pid})" in error.text
    anybody = (error.kind, ANYBODY) in expected.errors
    if rank != run.schedule.fault.victim and error.kind in _NAMING and not (named or anybody):
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
                results = _native(run, rank, group)
                failed = [i for i, result in enumerate(results) if result.failed]
                first[rank] = failed[0] if failed else len(results)
        calls = {rank: len(_native(run, rank, group)) for rank in first}
        stuck = {rank: at for rank, at in first.items() if at < calls[rank]}
        if stuck and max(first.values()) > min(stuck.values()) + 1:
            wrong.append(f"group {group}: first failures too far apart: {first}")
    return wrong


def _ended_early(run: Run, rank: int) -> bool:
    return rank == run.schedule.fault.victim and run.schedule.fault.kind in (
        *DEADLY, "leave", "raise and leave"
    )  # fmt: skip


def _native(run: Run, rank: int, group: int) -> list[Result]:
    return [r for r in run.ended[rank].results if r.group == group and not _is_stock(r, run)]


def _is_stock(result: Result, run: Run) -> bool:
    """Whether it is of STOCK, which are judged less strictly than the others.

    Such a call is allowed to fail on a peer though it ended well where the fault happened, and
    while later ones of other kinds go on. Native operations do not need that.
    """
    op = run.schedule.fault.other if result.op == EXTRA else run.schedule.ops[result.op]
    return op is not None and op.kind in STOCK
