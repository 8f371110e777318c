"""Processes that hold files of records as ranks do, and do nothing else. They need no torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.patience import until
from support.record_files import MadeCall, MadeGroup, made

from fastcomm._records import layout, processes

_PROGRAM = f"""
import json, os, signal, sys
asked = json.loads(sys.stdin.buffer.readline())
data = sys.stdin.buffer.read(asked["size"])
fd = -1
if data:
    fd = os.memfd_create({layout.FILE_NAME!r})
    os.write(fd, data)
for path in asked["open"]:
    os.open(path, os.O_RDWR)
for _ in range(asked["more"]):
    os.dup(0)
if asked["thread"]:
    open("/proc/self/comm", "w").write(asked["thread"])
child = os.fork() if asked["forks"] else 0
if asked["forks"] and child == 0:
    signal.pause()
if asked["user"]:
    os.setuid(asked["user"])
print(json.dumps([fd, child]), flush=True)
while asked["spins"]:
    pass
sys.stdin.buffer.read()
"""


@dataclass
class HeldFile:
    """A process, ``path`` its file as others see it, and a child that it has forked."""

    process: subprocess.Popen[bytes]
    path: str
    child: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: self._state() == "T", "a process that is stopped")

    def kill(self, reap: bool = True) -> None:
        self.process.kill()
        if reap:
            self.process.wait()
        until(lambda: self._state() in ("", "Z"), "a process that has ended")

    def _state(self) -> str:
        seen = processes.look(self.pid)
        return seen.state if seen is not None else ""


@dataclass
class Ranks:
    """Starts processes."""

    started: list[HeldFile] = field(default_factory=list)
    token: int = field(default_factory=time.monotonic_ns)  # of their group

    def start(
        self,
        rank: int = 0,
        size: int = 1,
        calls: Sequence[MadeCall] = (),
        *,
        peers: Sequence[HeldFile] = (),
        data: bytes | None = None,
        **asked: Any,
    ) -> HeldFile:
        """Start a rank of one group. ``data``: what its file has in it instead."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        seen = processes.look(process.pid)
        assert seen is not None
        if data is None:
            base = min([call.issued for call in calls], default=time.monotonic_ns()) - 10**9
            group = MadeGroup(rank, size, token=self.token, opened=base + 1)
            times = {"start_time": seen.start_time, "base": base}
            data = made(calls, [group], pid=process.pid, **times)
        defaults = {"open": [], "more": 0, "thread": "", "forks": False, "user": 0, "spins": False}
        asked = {**defaults, **asked, "size": len(data)}
        asked["open"] += [peer.path for peer in peers]
        process.stdin.write(json.dumps(asked).encode() + b"\n" + data)
        process.stdin.flush()
        fd, child = json.loads(process.stdout.readline())
        self.started.append(HeldFile(process, f"/proc/{process.pid}/fd/{fd}", child))
        return self.started[-1]

    def held_up(self, seconds: float = 20.0, full: bool = False) -> list[HeldFile]:
        """Start four ranks of which all but rank 2 are in a call, for so many seconds."""
        now = time.monotonic_ns()
        begin = now - int(seconds * 1e9)
        number = layout.NUM_CALLS - 1 if full else 10
        done = [
            MadeCall(begin - (number - n) * 1000, ended=begin - (number - n) * 1000 + 9, sequence=n)
            for n in range(number)
        ]
        late = [MadeCall(issued=begin, sequence=number)]
        found: list[HeldFile] = []
        for rank in range(4):
            found.append(self.start(rank, 4, done + (late if rank != 2 else []), peers=found))
        return found


@contextlib.contextmanager
def ranks() -> Iterator[Ranks]:
    """Start processes, and end them at the end."""
    held = Ranks()
    try:
        yield held
    finally:
        for each in held.started:
            if each.child:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.child, signal.SIGKILL)
            each.process.kill()
            each.process.communicate()
