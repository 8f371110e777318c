"""A report as JSON. Keys stay as they are; new ones may come. Times are in seconds.

time             the date, in seconds since 1970
warnings         lines on what could not be read
jobs             list:
  job            a name that lasts as long as the job
  verdict        one line of text
  held_up        whether a rank is dead or stopped, or ranks have waited longer than 10 s
  waits_s        of the rank that has waited longest; 0 if none waits
  culprits       list of: token of the group, rank in it
  processes      list:
    pid          null if no process here has it
    own_pid      as the process sees itself
    user, command, system_state (letter of /proc/PID/stat): null if pid is null
    calls        issued since the process began
    dropped      of these, without a record
    calls_per_s, bytes_per_s
  groups         list:
    token        the same on all ranks
    name, description, size, engines, closed
    missing      list of first and last of each run of ranks that are not here
    ranks        list:
      rank, pid, own_pid, calls_per_s, bytes_per_s (in this group)
      state      "in call", "in another group's call", "outside any call", "stopped", "dead",
                 "left"
      computes   whether it uses the processor
      state_s    for how long; of a stopped or dead rank: since its last record
      open_calls in all groups
      call       the oldest that is open, null if none is: operation, dtype, reduction,
                 elements, bytes, engine, path, sequence, lane, root, peer, tag, async, started
                 (whether all ranks that it needs had come), open_s
      last_call  the newest of the group, open or not; the same keys, open_s null if it ended
      waits_for  list of ranks
      otherwise  of these, those that call something else in its place
      missing    runs of ranks that it may wait for, and that are not here
"""

from __future__ import annotations

import time
from typing import Any

from fastcomm._records.find import RankFile
from fastcomm._records.jobs import GroupView, Job
from fastcomm._records.members import Member
from fastcomm._records.report import Report
from fastcomm._records.snapshot import Call
from fastcomm._records.verdict import Verdict


def as_json(seen: Report) -> dict[str, Any]:
    """Return a report as a dictionary of what JSON knows."""
    return {
        "time": time.time(),
        "warnings": list(seen.found.warnings),
        "jobs": [_job(seen, job, judged) for job, judged in seen.jobs],
    }


def _job(seen: Report, job: Job, judged: Verdict) -> dict[str, Any]:
    return {
        "job": job.name,
        "verdict": judged.text,
        "held_up": judged.is_held_up,
        "waits_s": judged.waits,
        "culprits": [{"token": token, "rank": rank} for token, rank in judged.culprits],
        "processes": [_process(seen, rank) for rank in job.ranks],
        "groups": [_group(seen, job, group) for group in job.groups],
    }


def _identity(rank: RankFile) -> dict[str, Any]:
    return {
        "pid": rank.process.pid if rank.process is not None else None,
        "own_pid": rank.snapshot.pid,
    }


def _rate(seen: Report, rank: RankFile, token: str | None) -> dict[str, Any]:
    pace = seen.rate(rank, token)
    return {"calls_per_s": pace.calls, "bytes_per_s": pace.bytes}


def _process(seen: Report, rank: RankFile) -> dict[str, Any]:
    process = rank.process
    return {
        **_identity(rank),
        "user": process.uid if process is not None else None,
        "command": process.command if process is not None else None,
        "system_state": process.state if process is not None else None,
        "calls": rank.snapshot.issued,
        "dropped": rank.snapshot.dropped,
        **_rate(seen, rank, None),
    }


def _group(seen: Report, job: Job, group: GroupView) -> dict[str, Any]:
    about = group.group
    return {
        "token": about.token,
        "name": about.name,
        "description": about.description,
        "size": about.size,
        "engines": sorted({m.last.engine for m in group.members if m.last is not None}),
        "closed": about.closed is not None,
        "missing": [list(run) for run in group.missing],
        "ranks": [
            _member(seen, job.ranks[member.seat], member, about.token) for member in group.members
        ],
    }


def _member(seen: Report, rank: RankFile, member: Member, token: str) -> dict[str, Any]:
    return {
        "rank": member.rank,
        **_identity(rank),
        **_rate(seen, rank, token),
        "state": member.state,
        "computes": member.computes,
        "state_s": member.since,
        "open_calls": member.open,
        "call": _call(member.call, seen.found.time),
        "last_call": _call(member.last, seen.found.time),
        "waits_for": list(member.waits_for),
        "otherwise": list(member.differs),
        "missing": [list(run) for run in member.missing],
    }


def _call(call: Call | None, now: int) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "operation": call.operation,
        "dtype": call.dtype,
        "reduction": call.reduction,
        "elements": call.count,
        "bytes": call.bytes,
        "engine": call.engine,
        "path": call.path,
        "sequence": call.sequence,
        "lane": call.lane,
        "root": call.root,
        "peer": call.peer,
        "tag": call.tag,
        "async": call.is_async,
        "started": call.started is not None,
        "open_s": max(now - call.issued, 0) / 1e9 if call.ended is None else None,
    }
