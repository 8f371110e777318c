"""The calls of one process, by group: what is open, and how far it has come."""

from __future__ import annotations

from fastcomm._records.snapshot import Call, Snapshot


class Calls:
    """A snapshot's calls, to be asked about."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.open: list[Call] = []  # the oldest first
        self._newest: dict[tuple[str, int], int] = {}  # sequence, by token and lane
        self._numbered: dict[tuple[str, int, int], Call] = {}
        self._last: dict[str, Call] = {}
        self.idle_since: int | None = None  # ns: when the latest call ended
        self.last_sign: int | None = None  # ns: the latest time of any call
        for call in snapshot.calls:
            if call.ended is None:
                self.open.append(call)
            elif self.idle_since is None or call.ended > self.idle_since:
                self.idle_since = call.ended
            sign = max(call.issued, call.started or 0, call.ended or 0)
            self.last_sign = sign if self.last_sign is None else max(sign, self.last_sign)
            if call.group is None:
                continue
            token = call.group.token
            self._last[token] = call
            if call.sequence is not None and not call.is_message:
                lane = (token, call.lane)
                self._newest[lane] = max(call.sequence, self._newest.get(lane, -1))
                self._numbered[token, call.lane, call.sequence] = call

    def open_in(self, token: str) -> list[Call]:
        """Return the open calls of a group, the oldest first."""
        return [c for c in self.open if c.group is not None and c.group.token == token]

    def last_in(self, token: str) -> Call | None:
        """Return the newest call of a group, open or not; None if none is recorded."""
        return self._last.get(token)

    def numbered_as(self, call: Call) -> Call | None:
        """Return the collective with the group, lane and sequence of another rank's."""
        if call.group is None or call.sequence is None:
            return None
        return self._numbered.get((call.group.token, call.lane, call.sequence))

    def has_reached(self, call: Call) -> bool:
        """Tell whether a collective of another rank has been issued here, or a later one."""
        if call.group is None or call.sequence is None:
            return True
        return self._newest.get((call.group.token, call.lane), -1) >= call.sequence

    def answers(self, message: Call, sender: int) -> bool:
        """Tell whether an open call is the other side of the message of rank ``sender``."""
        return any(
            call.is_message
            and call.operation != message.operation
            and call.peer in (None, sender)
            and call.tag == message.tag
            for call in (self.open_in(message.group.token) if message.group is not None else ())
        )
