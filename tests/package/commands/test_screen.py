"""The live view of ``fastcomm top``, in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from support.interrupts import interruptible
from support.patience import ENDS
from support.record_ranks import ranks

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 9, 60, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("ends", "status"), [("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_terminal_is_as_before(
    terminal: tuple[int, int], ends: str | signal.Signals, status: int
) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    with ranks() as held:
        pid = held.held_up()[0].pid
        command = [sys.executable, "-m", "fastcomm", "top", str(pid), "--interval", "0.05"]
        with interruptible():
            running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(ours, 65536)
        assert seen.startswith(ENTER)
        assert not termios.tcgetattr(theirs)[3] & termios.ICANON
        if isinstance(ends, str):
            os.write(ours, ends.encode())
        else:
            running.send_signal(ends)
        while LEAVE not in seen:
            seen += os.read(ours, 65536)
        assert running.wait(ENDS) == status
    assert termios.tcgetattr(theirs) == before
    screen = seen.split(b"\x1b[H")[1].split(b"\x1b[J")[0].replace(b"\x1b[K", b"")
    lines = screen.decode().split("\r\n")
    assert "outside any call for" in " ".join(lines[1:4]) and "sequence 9" in lines[3]
    assert len(lines) == 9 and max(map(len, lines)) <= 60
