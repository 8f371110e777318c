"""A process that trains as it is told, some steps at a time, and tells how long they took."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fastcomm
from fastcomm import ddp_comm_hooks
from fastcomm._advise import costs
from fastcomm._advise.facts import Survey
from fastcomm._advise.loop import Enough, Loop, Parts, send_through
from fastcomm._advise.told import Round, Spec
from fastcomm._advise.wraps import Quiet, QuietSlots, moved_by_slots
from fastcomm.nn.parallel import DataParallel

WARM_UP = 2  # steps of each round that do not count: others have used the caches

_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OURS = (str(Path(fastcomm.__file__).parent), "<frozen runpy>")  # files
_INIT = dist.init_process_group


@contextlib.contextmanager
def refusing_groups() -> Iterator[None]:
    """Let nobody but this module form a process group meanwhile."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "it forms a process group: advise takes a script that trains on one device, and tries "
            "itself what more of them bring"
        )

    dist.init_process_group = refuse
    try:
        yield
    finally:
        dist.init_process_group = _INIT


def text_of(error: Exception) -> str:
    """Return an exception with the frames that are not this package's."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS)
    ]
    last = "".join(traceback.format_exception_only(error))
    where = "".join(traceback.format_list(frames))
    return f"{where}{last}".strip()


def work(train: Callable[[Spec], None], address: str, spec: Spec) -> None:
    """Train until told to end.

    Args:
        train: has a training loop, as a script has. It sees no other worker.
        address: of the socket of the one that asks.
        spec: the workers of which this is one.
    """
    group = {name: os.environ.pop(name, "") for name in _GROUP}
    if spec.ranks > 1 and torch.accelerator.device_count() >= spec.ranks:
        torch.accelerator.set_device_index(int(group["RANK"]))
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    with Connection(link.detach()) as connection:
        connection.send(int(group["RANK"]))
        worker = Worker(connection, spec, group)
        try:
            with refusing_groups(), Loop(worker.found, worker.stepped):
                train(spec)
        except Enough:
            return
        except Exception as error:
            connection.send(("failed", text_of(error)))
        else:
            connection.send(("stopped", worker.count))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


class Worker:
    """What is done at the ends of a loop's steps."""

    def __init__(self, connection: Connection, spec: Spec, group: dict[str, str]) -> None:
        self.count = 0  # of steps
        self._connection = connection
        self._spec = spec
        self._group = group
        self._rank = int(group["RANK"])
        self._ways: dict[str, Any] = {}
        self._round: _Round | None = None
        self._model: nn.Module
        self._optimizer: torch.optim.Optimizer

    def found(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take the loop's model, and wait for what to do."""
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            kind = type(model).__name__
            raise RuntimeError(f"its model is {kind} already: advise takes one that is not wrapped")
        self._model, self._optimizer, self.count = model, optimizer, 1
        device = next(model.parameters()).device
        self._device = device.type
        if self._spec.ranks > 1 and device.type != "cpu" and device.index != self._rank:
            raise RuntimeError(
                f"its model is on {device} in rank {self._rank}, too: it must use the current "
                f'device, as "{device.type}" does'
            )
        slots = self._spec.slots
        self._places = ["cpu"] * slots if self._device == "cpu" else list(range(slots))
        if self._spec.ranks > 1:
            self._form()
        self._unused = any(p.requires_grad and p.grad is None for p in model.parameters())
        self._way: Any = model
        send_through(model, self._run)
        self._obey()

    def stepped(self, parts: Parts) -> None:
        """Count a step; after a round's last one, answer and wait for what to do."""
        self.count += 1
        assert self._round is not None
        if self._round.take(parts):
            return
        self._connection.send(("done", self._round.end()))
        self._round = None
        self._obey()

    def _run(self, *arguments: Any, **options: Any) -> Any:
        way = self._way if torch.is_grad_enabled() and self._model.training else self._model
        return way(*arguments, **options)

    def _form(self) -> None:
        size = int(self._group["WORLD_SIZE"])
        port = int(self._group["MASTER_PORT"])
        store = dist.TCPStore(self._group["MASTER_ADDR"], port, size, is_master=False)
        _INIT("fastcomm", store=store, rank=self._rank, world_size=size)

    def _obey(self) -> None:
        while self._round is None:
            try:
                what, *arguments = self._connection.recv()
            except EOFError:  # who asked is gone
                what = "end"
            if what == "end":
                raise Enough
            getattr(self, f"_on_{what}")(*arguments)

    def _on_costs(self, sizes: list[int], how: str) -> None:
        self._connection.send(("done", costs.times_of(sizes, how, self._device)))

    def _on_slots(self, repeats: int) -> None:
        self._connection.send(("done", moved_by_slots(self._model, self._places, repeats)))

    def _on_facts(self, steps: int) -> None:
        self._way = self._model
        self._round = _Surveyed(Survey(self._model, self._optimizer), steps)

    def _on_round(self, way: str, steps: int) -> None:
        if way not in self._ways:
            self._ways[way] = self._wrapped(way)
        self._way = self._ways[way]
        if isinstance(self._way, Quiet):
            self._round = _QuietRound(self._way, steps)
        else:
            if self._spec.ranks > 1:
                dist.barrier()
            self._round = _Round(steps)

    def _on_beside(self, size: int, messages: int, steps: int) -> None:
        dist.barrier()
        self._way = self._model
        self._round = _Beside(costs.messages_of(size, self._device), messages, steps)

    def _on_apart(self, steps: int) -> None:
        self._way = self._model
        self._round = _Round(steps)

    def _wrapped(self, way: str) -> Any:
        """Return the model wrapped for a way."""
        if way == "plain":
            return self._model
        if way == "slots":
            return DataParallel(self._model, device_ids=self._places)
        if way == "quiet slots":
            return QuietSlots(self._model, self._places)
        options = {"find_unused_parameters": True} if self._unused else {}
        if "views" in way:
            options["gradient_as_bucket_view"] = True
        if way.startswith("quiet"):
            return Quiet(self._model, **options)
        wrapped: Any = nn.parallel.DistributedDataParallel(self._model, **options)
        if way == "bfloat16":
            state = ddp_comm_hooks.FusedState(
                self._model.parameters(), comm_dtype=torch.bfloat16, norm_type=None
            )
            wrapped.register_comm_hook(state, ddp_comm_hooks.fused_hook)
        return wrapped


class _Round:
    """Steps of a round that count, after some that do not."""

    def __init__(self, steps: int) -> None:
        self._left = WARM_UP + steps
        self._steps = steps
        self._parts: list[Parts] = []
        self._began = self._busy = 0.0

    def take(self, parts: Parts) -> bool:
        """Take a step; tell whether another one is to come."""
        self._left -= 1
        if self._left < self._steps:
            self._parts.append(parts)
        if self._left == self._steps:
            self._begin()
        return self._left > 0

    def end(self) -> Any:
        """Return what there is to tell."""
        busy = (time.process_time() - self._busy) / (time.perf_counter() - self._began)
        return Round(tuple(self._parts), busy=busy)

    def _begin(self) -> None:
        self._began, self._busy = time.perf_counter(), time.process_time()


class _QuietRound(_Round):
    def __init__(self, quiet: Quiet, steps: int) -> None:
        super().__init__(steps)
        self._quiet = quiet
        quiet.begin()

    def _begin(self) -> None:
        super()._begin()
        self._quiet.passes.clear()

    def end(self) -> Round:
        plain: Round = super().end()
        return Round(plain.steps, tuple(self._quiet.passes), plain.busy)


class _Beside(_Round):
    """All messages are there from the beginning of the steps that count."""

    def __init__(self, turns: Sequence[torch.Tensor], messages: int, steps: int) -> None:
        super().__init__(steps)
        self._turns = turns
        self._count = messages
        self._works: list[Any] = []
        self._sent = 0.0

    def _begin(self) -> None:
        dist.barrier()
        super()._begin()
        turns = self._turns
        self._works = [
            dist.all_reduce(turns[number % len(turns)], async_op=True)
            for number in range(self._count)
        ]
        self._works[-1].get_future().add_done_callback(lambda _: self._stamp())

    def _stamp(self) -> None:
        self._sent = time.perf_counter()

    def end(self) -> Round:
        plain: Round = super().end()
        for each in self._works:
            each.wait()
        while not self._sent:
            time.sleep(0.0001)
        return Round(plain.steps, messages=(self._count, self._sent - self._began))


class _Surveyed(_Round):
    def __init__(self, survey: Survey, steps: int) -> None:
        super().__init__(steps)
        self._survey = survey
        survey.begin()

    def end(self) -> Any:
        return self._survey.end(self._parts[-1].passes)
