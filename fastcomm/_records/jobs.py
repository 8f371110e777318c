"""Jobs from the records of their ranks: which groups there are, and what each rank does in them.

A job is all ranks that share groups, directly or through others. Nothing here asks the system: what
it is told may be of any time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fastcomm._records.calls import Calls
from fastcomm._records.find import RankFile
from fastcomm._records.members import Member, member_of, with_waits
from fastcomm._records.phrases import gaps
from fastcomm._records.snapshot import Group


@dataclass(frozen=True)
class GroupView:
    """A group and those of its ranks that were found."""

    group: Group  # as its lowest rank here has it
    members: tuple[Member, ...]  # by rank
    missing: tuple[tuple[int, int], ...]  # first and last of each run of ranks that are not here

    def member(self, rank: int) -> Member:
        """Return one of the ranks that were found."""
        return next(member for member in self.members if member.rank == rank)


@dataclass(frozen=True)
class Job:
    """Ranks that share groups, directly or through others."""

    ranks: tuple[RankFile, ...]
    groups: tuple[GroupView, ...]  # the largest first; closed ones only if there are no others

    @property
    def name(self) -> str:
        """A short text that no other job has, the same as long as the job lives."""
        return self.groups[0].group.token[-12:] if self.groups else ""


def jobs(ranks: Sequence[RankFile], now: int, busy: Collection[int] = ()) -> list[Job]:
    """Return the jobs of ranks, the largest first.

    Args:
        ranks: what was found.
        now: when, in ns of CLOCK_MONOTONIC.
        busy: PIDs of the processes that used the processor when they were looked at.
    """
    found = [_job(part, now, busy) for part in _connected(ranks)]
    return sorted(found, key=lambda job: (-len(job.ranks), job.name))


def _groups(rank: RankFile) -> list[Group]:
    return [group for group in rank.snapshot.groups if 0 <= group.rank < group.size]


def _connected(ranks: Sequence[RankFile]) -> list[list[RankFile]]:
    parts: list[tuple[set[str], list[RankFile]]] = []
    for rank in ranks:
        tokens, part = {group.token for group in _groups(rank)}, [rank]
        apart = []
        for others in parts:
            if others[0].isdisjoint(tokens):
                apart.append(others)
            else:
                tokens |= others[0]
                part = others[1] + part
        parts = [*apart, (tokens, part)]
    return [part for _, part in parts]


def _job(ranks: Sequence[RankFile], now: int, busy: Collection[int]) -> Job:
    places: dict[str, dict[int, tuple[int, Group]]] = {}  # seat and group, by token and rank
    for seat, rank in enumerate(ranks):
        for group in _groups(rank):
            by_rank = places.setdefault(group.token, {})
            # One that lives, should two say that they are the same.
            if group.rank not in by_rank or _is_dead(ranks[by_rank[group.rank][0]]):
                by_rank[group.rank] = (seat, group)
    calls = [Calls(rank.snapshot) for rank in ranks]
    is_open = {
        token: any(group.closed is None for _, group in by_rank.values())
        for token, by_rank in places.items()
    }
    views = [
        _view(by_rank, ranks, calls, now, busy)
        for token, by_rank in places.items()
        if is_open[token] or not any(is_open.values())
    ]
    views.sort(key=lambda view: (-view.group.size, view.group.opened, view.group.token))
    return Job(tuple(ranks), tuple(views))


def _is_dead(rank: RankFile) -> bool:
    return rank.process is None or rank.process.is_dead


def _view(
    by_rank: dict[int, tuple[int, Group]],
    ranks: Sequence[RankFile],
    calls: Sequence[Calls],
    now: int,
    busy: Collection[int],
) -> GroupView:
    is_open = any(group.closed is None for _, group in by_rank.values())
    members = {}
    for number, (seat, group) in sorted(by_rank.items()):
        process = ranks[seat].process
        computes = process is not None and process.pid in busy
        has_left = is_open and group.closed is not None
        members[number] = member_of(ranks[seat], seat, calls[seat], group, has_left, computes, now)
    first = by_rank[min(by_rank)][1]
    missing = tuple(gaps(members, first.size))
    waiting = [with_waits(member, members, calls, missing) for member in members.values()]
    return GroupView(first, tuple(waiting), missing)
