"""The calls of a job's ranks during a part of the program."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import TracebackType

from fastcomm._records.ranks import Rank, ranks_of_job
from fastcomm._records.snapshot import Call
from fastcomm._records.summary import Summary, summarize
from fastcomm._records.summary_text import findings
from fastcomm._records.timeline import write


class trace:
    """Collect the calls that the ranks of this host issue meanwhile, from their records.

        with fastcomm.trace("trace.json") as calls:
            train_some_steps()
        print(calls)

    One rank is enough to trace all of its job on this host; name no file on the others. Records
    hold the last 4,096 calls of a rank at least: of a longer part of the program the first ones are
    missing, as ``lost`` says of this rank.

    Args:
        file: where to write a timeline for ui.perfetto.dev: a .json, or .json.gz. None: nowhere.

    Attributes:
        ranks: the ranks by number, each with its calls since the beginning; empty before the end.
        lost: how many calls of this process are not among them.
    """

    def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
        self._file = file
        self.ranks: list[Rank] = []
        self.lost = 0

    def __enter__(self) -> trace:
        self._begin = time.monotonic_ns()
        self._issued = sum(rank.snapshot.issued for rank in self._own(ranks_of_job(os.getpid())))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ranks = [self._part(rank) for rank in ranks_of_job(os.getpid())]
        for rank in self._own(self.ranks):
            issued = rank.snapshot.issued - self._issued
            self.lost = max(0, issued - len(rank.snapshot.calls))
        if self._file is not None:
            write(self._file, self.ranks)

    @property
    def calls(self) -> list[Call]:
        """The calls of this process, the oldest first."""
        return [call for rank in self._own(self.ranks) for call in rank.snapshot.calls]

    def summary(self) -> Summary:
        """Return what the collectives cost, and which rank the others waited for."""
        return summarize(self.ranks)

    def __str__(self) -> str:
        """Return who was waited for, in a line or more."""
        return "\n".join(findings(self.summary()))

    def _part(self, rank: Rank) -> Rank:
        calls = tuple(call for call in rank.snapshot.calls if call.issued >= self._begin)
        return replace(rank, snapshot=replace(rank.snapshot, calls=calls))

    @staticmethod
    def _own(ranks: list[Rank]) -> list[Rank]:
        return [rank for rank in ranks if rank.pid == os.getpid()]
