"""The ranks that hold up a job: others wait for them, and they wait for nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastcomm._records.jobs import GroupView, Job
from fastcomm._records.members import DEAD, ELSEWHERE, LEFT, STOPPED, Member
from fastcomm._records.phrases import call_text, ranges, ranks_text, seconds_text

SHORT = 1.0  # seconds: ranks of a job that is well wait for each other as long
LONG = 10.0  # seconds: a job that waits as long is held up
_WORST_FIRST = (DEAD, LEFT, STOPPED)


@dataclass(frozen=True)
class Verdict:
    """The cause that holds up a job."""

    text: str  # one line
    waits: float  # seconds of the longest wait; 0 if no rank waits
    culprits: tuple[tuple[str, int], ...]  # token of a group, and rank in it
    is_held_up: bool  # a rank is dead or stopped, or has been waited for longer than LONG


def verdict(job: Job) -> Verdict:
    """Judge a job."""
    waits = max((member.waits for group in job.groups for member in group.members), default=0.0)
    gone = [
        (group, member)
        for group in job.groups
        for member in group.members
        if member.state in (DEAD, STOPPED)
    ]
    blamed = _blamed(job)
    is_urgent = any(member.is_gone for _, members, _ in blamed for member in members)
    if blamed and (waits >= SHORT or is_urgent):
        text = _culprits_text(*blamed[0])
        text += f" (and {len(blamed) - 1} more such)" if len(blamed) > 1 else ""
    elif waits >= SHORT:
        text = _differs_text(job) or _missing_text(job) or _circle_text(job)
    elif gone:
        group, member = gone[0]
        text = f"{_who(group, [member])} {_doing(member)}; no rank waits for it yet"
    elif not job.groups:
        text = "no process group yet"
    else:
        text = f"no rank has waited for {SHORT:.0f} s"
    culprits = tuple((group.group.token, m.rank) for group, members, _ in blamed for m in members)
    return Verdict(text, waits, culprits, bool(gone) or waits >= LONG)


def _blamed(job: Job) -> list[tuple[GroupView, list[Member], list[Member]]]:
    """Return groups with the ranks to blame and those that wait for them, the worst first."""
    waiting = {m.seat for group in job.groups for m in group.members if m.waits_for or m.missing}
    found = []
    for group in job.groups:
        by_state: dict[str, list[Member]] = {}
        for member in group.members:
            if member.seat not in waiting and _waiting_for(group, [member]):
                by_state.setdefault(member.state, []).append(member)
        found += [(group, members, _waiting_for(group, members)) for members in by_state.values()]

    def place_of(blamed: tuple[GroupView, list[Member], list[Member]]) -> tuple[int, float]:
        state = blamed[1][0].state
        order = _WORST_FIRST.index(state) if state in _WORST_FIRST else len(_WORST_FIRST)
        return order, -max(member.waits for member in blamed[2])

    return sorted(found, key=place_of)


def _waiting_for(group: GroupView, awaited: Iterable[Member]) -> list[Member]:
    numbers = {member.rank for member in awaited}
    return [member for member in group.members if numbers.intersection(member.waits_for)]


def _who(group: GroupView, members: Iterable[Member]) -> str:
    runs = ranges(member.rank for member in members)
    return f"{ranks_text(runs)} of group '{group.group.name}'"


def _culprits_text(group: GroupView, members: list[Member], waiting: list[Member]) -> str:
    is_one = len(members) == 1
    text = (
        f"{_who(group, members)} hold{'s' * is_one} up "
        f"{ranks_text(ranges(member.rank for member in waiting))}: "
    )
    if is_one:
        return f"{text}it {_doing(members[0])}"
    since = min(member.since for member in members)
    return f"{text}they are {members[0].state}, for {seconds_text(since)} or more"


def _doing(member: Member) -> str:
    """Return what a rank does, with the verb; and what it called last, if it is in no call."""
    text = _state_text(member)
    if member.call is not None or member.state == LEFT:
        return text
    last = member.last
    return (
        f"{text}; its last was {call_text(last)}" if last else f"{text}; it has called nothing yet"
    )


def _state_text(member: Member) -> str:
    inside = f"in {call_text(member.call)}" if member.call is not None else "outside any call"
    if member.state == STOPPED:
        return f"is stopped, {inside}"
    if member.state == DEAD:
        return f"is gone, {inside}: no process here has it"
    if member.state == LEFT:
        return f"has closed the group, {seconds_text(member.since)} ago"
    if member.state == ELSEWHERE and member.call is not None and member.call.group is not None:
        inside += f", of group '{member.call.group.name}'"
    return f"has been {inside} for {seconds_text(member.since)}"


def _differs_text(job: Job) -> str:
    """Say which ranks call what, if ranks of a group call different operations."""
    for group in job.groups:
        for member in group.members:
            if member.differs and member.call is not None:
                by_call: dict[str, list[int]] = {}
                for each in group.members:
                    if each.differs and each.call is not None:
                        by_call.setdefault(call_text(each.call), []).append(each.rank)
                calls = "; ".join(
                    f"{ranks_text(ranges(numbers))}: {call}" for call, numbers in by_call.items()
                )
                return f"ranks of group '{group.group.name}' call different operations: {calls}"
    return ""


def _missing_text(job: Job) -> str:
    """Say who waits for ranks of other hosts, if any does."""
    for group in job.groups:
        waiting = [member for member in group.members if member.missing]
        if waiting:
            runs = waiting[0].missing
            return (
                f"{_who(group, waiting)}: in a call that may wait for {ranks_text(runs)}, "
                "of which no process is here: on another host, or ended"
            )
    return ""


def _circle_text(job: Job) -> str:
    """Say which ranks wait for each other in a circle."""
    first: dict[int, tuple[GroupView, Member]] = {}  # a wait, by the seat that waits
    for group in job.groups:
        for member in group.members:
            if member.waits_for:
                first.setdefault(member.seat, (group, member))
    seat = next(iter(first), None)
    passed: list[int] = []
    while seat in first and seat not in passed:
        passed.append(seat)
        group, member = first[seat]
        seat = group.member(member.waits_for[0]).seat
    circle = passed[passed.index(seat) :] if seat in passed else passed
    waits = []
    for each in circle:
        group, member = first[each]
        call = call_text(member.call) if member.call is not None else ""
        waits.append(f"{_who(group, [member])} for rank {member.waits_for[0]} in {call}")
    return f"ranks wait for each other: {'; '.join(waits)}"
