"""Calls and bytes a second, from the records of the last seconds."""

from __future__ import annotations

from dataclasses import dataclass

from fastcomm._records.snapshot import Snapshot

_SHORTEST = 1e-3  # seconds


@dataclass(frozen=True)
class Rate:
    """Calls that have ended, and the bytes of their messages, by the second."""

    calls: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.calls + other.calls, self.bytes + other.bytes)


def rate(snapshot: Snapshot, now: int, span: float, last: int, token: str | None = None) -> Rate:
    """Return the rate of a process, or of it in one group.

    Args:
        snapshot: its records.
        now: when, in ns of CLOCK_MONOTONIC.
        span: seconds before that; fewer, if the records do not reach back so far.
        last: how many of the newest calls the snapshot was made with.
        token: of the group; None: all calls.
    """
    first = snapshot.issued - last
    begin = now - int(span * 1e9)
    recent = [call for call in snapshot.calls if call.number >= first]
    if first > 0 and recent:
        begin = max(begin, min(call.issued for call in recent))
    counted = [
        call
        for call in recent
        if call.ended is not None
        and call.ended >= begin
        and (token is None or (call.group is not None and call.group.token == token))
    ]
    seconds = max((now - begin) / 1e9, _SHORTEST)
    return Rate(len(counted) / seconds, sum(call.bytes for call in counted) / seconds)
