"""One rank of a group: what it does, and whom it waits for.

A rank waits, in a collective that not all have issued, for those that have not, and in a message
for its peer. A call whose ranks have all come moves data, and waits for nobody, unless one of them
is stopped or dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fastcomm._records.calls import Calls
from fastcomm._records.find import RankFile
from fastcomm._records.snapshot import Call, Group

IN_CALL = "in call"  # of the group
ELSEWHERE = "in another group's call"
OUTSIDE = "outside any call"
STOPPED = "stopped"
DEAD = "dead"  # or no process that is visible from here
LEFT = "left"  # it has closed the group, which others have not
STATES = (IN_CALL, ELSEWHERE, OUTSIDE, STOPPED, DEAD, LEFT)


@dataclass(frozen=True)
class Member:
    """A rank in one of its groups. Times are in seconds."""

    rank: int  # in the group
    seat: int  # place of the process in `Job.ranks`
    state: str  # of STATES
    computes: bool  # it uses the processor, or would
    since: float  # how long it has been in the state; stopped, dead: since its last record
    call: Call | None  # the oldest that is open in this group, else in any
    open: int  # how many calls are open, in all groups
    last: Call | None  # the newest call of this group
    waits_for: tuple[int, ...] = ()  # ranks of the group
    differs: tuple[int, ...] = ()  # of these, those that call something else in its place
    missing: tuple[tuple[int, int], ...] = ()  # first and last of ranks that are not here

    @property
    def waits(self) -> float:
        """Time that it has waited for other ranks; 0 if it does not."""
        return self.since if self.waits_for or self.missing else 0.0

    @property
    def is_gone(self) -> bool:
        """It does nothing more by itself."""
        return self.state in (STOPPED, DEAD, LEFT)


def member_of(
    rank: RankFile, seat: int, calls: Calls, group: Group, has_left: bool, computes: bool, now: int
) -> Member:
    """Return what a rank does as one of a group, without whom it waits for.

    Args:
        rank: what was found of it.
        seat: its place among the job's ranks.
        calls: its calls.
        group: the group, as it has it.
        has_left: it has closed the group, and others have not.
        computes: it uses the processor.
        now: when, in ns of CLOCK_MONOTONIC.
    """
    own = calls.open_in(group.token)
    call = next(iter(own or calls.open), None)
    last_sign = calls.last_sign if calls.last_sign is not None else group.opened
    if has_left:
        state, begin = LEFT, group.closed or now
    elif rank.process is None or rank.process.is_dead:
        state, begin = DEAD, last_sign
    elif rank.process.is_stopped:
        state, begin = STOPPED, last_sign
    elif call is not None:
        state, begin = (IN_CALL if own else ELSEWHERE), call.issued
    else:
        state = OUTSIDE
        begin = calls.idle_since if calls.idle_since is not None else group.opened
    return Member(
        rank=group.rank,
        seat=seat,
        state=state,
        computes=computes,
        since=max(now - begin, 0) / 1e9,
        call=call,
        open=len(calls.open),
        last=calls.last_in(group.token),
    )


def with_waits(
    member: Member,
    members: dict[int, Member],
    calls: Sequence[Calls],
    missing: tuple[tuple[int, int], ...],
) -> Member:
    """Return a rank with whom it waits for.

    Args:
        member: the rank.
        members: the ranks of its group that were found, by their number in it.
        calls: the calls of all ranks, by seat.
        missing: runs of the group's ranks that were not found.
    """
    call = member.call
    if member.state != IN_CALL or call is None:
        return member
    others = [other for other in members.values() if other.rank != member.rank]
    if call.is_message:
        others = [other for other in others if other.rank == call.peer]
        late = [m for m in others if not calls[m.seat].answers(call, member.rank)]
        missing = tuple((p, p) for p in [call.peer] if p is not None and _is_in(p, missing))
        differs = []
    else:
        late = [m for m in others if not calls[m.seat].has_reached(call)]
        differs = [m for m in others if _calls_otherwise(calls[m.seat], call)]
    gone = [m for m in others if m.is_gone and _is_needed(calls[m.seat], call)]
    awaited = gone if call.started is not None else [*late, *differs, *gone]
    return replace(
        member,
        waits_for=tuple(sorted({other.rank for other in awaited})),
        differs=tuple(other.rank for other in differs if other in awaited),
        missing=missing if not awaited and call.started is None and _may_wait(call) else (),
    )


def _is_in(number: int, runs: Sequence[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in runs)


def _may_wait(call: Call) -> bool:
    return call.is_message or call.sequence is not None


def _calls_otherwise(calls: Calls, call: Call) -> bool:
    theirs = calls.numbered_as(call)
    return theirs is not None and theirs.ended is None and theirs.operation != call.operation


def _is_needed(calls: Calls, call: Call) -> bool:
    """Tell whether a collective waits for this rank: it has not ended it, or is its peer."""
    if call.is_message:
        return True
    theirs = calls.numbered_as(call)
    return theirs.ended is None if theirs is not None else not calls.has_reached(call)
