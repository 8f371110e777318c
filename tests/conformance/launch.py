"""Run one of torch's tests as several ranks, from a fork server that has torch's tests loaded.

torch's own runner starts a fresh interpreter for every rank of every test, which takes seconds
each. Nothing here can hang: a test has a deadline, and shows its ranks' stacks when it misses it.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from conformance import rank
from conformance.rank import Place

STANDIN = Path(__file__).parent / "standin"

ERROR = 10  # MultiProcessTestCase.TEST_ERROR_EXIT_CODE
# Once a rank has failed, the others have this long to say what they found.
GRACE = 3.0
# They may have any exit status, says torch's runner (skip_return_code_checks).
ANY_STATUS = {"test_ddp_has_finalized"}


@dataclass
class Result:
    """How a test went: "passed", "failed", or "skipped" for one of torch's reasons."""

    test: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    gloo: int = 0
    calls: set[str] = field(default_factory=set)


class Launcher:
    """Runs tests with one number of ranks, which decides what torch's tests skip as they load."""

    def __init__(self, size: int, backend: str, timeout: float, trace: bool = False) -> None:
        self.size, self.backend, self.timeout, self.trace = size, backend, timeout, trace
        os.environ.update(rank.environment(size))
        # After the others, for the fork server and its children alike.
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(STANDIN)])
        os.environ["PYTHONPATH"] = path
        sys.path.append(str(STANDIN))
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(
            [rank.TESTS, "torch._dynamo", "fastcomm._distributed.backend"]
        )
        self.tests: dict[str, str | None] = self._ask(rank.list_tests)
        self._skips: dict[int, str] = self._ask(rank.skip_codes)

    def _ask(self, function: Callable[[Connection], None]) -> Any:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=function, args=(sender,))
        process.start()
        sender.close()
        try:
            return receiver.recv()
        finally:
            process.join()

    def run(self, test: str) -> Result:
        if (reason := self.tests[test]) is not None:
            return Result(test, "skipped", reason)
        directory = tempfile.mkdtemp(prefix="conformance-")
        try:
            return self._run(test, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, test: str, directory: str) -> Result:
        places = [
            Place(number, self.size, self.backend, directory, self.trace)
            for number in range(self.size)
        ]
        places[0].prepare()
        start = time.monotonic()
        processes: list[BaseProcess] = []
        errors: list[Connection] = []
        facts: list[Connection] = []
        try:
            for place in places:
                # torch listens at its end, too, but is never asked anything here.
                here, there = self._context.Pipe()
                receiver, sender = self._context.Pipe(duplex=False)
                process: BaseProcess = self._context.Process(
                    target=rank.run, args=(place, test, there, sender), name=f"rank {place.rank}"
                )
                process.start()
                there.close()
                sender.close()
                processes.append(process)
                errors.append(here)
                facts.append(receiver)
            late = self._join(processes, start + self.timeout)
            seconds = time.monotonic() - start
        finally:
            for process in processes:
                process.kill()
                process.join()
        result = self._judge(test, places, processes, [_text(pipe) for pipe in errors], late)
        result.seconds = seconds
        for pipe in facts:
            told = _received(pipe) or {}
            result.gloo += told.get("gloo", 0)
            result.calls.update(told.get("calls", ()))
        return result

    def _join(self, processes: list[BaseProcess], deadline: float) -> list[int]:
        """Wait for the ranks; return those that missed the deadline and wrote their stacks."""
        fine = {None, 0, *self._skips}
        failed = False
        while True:
            running = [process for process in processes if process.exitcode is None]
            if not running:
                return []
            if not failed and any(process.exitcode not in fine for process in processes):
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() >= deadline:
                break
            wait([process.sentinel for process in running], deadline - time.monotonic())
        for process in running:
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, rank.STACKS)
        time.sleep(0.5)
        return [number for number, process in enumerate(processes) if process in running]

    def _judge(
        self,
        test: str,
        places: list[Place],
        processes: list[BaseProcess],
        errors: list[str],
        late: list[int],
    ) -> Result:
        """Decide as torch's runner does (_check_return_codes), but look at every rank's status."""
        codes = [None if number in late else p.exitcode for number, p in enumerate(processes)]
        told = [
            f"rank {number}, exit status {code}:\n{errors[number] or _log_of(places[number])}"
            for number, code in enumerate(codes)
            if code == ERROR
        ]
        if not told and late:
            told = [f"no end after {self.timeout:g} s: ranks {late}"]
        told += [f"rank {number} did not end:\n{_log_of(places[number])}" for number in late]
        if told:
            return Result(test, "failed", "\n".join(told))
        if test in ANY_STATUS:
            return Result(test, "passed")
        first = codes[0]
        if first in self._skips and set(codes) <= {*self._skips, 0}:
            return Result(test, "skipped", self._skips[first])
        if any(codes):
            return Result(
                test,
                "failed",
                "\n".join(
                    f"rank {number}, exit status {code}:\n{_log_of(places[number])}"
                    for number, code in enumerate(codes)
                    if code
                ),
            )
        return Result(test, "passed")


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll() else None
    except (EOFError, OSError):
        return None


def _text(pipe: Connection) -> str:
    return str(_received(pipe) or "")


def _log_of(place: Place, characters: int = 3000) -> str:
    """Return what a rank wrote: the cause comes first where it crashed, and last where it hangs."""
    try:
        text = place.log.read_text(errors="replace")
    except OSError:
        return ""
    if len(text) <= 2 * characters:
        return text
    return f"{text[:characters]}\n[...]\n{text[-characters:]}"
