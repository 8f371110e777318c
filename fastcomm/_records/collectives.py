"""Calls of several ranks that are one collective: who came when, and who was waited for.

Calls belong together that have the same group, lane and sequence. Messages are none of them. Times
are in ns; all ranks have one clock, since they are of one host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastcomm._records.ranks import Rank
from fastcomm._records.snapshot import Call, Group

_Line = tuple[str, int]  # of a group's token and a lane, in which sequences count


@dataclass(frozen=True)
class Collective:
    """One collective of a group. Ranks are numbers in the job."""

    group: Group  # as one of its ranks has written it down
    lane: int
    sequence: int
    calls: Mapping[int, Call]  # by rank, in the order in which they came
    absent: tuple[int, ...]  # ranks whose records are here, and that have not come yet

    @property
    def first(self) -> Call:
        """The call of the rank that came first."""
        return next(iter(self.calls.values()))

    @property
    def is_whole(self) -> bool:
        """The calls of all ranks are here."""
        return len(self.calls) == self.group.size

    @property
    def is_cut_off(self) -> bool:
        """A rank's call is not here, though it may have come: its record is gone, or not read."""
        return len(self.calls) + len(self.absent) < self.group.size

    @property
    def is_open(self) -> bool:
        """A call of it has not ended, or has not come."""
        return bool(self.absent) or any(call.ended is None for call in self.calls.values())

    @property
    def has_gone_well(self) -> bool:
        """All ranks have called the same operation, and ended well."""
        return self.is_whole and all(
            call.outcome == "ok" and call.operation == self.first.operation
            for call in self.calls.values()
        )

    @property
    def straggler(self) -> int | None:
        """The rank that came last; None in a group of one, and while a rank may be still to come.

        Of ranks that came at the same time it is the last in order.
        """
        return list(self.calls)[-1] if self.is_whole and self.group.size > 1 else None

    @property
    def last_issue(self) -> int:
        """When the last rank came, of those that did."""
        return max(call.issued for call in self.calls.values())

    @property
    def lateness(self) -> int:
        """Time from the last but one rank that came to the last; 0 without a straggler.

        So it is what the others would have gained, had that rank alone come earlier.
        """
        if self.straggler is None:
            return 0
        *_, before, last = (call.issued for call in self.calls.values())
        return last - before

    @property
    def duration(self) -> int | None:
        """From when the last rank came to the last end; None if it has not gone well."""
        if not self.has_gone_well:
            return None
        return max(call.ended or 0 for call in self.calls.values()) - self.last_issue

    def wait(self, rank: int) -> int:
        """Return the time that a rank waited: to the start, where it is told, or the last issue."""
        call = self.calls[rank]
        until = self.last_issue if call.started is None else call.started
        if call.ended is not None:  # a broadcast's root may have left before the last rank came
            until = min(until, call.ended)
        return max(0, until - call.issued)

    @property
    def bytes(self) -> int:
        """Of one rank's message; of the largest, if they differ."""
        return max(call.bytes for call in self.calls.values())


def matched(ranks: Sequence[Rank]) -> list[Collective]:
    """Return the collectives of ranks, in the order in which their last rank came."""
    calls: dict[tuple[str, int, int], dict[int, Call]] = {}
    groups: dict[str, Group] = {}  # by token
    reached: dict[tuple[_Line, int], int] = {}  # by line and rank: the latest sequence
    numbers: dict[str, set[int]] = {}  # of the ranks here, by group
    for rank in ranks:
        for group in rank.snapshot.groups:
            numbers.setdefault(group.token, set()).add(rank.number)
        for call in rank.snapshot.calls:
            if call.group is None or call.sequence is None or call.is_message:
                continue
            groups.setdefault(call.group.token, call.group)
            line = call.group.token, call.lane
            calls.setdefault((*line, call.sequence), {}).setdefault(rank.number, call)
            before = reached.get((line, rank.number), -1)
            reached[line, rank.number] = max(before, call.sequence)
    found = []
    for (token, lane, sequence), members in calls.items():
        absent = [
            number
            for number in sorted(numbers[token] - members.keys())
            if reached.get(((token, lane), number), -1) < sequence
        ]
        in_order = dict(sorted(members.items(), key=lambda item: (item[1].issued, item[0])))
        found.append(Collective(groups[token], lane, sequence, in_order, tuple(absent)))
    return sorted(found, key=lambda each: each.last_issue)
