"""One rank's part in a schedule: operations, waits, and its fault if it is the victim."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from faults import operations
from faults.report import EXTRA, Ended, Now, Result, Told
from faults.schedule import WORLD, Op, Schedule, Step
from support.patience import OPERATION
from torch._C._distributed_c10d import ErrorType
from trials.case import Case

FORMING = timedelta(seconds=OPERATION)  # timeout while groups are formed


def told(error: BaseException) -> Told:
    return Told(
        type(error).__name__,
        str(error),
        getattr(error, "peer", None),
        getattr(error, "sequence", None),
    )


class Player:
    """Plays one rank's part of one schedule."""

    def __init__(self, schedule: Schedule, rank: int, pipe: Connection) -> None:
        self.schedule, self.rank, self.pipe = schedule, rank, pipe
        self.fault = schedule.fault
        self.is_victim = rank == self.fault.victim
        self.groups: list[Any] = []
        self.pending: dict[int, tuple[Any, Case, Result]] = {}
        self.ended = Ended()
        self.left = False
        self.interruptible = False

    def play(self, store: dist.Store) -> Ended:
        dist.init_process_group(
            "fastcomm", store=store, rank=self.rank, world_size=self.schedule.size, timeout=FORMING
        )
        self.groups = [dist.group.WORLD]
        self.groups += [dist.new_group(list(ranks)) for ranks in self.schedule.groups[1:]]
        if self.schedule.timeout < FORMING.total_seconds():
            dist.group.WORLD.set_timeout(timedelta(seconds=self.schedule.timeout))
        self._steps()
        if not self.left:
            dist.destroy_process_group()
        self.ended.left = self.ended.left or time.monotonic()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the handler would keep this object
        return self.ended

    def _steps(self) -> None:
        for step in self.schedule.steps[self.rank]:
            if step.op == self.fault.at:
                if self.is_victim:
                    self._strike(step)
                    if self.left:
                        return
                    if self.fault.kind == "skip":
                        self._wait_for(step)
                        continue
                elif self.rank == self.fault.helper:
                    time.sleep(self.fault.seconds)
            self._issue(self._op_at(step), step)
            self._wait_for(step)
        if self.is_victim and self.fault.at == len(self.schedule.ops):
            self._strike(None)

    def _op_at(self, step: Step) -> Op:
        if (
            self.is_victim
            and self.fault.kind in ("mismatch", "misfit")
            and step.op == self.fault.at
        ):
            assert self.fault.other is not None
            return self.fault.other
        return self.schedule.ops[step.op]

    def _issue(self, op: Op, step: Step) -> None:
        number = step.op
        members, group = self.schedule.groups[op.group], self.groups[op.group]
        case = operations.bind(op, step, self.rank, members, group)
        now = time.monotonic()
        result = Result(number, op.group, now, now)
        self.ended.results.append(result)
        try:
            self.interruptible = not step.asynchronous and number == self.fault.at
            work = case.call()
            self.interruptible = False
            if step.asynchronous:
                self.pending[number] = (work, case, result)
                return
        except KeyboardInterrupt as error:
            if self._was_struck(op, case):
                result.interrupted = time.monotonic()
                result.error = told(error)
        except Exception as error:
            result.error = told(error)
        self._close(case, result)

    def _was_struck(self, op: Op, case: Case) -> bool:
        """True if the library has seen the signal during the operation, which then failed.

        If the operation ends before that, Python raises after its good end.
        """
        backend = self.groups[op.group]._get_backend(torch.device("cpu"))
        return backend.get_error() != ErrorType.SUCCESS or case.trouble() != ""

    def _wait_for(self, step: Step) -> None:
        expiring = self.is_victim and self.fault.kind == "expire" and step.op == self.fault.at
        for number in step.then_wait:
            if number in self.pending:
                self._wait(number, self.fault.after if expiring and number == step.op else None)

    def _wait(self, number: int, patience: float | None) -> None:
        work, case, result = self.pending.pop(number)
        result.waited = time.monotonic()
        if patience is not None:
            try:
                work.wait(timedelta(seconds=patience))
            except Exception as error:
                result.expired = told(error)
                result.expired.text += f"\n(after {time.monotonic() - result.waited:.3f} s)"
        try:
            try:
                self.interruptible = number == self.fault.at
                work.wait()
                self.interruptible = False
            except KeyboardInterrupt:
                if self._was_struck(self.schedule.ops[number], case):
                    result.interrupted = time.monotonic()
                work.wait()
        except Exception as error:
            result.error = told(error)
        self._close(case, result)

    def _interrupt(self, number: int, frame: object) -> None:
        """Handle SIGINT as Python does, once, in the operation where the fault is to strike.

        A late signal, after the end of that operation, does nothing.
        """
        if self.interruptible:
            self.interruptible = False
            raise KeyboardInterrupt

    def _close(self, case: Case, result: Result) -> None:
        """Record how a call ended, and the state of its tensors."""
        self.interruptible = False
        result.ended = time.monotonic()
        if result.error is None:
            result.right = not case.trouble()
        else:
            result.untouched = not case.touched()

    def _strike(self, step: Step | None) -> None:
        """Do what the fault does just before the victim's operation."""
        fault = self.fault
        segment = own_segment()
        signals = _signals(fault.kind, fault.after, fault.seconds)
        self.pipe.send(Now(time.monotonic(), signals, segment, os.getpid()))
        if fault.kind == "stop" or fault.kind == "stop past timeout":
            os.kill(os.getpid(), signal.SIGSTOP)
            self.ended.resumed = time.monotonic()
        elif fault.kind in ("delay", "delay past timeout"):
            time.sleep(fault.seconds)
            self.ended.resumed = time.monotonic()
        elif fault.kind in ("leave", "raise and leave"):
            self._leave()
        elif fault.kind == "abort":
            self.groups[WORLD]._get_backend(torch.device("cpu")).abort()
        elif fault.kind == "interrupt":
            signal.signal(signal.SIGINT, self._interrupt)
        elif fault.kind == "extra":
            assert fault.other is not None
            self._issue(fault.other, replace(step or Step(EXTRA, False, False), op=EXTRA))
            self._wait_for(Step(EXTRA, False, False, (EXTRA,)))
        elif fault.kind in ENDINGS:
            ENDINGS[fault.kind]()

    def _leave(self) -> None:
        """Destroy all groups early, then learn what became of the pending operations."""
        try:
            if self.fault.kind == "raise and leave":
                raise ValueError("a mistake in the user's code")
        except ValueError:
            pass
        dist.destroy_process_group()
        self.ended.left = time.monotonic()
        self.left = True
        for number in list(self.pending):
            self._wait(number, None)


class UserError(BaseException):
    """An exception that no handler catches, so that the victim's process unwinds and ends."""


def _raise() -> None:
    raise UserError


def end_interpreter(status: int) -> None:
    """End with the interpreter's finalization, which a process of multiprocessing skips."""
    ctypes.pythonapi.Py_Exit(status)


ENDINGS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "crash": os.abort,
    "quit": lambda: sys.exit(4),
    "raise": _raise,
}


def _signals(kind: str, after: float, seconds: float) -> tuple[tuple[float, int], ...]:
    """Return delays and signals for the harness to send, since a stopped process cannot wake."""
    if kind == "kill in flight":
        return ((after, signal.SIGKILL),)
    if kind in ("stop", "stop past timeout"):
        return ((seconds, signal.SIGCONT),)
    if kind == "stop in flight":
        return ((after, signal.SIGSTOP), (after + seconds, signal.SIGCONT))
    if kind == "interrupt":
        return ((after, signal.SIGINT),)
    return ()


def own_segment() -> int:
    """Return the inode of this process's memory file; 0 if it has none."""
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            if os.readlink(path) == "/memfd:fastcomm (deleted)":
                return os.stat(path).st_ino
    return 0
