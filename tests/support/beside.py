"""Build what tests run while tests that need none of it are already running.

Tests wait for each other's ranks more than they compute, so compilers beside them cost little. A
process of the lowest priority builds one piece at a time, in the order in which files of tests
start (tests/conftest.py has those that need nothing first); a file waits for its own pieces, before
its tests' clocks run. If something does not compile, the tests that need it try again and fail with
the compiler's output. The process holds the lock of the tests' turns, so serial tests come after
it.

    python tests/support/beside.py LOCK [--sim] [tests/<file>.py ...]
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

import sim  # noqa: E402
from support import programs  # noqa: E402

LOG = ROOT / "build" / "beside.log"


@contextlib.contextmanager
def building(lock: str, simulation: bool, files: Iterable[str]) -> Iterator[None]:
    """Build in the background, as the module says, until all is built or the block is left."""
    command = [sys.executable, __file__, lock, *(["--sim"] if simulation else []), *files]
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=_give_way,
        )
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()  # it has the lock
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)  # ninja removes what its compilers have started


def _give_way() -> None:
    """Take the lowest priority, in a group that is killed as a whole.

    In a session of its own it would be as high as all of the tests together: Linux shares
    processors between sessions first (autogroups).
    """
    os.setpgrp()
    os.nice(19)


def main(lock: str, *pieces: str) -> None:
    """Build; what does not compile is left to the tests."""
    os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))
    with open(lock, "r+") as turns:
        fcntl.lockf(turns, fcntl.LOCK_SH)
        print("begun", flush=True)
        os.dup2(2, 1)
        for piece in pieces:
            try:
                if piece == "--sim":
                    sim.build.library()
                else:
                    programs.make(programs.needed([piece.removeprefix("tests/")]), quiet=False)
            except RuntimeError as error:
                print(f"{piece}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
