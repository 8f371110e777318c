"""A rank: a process that executes schedules, one after another, until it is a victim that ends."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from faults import operations
from faults.player import FORMING, Player, UserError, end_interpreter
from faults.report import Ended, Fresh, Resources
from faults.schedule import WORLD, Op, Step

operations.warm()


def resources() -> Resources:
    maps = Path("/proc/self/maps").read_text()
    sockets = Path("/proc/self/net/unix").read_text()
    ours = re.findall(r" (\d+) @fastcomm-", sockets)
    targets = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.add(os.readlink(f"/proc/self/fd/{name}"))
    return Resources(
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        frozenset(map(int, re.findall(r" (\d+) +/memfd:fastcomm \(deleted\)", maps))),
        sum(f"socket:[{inode}]" in targets for inode in ours),
    )


def regroup(store: dist.Store, rank: int, size: int) -> Fresh:
    """Form a new group and use it."""
    start = time.monotonic()
    dist.init_process_group("fastcomm", store=store, rank=rank, world_size=size, timeout=FORMING)
    trouble = ""
    for count in (100, 30000):
        op = Op(WORLD, "all_reduce", "float32", count)
        case = operations.bind(
            op, Step(7, False, False), rank, tuple(range(size)), dist.group.WORLD
        )
        case.call()
        if case.trouble():
            trouble = f"a wrong all_reduce of {count} elements in the new group"
    dist.destroy_process_group()
    return Fresh(trouble, time.monotonic() - start, resources())


def serve(pipe: Connection, port: int) -> None:
    """Execute what comes through the pipe until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=FORMING)
    while True:
        try:
            order, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            if order == "play":
                schedule, rank, prefix = arguments
                answer: Any = Player(schedule, rank, pipe).play(dist.PrefixStore(prefix, store))
            else:
                rank, size, prefix = arguments
                answer = regroup(dist.PrefixStore(prefix, store), rank, size)
        except SystemExit:
            end_interpreter(4)
        except UserError:
            traceback.print_exc()
            end_interpreter(1)
        except Exception:
            text = traceback.format_exc()
            answer = Ended(trouble=text) if order == "play" else Fresh(text, 0.0, resources())
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(answer)
