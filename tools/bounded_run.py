"""Run a command with a time limit: beyond it the command and all that it started are killed.

A command's processes are those below it, those of its session, and orphans, which the kernel hands
to this process (PR_SET_CHILD_SUBREAPER). What a command leaves behind when it ends by itself is
killed too: it would disturb what comes next.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status; None if it was killed at its limit.
        seconds: how long it ran.
        left: processes that it had left behind, now killed.
    """

    status: int | None
    seconds: float
    left: int


def run(
    command: Sequence[str],
    log: IO[str],
    limit: float,
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    output: IO[str] | None = None,
) -> Ended:
    """Run ``command``; what it says goes to ``log``, or its standard output to ``output``.

    Raises:
        OSError: it does not start.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(_parents_and_sessions())
    log.flush()
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output or log,
        stderr=log if output else subprocess.STDOUT,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    status: int | None = None
    ended = False
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit)
            ended = True
        seconds = time.monotonic() - begin
    finally:  # even where this process is told to end
        if not ended:
            below = _started_by(process.pid, before)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
            _kill(below)
        left = _kill_the_rest(process.pid, before)
    return Ended(status, seconds, left if ended else 0)


def _parents_and_sessions() -> dict[int, tuple[int, int, str]]:
    """Return (parent, session, state) of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold anything.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = (int(fields[1]), int(fields[3]), fields[0])
    return found


def _started_by(pid: int, before: set[int]) -> list[int]:
    """Return processes of the session of ``pid``, below it, or below orphans that came to us."""
    table = {p: row for p, row in _parents_and_sessions().items() if p not in before}
    mine = {pid}
    mine |= {p for p, (parent, session, _) in table.items() if session == pid}
    # New children of ours: orphans, as nothing else is started meanwhile.
    mine |= {p for p, (parent, _, _) in table.items() if parent == os.getpid()}
    grown = True
    while grown:
        more = {p for p, (parent, _, _) in table.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return [p for p in mine if p in table and table[p][2] != "Z" and p != os.getpid()]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _kill_the_rest(pid: int, before: set[int]) -> int:
    """Kill what is left, and what that had just started; return how many there were."""
    seen: set[int] = set()
    for _ in range(100):
        rest = [p for p in _started_by(pid, before) if p != pid]
        if not rest:
            break
        seen.update(rest)
        _kill(rest)
        time.sleep(0.02)
        for orphan in rest:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
    return len(seen)
