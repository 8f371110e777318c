"""Facts about processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.namespaces import why_no_pids
from support.patience import until
from support.record_ranks import ranks

from fastcomm._records import processes


def test_this_process() -> None:
    own = processes.look(os.getpid())
    assert own is not None and own.pid == os.getpid() and own.uid == os.getuid()
    assert own.cpu > 0 and "python" in own.command and not (own.is_dead or own.is_stopped)
    assert processes.uid_of(own.pid) == own.uid and own.pid in processes.pids()


def test_a_name_with_parentheses_and_words_with_commands() -> None:
    own = processes.look(os.getpid())
    assert own is not None
    with ranks() as held:
        file = held.start(thread=") R 1 (")
        until(lambda: (processes.look(file.pid) or own).state == "S", "a process that sleeps")
        seen = processes.look(file.pid)
        assert seen is not None and seen.state == "S" and seen.start_time > 0
        assert seen.command.isprintable()  # the program has several lines


def test_threads_that_ranks_have() -> None:
    with ranks() as held:
        assert processes.has_ranks_threads(held.start(thread="fc-progress").pid)
        assert not processes.has_ranks_threads(held.start().pid)


def test_numbers_of_another_namespace() -> None:
    if (reason := why_no_pids()) is not None:
        pytest.skip(reason)
    with subprocess.Popen(
        ["unshare", "-p", "-f", "--kill-child", "sleep", "600"], start_new_session=True
    ) as outside:
        try:
            children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
            until(lambda: children.read_text().split(), "a process in the namespace")
            inside = int(children.read_text().split()[0])
            until(lambda: processes.look(inside), "a process in the namespace")
            process = processes.look(inside)
            assert process is not None
            assert (process.pid, process.own_pid) == (inside, 1)
            until(lambda: "sleep 600" in (processes.look(inside) or process).command, "its words")
        finally:
            os.killpg(outside.pid, signal.SIGKILL)
