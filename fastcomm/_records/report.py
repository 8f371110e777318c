"""Findings, judged; and the same as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from fastcomm._records.find import Found, RankFile
from fastcomm._records.jobs import GroupView, Job, jobs
from fastcomm._records.members import DEAD, ELSEWHERE, IN_CALL, LEFT, OUTSIDE, STOPPED, Member
from fastcomm._records.phrases import (
    bytes_text,
    call_text,
    ranges,
    ranks_text,
    runs_text,
    seconds_text,
)
from fastcomm._records.rates import Rate, rate
from fastcomm._records.verdict import Verdict, verdict

_HEADS = ("rank", "pid", "state", "for", "waits for", "calls/s", "bytes/s")
_LEFT_SIDES = (2, 4)  # columns of text


@dataclass(frozen=True)
class Report:
    """All jobs at one moment."""

    found: Found
    jobs: tuple[tuple[Job, Verdict], ...]
    span: float  # seconds that rates are of
    last: int  # how many of each rank's newest calls were read

    def rate(self, rank: RankFile, token: str | None = None) -> Rate:
        """Return the rate of a rank, or of it in one group."""
        return rate(rank.snapshot, self.found.time, self.span, self.last, token)

    @property
    def status(self) -> int:
        """The exit status: 0, or 1 if there is no job, or 3 if one is held up."""
        if not self.jobs:
            return 1
        return 3 if any(judged.is_held_up for _, judged in self.jobs) else 0


def report(found: Found, busy: Collection[int], span: float, last: int) -> Report:
    """Judge what was found.

    Args:
        found: ranks and their calls.
        busy: PIDs of processes that use the processor.
        span: seconds that rates are of.
        last: how many of each rank's newest calls were read.
    """
    judged = tuple((job, verdict(job)) for job in jobs(found.ranks, found.time, busy))
    return Report(found, judged, span, last)


def text(seen: Report) -> str:
    """Return the jobs as text, each with its verdict and a table for each group."""
    parts = [_job_text(seen, job, judged) for job, judged in seen.jobs]
    return "\n\n".join(parts) if parts else "no job found"


def pid_text(rank: RankFile) -> str:
    """Return the PID here, and in parentheses the one that the process sees if it differs."""
    own = rank.snapshot.pid
    if rank.process is None:
        return f"({own})"
    return f"{rank.process.pid}" + (f" ({own})" if rank.process.pid != own else "")


def _job_text(seen: Report, job: Job, judged: Verdict) -> str:
    total = reduce(add, (seen.rate(rank) for rank in job.ranks), Rate())
    number = len(job.ranks)
    lines = [
        f"job {job.name or 'without a group'}: {number} rank{'s' * (number != 1)} here, "
        f"{total.calls:.1f} calls/s, {bytes_text(total.bytes)}/s",
        judged.text,
    ]
    for group in job.groups:
        lines += ["", *_group_lines(seen, job, group)]
    if not job.groups:
        lines += [f"process {pid_text(rank)}: {_command(rank)}" for rank in job.ranks]
    for rank in job.ranks:
        if rank.snapshot.dropped:
            lines.append(
                f"process {pid_text(rank)}: {rank.snapshot.dropped} calls have no record: "
                "too many were open"
            )
    return "\n".join(lines)


def _command(rank: RankFile) -> str:
    return rank.process.command if rank.process is not None else "gone"


def _group_lines(seen: Report, job: Job, group: GroupView) -> list[str]:
    about = group.group
    closed = ", closed" if about.closed is not None else ""
    lines = [f"{about.description or repr(about.name)}{closed}"]
    rows = [_HEADS]
    for member in group.members:
        rank = job.ranks[member.seat]
        pace = seen.rate(rank, about.token)
        awaited = runs_text(ranges(member.waits_for) or member.missing)
        rows.append(
            (
                *(str(member.rank), pid_text(rank), _state_text(member)),
                *(seconds_text(member.since), awaited, f"{pace.calls:.1f}"),
                bytes_text(pace.bytes),
            )
        )
    lines += _aligned(rows)
    if group.missing:
        lines.append(
            f"{ranks_text(group.missing)}: no process here has it: on another host, or ended"
        )
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in _LEFT_SIDES else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _state_text(member: Member) -> str:
    call = member.call
    inside = f"in {call_text(call)}" if call is not None else OUTSIDE
    if member.open > 1:
        inside += f" and {member.open - 1} more"
    if member.state == STOPPED:
        return f"stopped {inside}"
    if member.state == DEAD:
        return f"gone, {inside}"
    if member.state == LEFT:
        return "has closed the group"
    if member.state == OUTSIDE:
        failed = member.last is not None and member.last.outcome not in ("ok", "unknown", None)
        after = f", after {member.last.outcome}" if failed and member.last is not None else ""
        return f"{OUTSIDE}, {'computes' if member.computes else 'sleeps'}{after}"
    if member.state == ELSEWHERE and call is not None and call.group is not None:
        return f"{inside}, of group '{call.group.name}'"
    if member.state == IN_CALL and call is not None and call.started is not None:
        return f"{inside}: {'' if member.waits_for else 'moves data'}".rstrip(": ")
    return inside
