"""What is right for sends and receives when ranks fail. Pure.

Some freedom is left: messages of different pairs have no order, so one between two healthy ranks
may fail or arrive once any rank of the group is gone or has given it up; and a short send to a rank
that no longer receives ends well if it was early enough. What is certain is here.
"""

from __future__ import annotations

from faults.certain import needed
from faults.report import Result, Run
from faults.schedule import DEADLY, WORLD

# After its fault the victim issues nothing.
_GONE = {*DEADLY, "leave", "raise and leave", "abort"} - {"kill in flight"}


def must_fail(run: Run, rank: int, result: Result) -> bool:
    """Tell whether a rank needs what no peer has done, or what does not fit."""
    schedule, fault = run.schedule, run.schedule.fault
    op = schedule.ops[result.op]
    if fault.kind == "misfit" and result.op == fault.at:
        own = fault.other if rank == fault.victim else op
        assert own is not None
        if op.kind == "any_source" and rank not in (op.root, fault.victim):
            return False  # another rank's message, which may have come before
        return rank == op.root or own.is_long  # a short message is sent before anybody compares it
    if fault.kind not in _GONE or result.op < fault.at:
        return False
    if fault.kind == "abort" and op.group != WORLD:
        return False
    if rank == fault.victim:
        return fault.kind == "abort"
    players = schedule.players(result.op)
    return fault.victim in players and fault.victim in needed(op, rank, players)


def gives_up(result: Result) -> bool:
    """Tell whether what a call raised means that its rank has given the group up.

    A rank that leaves in order ends what it has pending, and peers may receive what it has sent.
    """
    return result.error is not None and "was destroyed" not in result.error.text


def must_arrive(run: Run, rank: int, result: Result, before: list[Result]) -> bool:
    """Tell whether a short message was there for its receive, which looks before it fails.

    Only a rank that leaves in order lets peers receive what it sent, and only until another rank
    has given the group up. ``before``: what the rank has issued in the group. While some of that is
    pending, the failure may be known already.
    """
    schedule, fault = run.schedule, run.schedule.fault
    op = schedule.ops[result.op]
    others = [r for one, ended in run.ended.items() if one != rank for r in ended.results]
    if fault.kind not in ("leave", "raise and leave", "quit", "raise") or any(
        r.group == result.group and gives_up(r) and r.issued <= result.ended for r in others
    ):
        return False
    if op.kind != "message" or op.source != fault.victim or rank != op.root or op.is_long:
        return False
    called = next(step for step in schedule.steps[rank] if step.op == result.op)
    idle = all(not one.failed and one.ended <= result.issued for one in before)
    return result.op < fault.at and not called.asynchronous and idle


def nobody_is_left(run: Run, rank: int, group: int) -> bool:
    """Tell whether a receive from any rank may blame nobody, since all have left in good order.

    Then they have ended all that they had to do, without an error.
    """
    schedule, fault = run.schedule, run.schedule.fault
    if fault.kind not in ("leave", "raise and leave") or len(schedule.groups[group]) <= 2:
        return False
    others = [one for one in schedule.groups[group] if one not in (rank, fault.victim)]
    done = [result for one in others for result in run.ended[one].results]
    if any(result.failed for result in done if result.group == group):
        return False
    return any(
        result.failed
        and result.group == group
        and schedule.ops[result.op].kind == "any_source"
        and schedule.ops[result.op].root == rank
        and must_fail(run, rank, result)
        and result.ended >= max((each.ended for each in done), default=0.0)
        for result in run.ended[rank].results
    )


def must_be_untouched(run: Run, rank: int, result: Result) -> bool:
    """Tell whether nothing may be written, since what is received does not fit."""
    op = run.schedule.ops[result.op]
    misfit = run.schedule.fault.kind == "misfit" and result.op == run.schedule.fault.at
    return misfit and op.kind == "message" and rank == op.root
