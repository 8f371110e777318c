"""A rank is killed while others wait for it, and load kernels: they name it at once.

CUDA loads a kernel at its first launch. The driver may then wait for the device, which waits for
the dead rank, and hold a lock that whoever asks the driver about the device needs too.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import places
from support.caught import Caught, catch
from support.direct import joined_on
from support.patience import SOON
from support.ranks import World, run_outcomes

pytestmark = pytest.mark.accelerator

LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
# Seconds from a death to its name on a GPU, which frees the dead process's memory meanwhile.
NAMED = 2.0


def _use_kernels_for_the_first_time(device: torch.device) -> None:
    values = torch.linspace(-0.5, 0.5, 4096, device=device)
    for operator in (torch.exp, torch.log1p, torch.tanh, torch.sigmoid, torch.cos, torch.erf):
        operator(values)


def _outlive(world: World, kind: str, async_op: bool) -> tuple[Caught, float]:
    device = joined_on(world, kind)
    data = torch.ones(1 << 20, device=device)
    dist.all_reduce(data)
    torch.get_device_module(kind).synchronize(device)
    if world.rank == 1:
        for survivor in (0, 2):
            world.hear(f"issued {survivor}")
        time.sleep(0.2)  # while they are in the driver
        Path(world.directory, "died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    work: Any = dist.all_reduce(data, async_op=async_op)
    world.tell(f"issued {world.rank}")
    _use_kernels_for_the_first_time(device)

    def go_on() -> None:
        if work is not None:
            work.wait()
        torch.get_device_module(kind).synchronize(device)
        dist.all_reduce(data)

    caught = catch(go_on)
    dist.destroy_process_group()
    return caught, caught.at - float(Path(world.directory, "died").read_text())


@pytest.mark.parametrize("async_op", [False, True])
def test_the_living_name_the_dead_while_kernels_are_loaded(async_op: bool) -> None:
    outcomes = run_outcomes(3, _outlive, places.kind(), async_op, environment=LAZY)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.error
        caught, after = outcome.value
        assert (caught.kind, caught.peer) == ("PeerLostError", 1), caught
        assert after < (NAMED if places.kind() == "cuda" else SOON), (after, caught)
