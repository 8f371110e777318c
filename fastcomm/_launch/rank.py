"""The program of a rank: it runs this file by its path, so that torch is not imported at first.

Its arguments are the numbers of two open files: of the task, a line of JSON and what follows it,
and of the pipe for the answer. Before anything else is imported, the process binds itself to the
death of its parent and to its cores.
"""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import os
import runpy
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the task; ends the process."""
    task = mmap.mmap(int(sys.argv[1]), 0, access=mmap.ACCESS_READ)
    os.close(int(sys.argv[1]))
    head = task.readline()
    settings: dict[str, Any] = json.loads(head)
    die_with_parent(settings["parent"])
    write_whole_lines()
    if not settings["runs"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends the ranks
    if cores := settings["cores"]:
        os.sched_setaffinity(0, cores[int(os.environ["LOCAL_RANK"])])
    sys.path[:] = settings["path"]  # before, this file's folder stands in it
    answer = int(sys.argv[2])
    sys.argv = settings["words"]
    if settings["runs"]:
        runpy.run_module("fastcomm", run_name="__main__", alter_sys=True)
        return
    from fastcomm._launch.function import answer_with

    answer_with(memoryview(task)[len(head) :], answer, settings["backend"], settings["timeout"])


def write_whole_lines() -> None:
    """Have each line that is printed written at once and in one piece, whatever it goes to.

    Ranks share a pipe or a file, where the pieces of their lines would mix: ``PYTHONUNBUFFERED``
    writes each argument of ``print`` by itself, and a full buffer ends in the midst of a line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; at once where it has ended.

    The kernel means the thread that started this process. It waits for the process to end, so it
    ends before it only with its whole process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
