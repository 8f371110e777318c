"""Run one of torch's tests as several ranks, from a fork server that has torch's tests loaded.

torch's own runner starts a fresh interpreter for every rank of every test, which takes seconds
each. Nothing here can hang: a test has a deadline, and shows its ranks' stacks when it misses it.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from conformance import rank
from conformance.rank import Place
from support.namespaces import Host
from support.ranks import RankProcess, preload, received

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


class Launcher:
    """Runs tests with one number of ranks, which decides what torch's tests skip as they load.

    With ``hosts``, each has as many ranks, numbered host by host.
    """

    def __init__(self, size: int, backend: str, timeout: float, hosts: Sequence[Host] = ()) -> None:
        self.size, self.backend, self.timeout = size, backend, timeout
        self.hosts = hosts
        os.environ.update(rank.environment(size))
        preload("conformance.loaded")
        self.tests: dict[str, str | None] = self._ask(rank.list_tests)
        self._skips: dict[int, str] = self._ask(rank.skip_codes)

    def _ask(self, function: Callable[..., object]) -> Any:
        process = RankProcess(function)
        try:
            return process.pipe.recv()
        finally:
            process.end()

    def run(self, test: str) -> Result:
        if (reason := self.tests[test]) is not None:
            return Result(test, "skipped", reason)
        with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
            return self._run(test, directory)

    def _run(self, test: str, directory: str) -> Result:
        places = [
            Place(number, self.size, self.backend, directory, self._host(number))
            for number in range(self.size)
        ]
        places[0].prepare()
        start = time.monotonic()
        ranks: list[RankProcess] = []
        # torch listens at its ends, too, but is never asked anything here.
        ends = [mp.Pipe() for _ in places]
        try:
            for place, (_, there) in zip(places, ends, strict=True):
                ranks.append(RankProcess(rank.run, place, test, there, log=place.log))
                there.close()
            late = self._join(ranks, start + self.timeout)
            seconds = time.monotonic() - start
            gloo = sum(received(each.pipe) or 0 for each in ranks)
        finally:
            codes = [each.end(0.0) for each in ranks]
        told = [
            f"rank {number}, exit status {code}:\n{received(ends[number][0]) or each.output()}"
            for number, (each, code) in enumerate(zip(ranks, codes, strict=True))
        ]
        outcome, reason = self._judge(test, codes, told, late)
        return Result(test, outcome, reason, seconds, gloo)

    def _host(self, rank: int) -> Host | None:
        return self.hosts[rank * len(self.hosts) // self.size] if self.hosts else None

    def _join(self, ranks: list[RankProcess], deadline: float) -> list[int]:
        """Wait for the ranks; return those that missed the deadline and wrote their stacks."""
        fine = {None, 0, *self._skips}
        failed = False
        while True:
            codes = [each.status() for each in ranks]
            late = [number for number, code in enumerate(codes) if code is None]
            if not late:
                return []
            if not failed and not fine.issuperset(codes):
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() >= deadline:
                break
            running = [ranks[number].process.sentinel for number in late]
            wait(running, deadline - time.monotonic())
        for number in late:
            ranks[number].write_stacks()
        return late

    def _judge(
        self, test: str, codes: list[int | None], told: list[str], late: list[int]
    ) -> tuple[str, str]:
        """Decide as torch's runner does (_check_return_codes), but look at every rank's status."""
        failed = [told[number] for number, code in enumerate(codes) if code == ERROR]
        if late and not failed:
            failed = [f"no end after {self.timeout:g} s: ranks {late}"]
        failed += [told[number] for number in late]
        skips = codes[0] in self._skips and set(codes) <= {*self._skips, 0}
        if not (failed or skips or test in ANY_STATUS):
            failed = [told[number] for number, code in enumerate(codes) if code]
        if failed:
            return "failed", "\n".join(failed)
        if skips and test not in ANY_STATUS:
            return "skipped", self._skips[codes[0] or 0]
        return "passed", ""
