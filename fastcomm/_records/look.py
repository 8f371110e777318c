"""Look again and again: what a second look tells, that is which processes use the processor."""

from __future__ import annotations

import time

from fastcomm._records import find, processes
from fastcomm._records.report import Report, report

LAST = 512  # calls of each rank that are read: those of the last seconds, if they are not many
_SPAN = 5.0  # seconds that rates are of
_PAUSE = 0.1  # seconds between the two looks of the first report: ten ticks of the processor's time
_BUSY = 0.2  # the part of the time in which a process computes that uses the processor


class Looks:
    """Reports on the ranks of a process's job, or of a user, or of all users."""

    def __init__(self, pid: int | None = None, all_users: bool = False) -> None:
        self._pid, self._all_users = pid, all_users
        # When a process was looked at, and what was seen, by number and start.
        self._seen: dict[tuple[int, int], tuple[float, processes.Process]] = {}

    def look(self) -> Report:
        """Return what there is now. The first look takes 0.1 s more than others."""
        is_first = not self._seen
        found = find.find(self._pid, self._all_users, LAST)
        shown = [rank.process for rank in found.ranks if rank.process is not None]
        busy = self._busy(shown)
        if is_first and shown:
            time.sleep(_PAUSE)
            again = [processes.look(process.pid) for process in shown]
            busy = self._busy([process for process in again if process is not None])
        return report(found, busy, _SPAN, LAST)

    def _busy(self, shown: list[processes.Process]) -> set[int]:
        """Return which processes have used the processor since the last call.

        One that wants it again and again, and gets little, is among them. To be seen once as one
        that wants it is not enough: who sleeps in a loop wakes up now and then.
        """
        before, now = self._seen, time.monotonic()
        self._seen = {(each.pid, each.start_time): (now, each) for each in shown}
        busy = set()
        for each in shown:
            then, seen = before.get((each.pid, each.start_time), (now, each))
            used = each.cpu - seen.cpu
            wants = seen.state == each.state == "R"
            if used > _BUSY * (now - then) or (wants and used > 0):
                busy.add(each.pid)
        return busy
