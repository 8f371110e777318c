"""What is right: every rank's results of a run, judged by its schedule. Pure."""

from __future__ import annotations

import math
import re

from faults.certain import ended_before
from faults.errors_oracle import NUMBERED, SLACK, judge_error
from faults.expect import Expectation, expectation
from faults.messages_oracle import gives_up, must_arrive, must_be_untouched, must_fail
from faults.report import EXTRA, Ended, Result, Run, Told
from faults.schedule import DEADLY


def judge(run: Run) -> list[str]:
    """Return what is wrong with a run, as sentences; empty if nothing is."""
    if run.hung:
        return [f"ranks {run.hung} do not answer"]
    wrong = _ends(run)
    if wrong:
        return wrong
    for rank, ended in run.ended.items():
        wrong += [f"rank {rank}: {text}" for text in _judge_rank(run, rank, ended)]
    wrong += _in_step(run) + _after_a_failure(run)
    for rank, fresh in run.fresh.items():
        if fresh.trouble:
            wrong.append(f"rank {rank}, in the new group: {fresh.trouble}")
        # A group that is gone releases its memory when the next one is formed.
        if left := fresh.resources.segments & run.dead_segments:
            wrong.append(f"rank {rank} still maps memory of a rank that is dead: {left}")
        if fresh.resources.sockets:
            wrong.append(f"rank {rank} still has {fresh.resources.sockets} sockets open")
    return wrong


def _ends(run: Run) -> list[str]:
    """Judge who must have ended, and how; and who must not."""
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
    """Judge whether the rank did all that it had to do."""
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
    """Judge what a rank has issued in a group, in that order."""
    wrong = []
    certain = ended_before(run.schedule)[rank] if run.schedule.fault.at >= 0 else set()
    first: Result | None = None
    known = math.inf  # when this rank knew that the group has failed
    position = -1
    for number, result in enumerate(results):
        message = is_message(result, run)
        position += not message
        name = f"call {number} (operation {result.op})"
        if result.expired is not None:
            wrong += [f"{name}: {text}" for text in _judge_expiry(result.expired, run)]
        if result.error is None:
            if not result.right:
                wrong.append(f"{name}: a wrong result")
            doomed = must_fail(run, rank, result) if message else position >= expected.high
            if doomed:
                wrong.append(f"{name}: ended well and was to fail")
            earlier = [r for r in results[:number] if r.failed and not is_message(r, run)]
            if result.issued > known or (earlier and not message):
                wrong.append(f"{name}: ended well after a failure of its group")
            continue
        known = min(known, result.ended)
        fine = result.op in certain or (
            must_arrive(run, rank, result, results[:number]) if message else position < expected.low
        )
        if fine or not expected.errors:
            wrong.append(f"{name}: failed and was to end well: {result.error}")
            continue
        found = judge_error(result, expected, run, rank)
        if result.error.kind == "CollectiveMismatchError" and not result.untouched:
            misfit = run.schedule.fault.kind == "misfit"
            begun = misfit if not message else not must_be_untouched(run, rank, result)
            if not begun and (message or position >= expected.high):
                found.append("a tensor was touched in spite of the mismatch")
        wrong += [f"{name}: {text}" for text in found]
        if first is None:
            first = result
            if result.error.kind in NUMBERED and not _is_about_the_first(
                result.error, results, run
            ):
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


def is_message(result: Result, run: Run) -> bool:
    return result.op != EXTRA and run.schedule.ops[result.op].is_message


def _is_about_the_first(error: Told, results: list[Result], run: Run) -> bool:
    """Tell whether an error's number is one of the first collective that failed.

    Where the failure was found in a message, the number is that of collectives issued so far.
    """
    calls = [result for result in results if not is_message(result, run)]
    numbers = [1 if r.op == EXTRA else run.schedule.ops[r.op].numbers for r in calls]
    failed = [at for at, result in enumerate(calls) if result.failed]
    if error.sequence is None:
        return False
    if re.match(r"\[[^]]*\b(send|recv), sequence ", error.text):
        return min([*failed, 0]) <= error.sequence <= sum(numbers)
    taken = [range(sum(numbers[:at]), sum(numbers[: at + 1])) for at in failed[:1]]
    return any(error.sequence in each for each in taken)


def _failure_in(text: str) -> str:
    """Return what a message says about the failure, without the call that came after it."""
    return re.sub(r"this call of \w+ comes after .*? named in front: ", "", text)


def _was_due(result: Result, run: Run) -> bool:
    """Tell whether the timeout had passed on any rank: one tells the others."""
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


def _in_step(run: Run) -> list[str]:
    """Check that no rank completes an operation after one that another rank gave up before."""
    wrong = []
    for group, members in enumerate(run.schedule.groups):
        first = {}
        for rank in members:
            if rank in run.ended and not _ended_early(run, rank):
                results = _collectives(run, rank, group)
                failed = [i for i, result in enumerate(results) if result.failed]
                first[rank] = failed[0] if failed else len(results)
        calls = {rank: len(_collectives(run, rank, group)) for rank in first}
        stuck = {rank: at for rank, at in first.items() if at < calls[rank]}
        if stuck and max(first.values()) > min(stuck.values()) + 1:
            wrong.append(f"group {group}: first failures too far apart: {first}")
    return wrong


def _after_a_failure(run: Run) -> list[str]:
    """Check that no call ends well that was issued after another rank had raised in that group.

    One that was under way by then may end either way.
    """
    wrong = []
    for group in range(len(run.schedule.groups)):
        results = [
            (rank, result)
            for rank, ended in run.ended.items()
            for result in ended.results
            if result.group == group
        ]
        for rank, result in results:
            known = [r.ended for other, r in results if other != rank and gives_up(r)]
            if not result.failed and result.issued > min(known, default=math.inf):
                wrong.append(
                    f"rank {rank}: operation {result.op} of group {group} ended well and was "
                    "issued after another rank had raised there"
                )
    return wrong


def _ended_early(run: Run, rank: int) -> bool:
    return rank == run.schedule.fault.victim and run.schedule.fault.kind in (
        *DEADLY, "leave", "raise and leave"
    )  # fmt: skip


def _collectives(run: Run, rank: int, group: int) -> list[Result]:
    return [r for r in run.ended[rank].results if r.group == group and not is_message(r, run)]
