"""Facts about processes, from /proc: what is visible of any process, whoever owns it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fastcomm._records.layout import text

_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/PID/stat, per second
_MOST_OF_A_COMMAND = 4096  # bytes

DEAD = ("Z", "X")  # a zombie only waits to be reaped
STOPPED = ("T", "t")  # by a signal, by a debugger
_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting in the kernel",
    "I": "idle",
    **dict.fromkeys(STOPPED, "stopped"),
    **dict.fromkeys(DEAD, "ended"),
}


@dataclass(frozen=True)
class Process:
    """A process as this one sees it."""

    pid: int  # here
    own_pid: int  # as the process sees itself, in a container for one
    uid: int
    state: str  # the letter of /proc/PID/stat
    start_time: int  # in ticks since boot
    cpu: float  # seconds of processor time that it has used
    command: str  # words with spaces between; "" if it ends
    parent: int = 0  # the process that has started it, or took it over; 0: not visible

    @property
    def is_dead(self) -> bool:
        """It has ended, but its parent has not looked yet."""
        return self.state in DEAD

    @property
    def words(self) -> str:
        """Its state, for people."""
        return _WORDS.get(self.state, self.state)

    @property
    def is_stopped(self) -> bool:
        """It runs on only when a signal or a debugger lets it."""
        return self.state in STOPPED


def pids() -> list[int]:
    """Return the processes that are visible here."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def look(pid: int) -> Process | None:
    """Return what is known of a process; None if there is none, or it ends meanwhile."""
    try:
        stat = _content(pid, "stat").decode(errors="replace")
        status = _content(pid, "status").decode(errors="replace")
        command = _content(pid, "cmdline")
    except OSError:
        return None
    # The name, in parentheses, may hold anything, parentheses too.
    words = stat.rpartition(")")[2].split()
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if len(words) < 20 or "Uid" not in lines:
        return None
    own = lines.get("NSpid", str(pid)).split()  # a kernel without namespaces has no such line
    return Process(
        pid=pid,
        own_pid=int(own[-1]),
        uid=int(lines["Uid"].split()[0]),
        state=words[0],
        start_time=int(words[19]),
        cpu=(int(words[11]) + int(words[12])) / _TICKS,
        command=text(command[:_MOST_OF_A_COMMAND].rstrip(b"\0").replace(b"\0", b" ")),
        parent=int(words[1]),
    )


def descends(process: Process, ancestor: int) -> bool:
    """Tell whether a process was started by another, or by one that this one has started."""
    seen: Process | None = process
    while seen is not None and seen.parent != 0:
        if seen.parent == ancestor:
            return True
        seen = look(seen.parent)
    return False


def uid_of(pid: int) -> int | None:
    """Return the user of a process, or None if it has ended. Cheaper than `look`."""
    try:
        status = _content(pid, "status")
    except OSError:
        return None
    words = status.partition(b"\nUid:")[2].split(maxsplit=1)
    return int(words[0]) if words else None


def has_ranks_threads(pid: int) -> bool:
    """Tell whether a thread of the process has a name that fastcomm gives to its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_name(pid, thread).startswith(b"fc-") for thread in threads)


def _name(pid: int, thread: str) -> bytes:
    try:
        return _content(pid, f"task/{thread}/comm")
    except OSError:
        return b""


def _content(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()
