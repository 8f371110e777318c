"""tools/bounded_run.py kills what runs too long with everything that it started, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bounded_run
import pytest
from support.patience import ENDS, SOON, has_ended, until

PYTHON = sys.executable
SLEEPER = "import time; time.sleep(300)"
# A child, one in its own session, and an orphan of one that has ended; all write their ids.
FAMILY = f"""
import os, subprocess, sys, time
def note(pid):
    with open(sys.argv[1], "a") as file:
        print(pid, file=file)
def sleeper(**options):
    return subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], **options).pid
note(sleeper())
note(sleeper(start_new_session=True))
between = os.fork()
if between == 0:
    os.setsid()
    note(sleeper(start_new_session=True))
    os._exit(0)
os.waitpid(between, 0)
print("all there", flush=True)
time.sleep(float(sys.argv[2]))
"""


def _run(tmp_path: Path, code: str, limit: float, *words: str) -> tuple[bounded_run.Ended, str]:
    path = tmp_path / "log"
    with path.open("w") as log:
        command = [PYTHON, "-c", code, *words]
        ended = bounded_run.run(command, log, limit, cwd=tmp_path, environment={"WORD": "told"})
    return ended, path.read_text()


def _ended(tmp_path: Path) -> list[bool]:
    """Tell of each of the family whether it has ended."""
    return [has_ended(int(line)) for line in (tmp_path / "pids").read_text().split()]


def test_what_ends_by_itself(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['WORD']); print('bad', file=sys.stderr); sys.exit(7)"
    ended, said = _run(tmp_path, code, ENDS)
    assert (ended.status, ended.left) == (7, 0)
    assert sorted(said.split()) == ["bad", "told"]


def test_what_runs_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    bystander = subprocess.Popen([PYTHON, "-c", SLEEPER])
    try:
        for limit in (3, 12, 48):  # whichever is enough for the family to start
            (tmp_path / "pids").unlink(missing_ok=True)
            ended, said = _run(tmp_path, FAMILY, limit, str(tmp_path / "pids"), "300")
            assert ended.status is None and limit <= ended.seconds < limit + SOON
            if "all there" in said:
                break
        assert "all there" in said
        assert _ended(tmp_path) == [True] * 3
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_what_is_left_behind_is_killed_and_counted(tmp_path: Path) -> None:
    ended, _ = _run(tmp_path, FAMILY, ENDS, str(tmp_path / "pids"), "0")
    assert (ended.status, ended.left) == (0, 3)
    assert _ended(tmp_path) == [True] * 3


def test_nothing_stays_when_the_caller_is_told_to_end(tmp_path: Path) -> None:
    """As when gpu_check ends on SIGTERM: by an exception out of the wait."""
    code = f"""
import pathlib, signal, sys
import bounded_run
def end(*_):
    raise SystemExit(3)
signal.signal(signal.SIGTERM, end)
with open({str(tmp_path / "log")!r}, "w") as log:
    bounded_run.run([sys.executable, "-c", {FAMILY!r}, {str(tmp_path / "pids")!r}, "300"],
                    log, 300, cwd=pathlib.Path("."))
"""
    tools = str(Path(bounded_run.__file__).parent)
    caller = subprocess.Popen([PYTHON, "-c", code], env={**os.environ, "PYTHONPATH": tools})
    log = tmp_path / "log"
    until(lambda: log.exists() and "all there" in log.read_text(), "the family")
    caller.terminate()
    assert caller.wait(ENDS) == 3
    assert _ended(tmp_path) == [True] * 3


def test_what_does_not_start_says_so(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(FileNotFoundError):
        bounded_run.run([str(tmp_path / "nothing")], log, 5, cwd=tmp_path)
