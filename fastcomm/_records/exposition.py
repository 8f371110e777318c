"""Findings in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from fastcomm._records import find, layout
from fastcomm._records.jobs import Job, jobs
from fastcomm._records.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("in_call", "outside", "stopped", "dead")
_METRICS = {
    "fastcomm_calls_total": ("counter", "Calls that the process has issued."),
    "fastcomm_bytes_total": (
        "counter",
        "Bytes of the messages of calls that were seen: records hold the last "
        f"{layout.NUM_CALLS} calls, and what has gone from them between two looks is not in it.",
    ),
    "fastcomm_records_dropped_total": (
        "counter",
        "Calls without a record, because too many were open.",
    ),
    "fastcomm_rank_state": (
        "gauge",
        "1 for the state that the rank is in, 0 for others; dead: no process here has it.",
    ),
    "fastcomm_rank_open_call_seconds": (
        "gauge",
        "How long the oldest open call has been open; 0 if none is.",
    ),
    "fastcomm_wait_seconds": (
        "gauge",
        "How long the rank has waited for other ranks; 0 if it does not.",
    ),
}

Labels = dict[str, str]


class Exposition:
    """Counts from look to look, so that counters never go back while this lives."""

    def __init__(self, pid: int | None = None, all_users: bool = False) -> None:
        self._pid, self._all_users = pid, all_users
        # Number of the next call, and bytes of those before it, by process.
        self._bytes: dict[tuple[str, int, int], tuple[int, int]] = {}

    def text(self) -> str:
        """Look, and return the text. Raises OSError if there is no /proc."""
        return self.of(find.find(self._pid, self._all_users))

    def of(self, found: find.Found) -> str:
        """Return the text of what was found."""
        lines: dict[str, list[str]] = {name: [] for name in _METRICS}
        before, self._bytes = self._bytes, {}
        for job in jobs(found.ranks, found.time):
            for seat, rank in enumerate(job.ranks):
                number = _rank(job, seat)
                if rank.process is None and not number:
                    continue  # nothing tells it from another that has gone
                pid = rank.process.pid if rank.process is not None else rank.snapshot.pid
                labels = {"job": job.name, "rank": number, "pid": str(pid)}
                size = self._seen(before, job.name, rank.snapshot)
                samples = _samples(job, seat, found.time) | {"fastcomm_bytes_total": size}
                for name, value in samples.items():
                    lines[name].append(_sample(name, labels, value))
                state = _state(rank)
                for each in _STATES:
                    lines["fastcomm_rank_state"].append(
                        _sample("fastcomm_rank_state", labels | {"state": each}, each == state)
                    )
        return "".join(_family(name, samples) for name, samples in lines.items())

    def _seen(
        self,
        before: dict[tuple[str, int, int], tuple[int, int]],
        job: str,
        snapshot: Snapshot,
    ) -> int:
        key = (job, snapshot.pid, snapshot.start_time)
        first, total = before.get(key, (0, 0))
        new = [call for call in snapshot.calls if call.number >= first]
        total += sum(call.bytes for call in new)
        self._bytes[key] = (max((call.number + 1 for call in new), default=first), total)
        return total


def _rank(job: Job, seat: int) -> str:
    """Return the number of a rank in the largest group that it is in, "" if in none."""
    for group in job.groups:
        for member in group.members:
            if member.seat == seat:
                return str(member.rank)
    return ""


def _samples(job: Job, seat: int, now: int) -> dict[str, float]:
    snapshot = job.ranks[seat].snapshot
    begun = min((call.issued for call in snapshot.calls if call.ended is None), default=now)
    waits = (m.waits for group in job.groups for m in group.members if m.seat == seat)
    return {
        "fastcomm_calls_total": snapshot.issued,
        "fastcomm_records_dropped_total": snapshot.dropped,
        "fastcomm_rank_open_call_seconds": max(now - begun, 0) / 1e9,
        "fastcomm_wait_seconds": max(waits, default=0.0),
    }


def _state(rank: find.RankFile) -> str:
    if rank.process is None or rank.process.is_dead:
        return "dead"
    if rank.process.is_stopped:
        return "stopped"
    return "in_call" if any(call.ended is None for call in rank.snapshot.calls) else "outside"


def _family(name: str, samples: Iterable[str]) -> str:
    kind, about = _METRICS[name]
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n" + "".join(samples)


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
    number = int(value) if value == int(value) else value
    return f"{name}{{{inside}}} {number}\n"


def escaped(text: str) -> str:
    """Return text as the value of a label is written."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
