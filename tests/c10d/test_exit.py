"""A program that ends without destroy_process_group ends quietly, with work pending or not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import ENDS, SOON

pytestmark = pytest.mark.serial  # short times are compared

PROGRAM = """
import sys, torch, torch.distributed as dist
rank, path, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("fastcomm", store=dist.FileStore(path, 2), rank=rank, world_size=2)
tensor = torch.ones(1 << 20)
dist.all_reduce(tensor)
dist.all_reduce(tensor, async_op=True).wait()
if rank == 0 and mode != "idle":
    work = dist.all_reduce(tensor, async_op=True)
    small = dist.all_reduce(torch.ones(4), async_op=True)
    if mode == "callback":
        future = work.get_future().then(lambda done: print("called back", flush=True))
        small.get_future().add_done_callback(lambda done: print("called back", flush=True))
if mode == "raise":
    raise SystemExit(f"rank {rank} gives up")
print("done", flush=True)
"""
MODES = {"idle": 0, "pending": 0, "callback": 0, "raise": 1}


# The end of a program with much to clean up: what is registered first runs last
ENDING = """
import atexit, os, sys, time
def end():  # not before the other rank has heard of it
    begun = time.monotonic()
    while not os.path.exists(sys.argv[2] + ".heard") and time.monotonic() < begun + 120:
        time.sleep(0.01)
atexit.register(end)
import torch, torch.distributed as dist
rank, path, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("fastcomm", store=dist.FileStore(path, 2), rank=rank, world_size=2)
tensor = torch.ones(4)
dist.all_reduce(tensor)
if rank == 1:
    time.sleep(0.3)
    print(time.monotonic(), flush=True)
    raise ValueError("a mistake\\nof two lines")
try:
    dist.all_reduce(tensor)
except dist.DistBackendError as error:
    print(time.monotonic(), type(error).__name__, error, flush=True)
    open(path + ".heard", "w").close()
"""

# The death watch of a device drops a work, and its tensor, while nobody releases the GIL: at the
# very end, after what fastcomm does there.
WATCHED = """
import atexit, sys, time
def spin():
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
atexit.register(spin)
import sim, torch, torch.distributed as dist
from fastcomm._distributed import device_engines as _device_engines
rank, path = int(sys.argv[1]), sys.argv[2]
sim.load()
atexit.unregister(sim.loading._let_autograd_end)  # it lets the GIL go
_device_engines.register("sim", _device_engines.Factory("simccl", sim.SimBackend, str))
torch.sim.set_device(rank)
store = dist.FileStore(path, 2)
dist.init_process_group("cpu:fastcomm,sim:fastcomm", store=store, rank=rank, world_size=2)
tensor = torch.ones(4, device="sim")
dist.all_reduce(tensor)
print("done", flush=True)
sys.setswitchinterval(1000)
dist.all_reduce(tensor)
"""


def _start(mode: str, folder: Path, program: str = PROGRAM) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    tests = str(Path(__file__).parents[1])
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return [
        subprocess.Popen(
            [*command, str(rank), str(folder / mode), mode],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize(
    "mode",
    [
        "idle",
        "callback",
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("pending", "raise")),
    ],
)
def test_the_interpreter_exits_quietly(mode: str, tmp_path: Path) -> None:
    _expect_quiet(_start(mode, tmp_path), mode)


@pytest.mark.usefixtures("simulated")
def test_the_death_watch_of_a_device_ends_before_the_interpreter(tmp_path: Path) -> None:
    _expect_quiet(_start("idle", tmp_path, WATCHED), "idle")


def _expect_quiet(processes: list[subprocess.Popen[str]], mode: str) -> None:
    deadline = time.monotonic() + ENDS
    try:
        for rank, process in enumerate(processes):
            output, errors = process.communicate(timeout=max(1, deadline - time.monotonic()))
            assert process.returncode == MODES[mode], (rank, output, errors)
            for noise in ("terminate called", "Aborted", "Fatal", "Segmentation", "Traceback"):
                assert noise not in errors, errors
            assert ("done" in output) == (mode != "raise")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_peers_hear_of_a_program_that_ends_before_it_has_ended(tmp_path: Path) -> None:
    processes = _start("ending", tmp_path, ENDING)
    try:
        heard, raised = (process.communicate(timeout=ENDS)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    at, kind, text = heard.split(maxsplit=2)
    assert kind == "PeerLeftError"
    assert "failed with ValueError: a mistake after 1 operation; this one was never called" in text
    assert "of two lines" not in text
    assert text.endswith("Look at its own output\n")
    assert float(at) - float(raised) < SOON
