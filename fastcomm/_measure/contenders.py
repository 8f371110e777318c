"""Contenders of a sweep: groups of backends, and torch's operations on symmetric memory."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from fastcomm._measure.cases import Case
from fastcomm._measure.cases.base import Call, count_wrong, pattern, pattern_sum
from fastcomm._measure.objects import all_gather_object

SYMMETRIC = ("symm_mem_one_shot", "symm_mem_two_shot", "symm_mem_multimem")


class NotServedError(Exception):
    """A contender has no such operation; the text says why."""


def first_line(error: Exception) -> str:
    """Return an exception's text in one line."""
    return next(iter(str(error).splitlines()), "") or repr(error)


class Contender:
    """A process group under test.

    Args:
        label: its name in results.
        group: all ranks; None of one that cannot be had.
    """

    def __init__(self, label: str, group: dist.ProcessGroup | None) -> None:
        self.label = label
        self.group: Any = group
        self.failed = ""  # why nothing more is asked of it

    def bind(self, case: Case) -> Call:
        """The call to measure.

        Raises:
            NotServedError: there is none.
        """
        return case.bind(self.group)

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        """Run once on known values; the number of wrong elements on this rank."""
        return case.check(self.group, control)

    def why_not(
        self, case: Case, control: dist.ProcessGroup, may_fail: bool, lasts: bool = True
    ) -> tuple[str, int]:
        """Check a case for the first time; why it cannot be run, or nothing, and wrong elements.

        Args:
            case: what to run.
            control: as of `check`; all ranks say the same.
            may_fail: one that raises says why; else it raises.
            lasts: and is not asked again.
        """
        if self.failed:
            return self.failed, 0
        wrong, why = 0, ""
        try:
            wrong = self.check(case, control)
        except NotServedError as error:
            return str(error), 0  # of this case alone, and on all ranks
        except Exception as error:
            if not may_fail:
                raise
            why = first_line(error)
        if may_fail:
            reasons = all_gather_object(why, control)
            why = next((reason for reason in reasons if reason), "")
            self.failed = why if lasts else ""
        return why, wrong


class Fake(Contender):
    """torch's backend that does nothing: what a call costs before anything moves.

    Where ranks outnumber the cores it lets others run, as whoever waits for them has to.
    """

    def bind(self, case: Case) -> Call:
        call = case.bind(self.group)
        if case.size <= len(os.sched_getaffinity(0)):
            return call

        def call_and_yield() -> None:
            call()
            os.sched_yield()

        return call_and_yield

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        return 0


class Symmetric(Contender):
    """``torch.ops.symm_mem``'s all_reduce, on memory that all devices have mapped.

    Its source and order of operands: ``torch/distributed/_symmetric_memory``. One-shot sums into
    ordinary memory, the others in place.
    """

    def __init__(self, label: str, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(label, group)
        self.device = device
        self._fits: tuple[int, torch.dtype] | None = None
        self._memory: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def _prepared(self, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        """Return symmetric memory for a case, and where the result is.

        Collective where the case before was of another size.
        """
        if case.name not in ("all_reduce", "all_reduce_shared"):
            raise NotServedError(f"{self.label} has no {case.name}")
        if self._fits != (case.numel, case.dtype):
            import torch.distributed._symmetric_memory as symmetric

            memory: torch.Tensor = symmetric.empty(case.numel, dtype=case.dtype, device=self.device)
            symmetric.rendezvous(memory, self.group.group_name)
            self._memory = self._result = memory.zero_()
            if "one_shot" in self.label:
                self._result = torch.zeros_like(memory, device=self.device)
            self._fits = (case.numel, case.dtype)
        assert self._memory is not None and self._result is not None
        return self._memory, self._result

    def bind(self, case: Case) -> Call:
        memory, result = self._prepared(case)
        memory.zero_()
        ops: Any = torch.ops.symm_mem
        name = self.group.group_name
        if "one_shot" in self.label:
            return lambda: ops.one_shot_all_reduce_out(memory, "sum", name, result)
        if "two_shot" in self.label:
            return lambda: ops.two_shot_all_reduce_(memory, "sum", name)
        return lambda: ops.multimem_all_reduce_(memory, "sum", name)

    def check(self, case: Case, control: dist.ProcessGroup) -> int:
        memory, result = self._prepared(case)
        call = self.bind(case)
        memory.copy_(pattern(case.numel, case.dtype, case.rank))
        call()
        return count_wrong(result, pattern_sum(case.numel, case.dtype, case.size))
