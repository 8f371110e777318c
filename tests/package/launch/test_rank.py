"""A rank's program before it imports anything."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys

from support.patience import ENDS

from fastcomm._launch import processes

LATE = """
import runpy, sys
rank = runpy.run_path(sys.argv[1])
rank["die_with_parent"](int(sys.argv[2]))
print("lives", sorted({"torch", "fastcomm"} & set(sys.modules)))
"""


def test_a_rank_whose_parent_has_ended_already_ends() -> None:
    for parent, status, said in ((os.getpid(), 0, "lives []\n"), (1, 1, "")):
        words = [sys.executable, "-c", LATE, str(processes._PROGRAM), str(parent)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=ENDS)
        assert (done.returncode, done.stdout) == (status, said), done.stderr


LINES = """
import runpy, sys
rank = runpy.run_path(sys.argv[1])
rank["write_whole_lines"]()
print("from", "rank", 0)
print("50 %", end="\\r")
print("no end of line", "yet", end=" ")
print("now")
print("to", "stderr", file=sys.stderr)
"""


def test_a_line_is_written_at_once_and_in_one_piece() -> None:
    for unbuffered in ("", "1"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a write: a packet
        words = [sys.executable, "-c", LINES, str(processes._PROGRAM)]
        variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with ours, theirs:
            subprocess.run(
                words,
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                env=variables,
                timeout=ENDS,
                check=True,
            )
            theirs.shutdown(socket.SHUT_WR)
            pieces = [piece.decode() for piece in iter(functools.partial(ours.recv, 1024), b"")]
        lines = ["from rank 0\n", "50 %\r", "no end of line yet now\n", "to stderr\n"]
        assert pieces == lines, unbuffered
