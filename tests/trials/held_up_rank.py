"""A rank that plays trials of `trials.held_up`, one after the other, as it is told."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from support.namespaces import Host
from support.ranks import World
from support.stores import join_hosts
from trials.held_up import (
    ELSEWHERE,
    GROUPS,
    INSIDE,
    KILLS,
    LOOPS,
    MESSAGE,
    RECEIVES,
    RECEIVES_ANY,
    SLEEPS,
    Call,
    Trial,
    ahead,
    drawn,
)

import fastcomm

# What a rank tells, in this order. LOST: it has heard that a peer died.
HEALTHY, THERE, LOST, DONE = "healthy", "there", "lost", "done"
PORT = 29870


def serve(pipe: Connection, world: World, hosts: list[Host] | None, places: str) -> None:
    """Form the groups, tell their names, and play the trials whose numbers are told."""
    if hosts is None:
        world.init()
    else:
        join_hosts(world, hosts, PORT, places)
    own: list[Any] = [dist.group.WORLD]
    own += [dist.new_group(members) for members in GROUPS[1:]]
    groups = [
        each if world.rank in members else None for each, members in zip(own, GROUPS, strict=True)
    ]
    pipe.send([each and each.group_name for each in groups])
    rank = _Rank(pipe, world.rank, groups, f"{world.directory}/loops")
    with contextlib.suppress(EOFError):
        while True:
            rank.play(drawn(pipe.recv()))


class _Rank:
    def __init__(self, pipe: Connection, rank: int, groups: Sequence[Any], flag: str) -> None:
        self.pipe, self.rank, self.groups = pipe, rank, groups
        with open(flag, "r+b") as file:
            self.flag = mmap.mmap(file.fileno(), 1)

    def play(self, trial: Trial) -> None:
        works = [self.call(call) for call in trial.healthy if self.rank in GROUPS[call.group]]
        for work in filter(None, works):
            work.wait()
        self.pipe.send(HEALTHY)
        if trial.kind in KILLS:
            try:
                self.go_on(trial)
            except fastcomm.PeerLostError:
                self.pipe.send(LOST)
                self.pipe.recv()  # nothing more will come
        else:
            self.go_on(trial)
        self.pipe.send(DONE)

    def go_on(self, trial: Trial) -> None:
        finals = [trial.final] * (self.rank in trial.members)
        finals += [ahead(trial.final)] * (trial.ahead * len(finals))
        finals += [trial.last] if trial.last is not None else []
        if self.rank == trial.victim:
            work = self.call(finals.pop(0), True) if trial.kind in INSIDE else None
            self.strike(trial)
            self.wait([work])
            for call in finals:
                self.call(call, False)
            return
        self.pipe.recv()
        if self.rank not in trial.asynchronous:
            self.pipe.send(THERE)
            for call in finals:
                self.call(call, False)
            return
        works = [self.call(call, True) for call in finals]
        self.pipe.send(THERE)
        if trial.kind not in KILLS:
            self.pipe.recv()
            if self.rank in trial.partners and trial.own is not None:
                self.call(trial.own, False)
        self.wait(works)

    def wait(self, works: Sequence[Any]) -> None:
        for work in works:
            if work is not None:
                work.wait()

    def strike(self, trial: Trial) -> None:
        """Come no further, until it is told."""
        self.pipe.send(THERE)
        if trial.kind == LOOPS:
            while not self.flag[0]:
                pass
        elif trial.kind == SLEEPS:
            while not self.flag[0]:
                time.sleep(0.01)
        elif trial.kind == ELSEWHERE:
            assert trial.own is not None
            self.call(trial.own, False)
        elif trial.kind in (RECEIVES, RECEIVES_ANY):
            assert trial.own is not None
            self.call(trial.own, False, trial.kind == RECEIVES_ANY)
        else:
            self.pipe.recv()

    def call(self, call: Call, is_async: bool | None = None, from_any: bool = False) -> Any:
        """Make a call; return the work of an asynchronous one."""
        group, members = self.groups[call.group], GROUPS[call.group]
        options = {"group": group, "async_op": call.is_async if is_async is None else is_async}
        if call.operation == MESSAGE:
            data = torch.ones(call.count)
            if self.rank == members[call.root]:
                dist.send(data, members[call.peer], group=group)
            elif self.rank == members[call.peer]:
                dist.recv(data, None if from_any else members[call.root], group=group)
            return None
        return self.collective(call, members, options)

    def collective(self, call: Call, members: Sequence[int], options: dict[str, Any]) -> Any:
        part, size = torch.ones(call.count), len(members)
        whole = torch.ones(size * call.count)
        ways: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(part, **options),
            "all_gather": lambda: dist.all_gather(list(whole.chunk(size)), part, **options),
            "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part, **options),
            "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole, **options),
            "all_to_all_single": lambda: dist.all_to_all_single(whole.clone(), whole, **options),
            "barrier": lambda: dist.barrier(**options),
            "broadcast": lambda: dist.broadcast(part, members[call.root], **options),
        }
        return ways[call.operation]()
