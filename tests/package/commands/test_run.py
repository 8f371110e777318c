"""``fastcomm run``: a script that knows nothing of fastcomm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import scripts
from support.interrupts import interruptible
from support.patience import ENDS, has_ended, until

from fastcomm._machine import division, topology
from fastcomm._take_over import instead_of


def run(folder: Path, *words: str, status: int = 0, **environment: Any) -> tuple[str, str]:
    """Run a script of a folder there, to its exit status, and return what it said."""
    ended = subprocess.run(
        [sys.executable, "-m", "fastcomm", "run", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
        timeout=ENDS,
    )
    assert ended.returncode == status, ended.stderr
    return ended.stdout, ended.stderr


SCRIPT = """
import sys
import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    x = torch.ones(2)
    dist.all_reduce(x)
    print(dist.get_backend(), x.tolist(), torch.cuda.comm.gather.__module__, __file__)
    dist.destroy_process_group()
    sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("as_module", "asked", "typed"),
    [(False, "gloo", True), (True, "gloo", False), (False, "nccl", False)],
)
def test_a_script(tmp_path: Path, as_module: bool, asked: str, typed: bool) -> None:
    """Once as a user starts it; what else there is, in processes that have torch loaded."""
    if asked == "nccl" and torch.cuda.is_available():
        pytest.skip("with a GPU nccl stays nccl")
    script = tmp_path / "of_somebody.py"
    script.write_text(SCRIPT.replace('"gloo"', repr(asked)))
    name = ["-m", "of_somebody"] if as_module else [str(script)]
    words = [*name, str(tmp_path / "store"), "3"]
    if typed:
        said, told = run(tmp_path, *words, status=3)
    else:
        (ended,) = scripts.run(tmp_path, *words, taken_over=True)
        said, told = ended.said, ended.told
        assert ended.status == 3, ended
    assert said.split() == ["fastcomm", "[1.0,", "1.0]", "fastcomm.comm", str(script)]
    assert told.count("fastcomm run: ") == 1 and len(told.splitlines()) == 1


BARRIERS = """
import datetime
import os
import sys
import time
import torch.distributed as dist
from torch.distributed.distributed_c10d import monitored_barrier

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
dist.monitored_barrier()
dist.monitored_barrier(dist.new_group(backend="gloo"), datetime.timedelta(seconds=60), True)
dist.monitored_barrier(dist.new_group([0]))  # rank 1 is not of it
monitored_barrier(wait_all_ranks=True)
if rank == 0:
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(milliseconds=50))
    except RuntimeError as error:
        print("Rank 1 failed to pass monitoredBarrier" in str(error))
else:
    time.sleep(2)  # alive, and late
"""


def test_monitored_barriers_are_those_of_the_group(tmp_path: Path) -> None:
    (tmp_path / "of_somebody.py").write_text(BARRIERS)
    words = ["of_somebody.py", str(tmp_path / "store")]
    ranks = scripts.run(tmp_path, *words, ranks=2, taken_over=True)
    assert [(rank.status, rank.said) for rank in ranks] == [(0, "True\n"), (0, "")], ranks


GROUPS = """
import sys
import torch.distributed as dist
from torch.distributed import new_group
from torch.distributed.device_mesh import init_device_mesh

def kind(group=None):
    return dist.get_backend(group)

mesh = init_device_mesh("cpu", (1,))  # asks for no backend, and makes the default group
print("mesh", kind(), kind(mesh.get_group()))
print("like the default group", kind(new_group()))
print("by name", kind(new_group([0], backend="gloo")), kind(dist.new_group([0], None, "gloo")))
print("by device", kind(dist.new_group(backend="cpu:gloo")))
print("subgroups", kind(dist.new_subgroups(1, backend="gloo")[0]))
listed, _ = dist.new_subgroups_by_enumeration([[0]], backend="gloo")
print("listed", kind(listed))
dist.destroy_process_group()
"""


def test_every_group_that_asks_for_gloo_is_fastcomms(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    (ended,) = scripts.run(tmp_path, "groups.py", taken_over=True)
    assert ended.status == 0, ended
    said = ended.said.splitlines()
    asked_for_none, asked = said[:2], said[2:]
    if not torch.cuda.is_available():
        assert asked_for_none == ["mesh fastcomm fastcomm", "like the default group fastcomm"]
    assert asked == [
        "by name fastcomm fastcomm",
        "by device cpu:fastcomm",
        "subgroups fastcomm",
        "listed fastcomm",
    ]


@pytest.mark.parametrize(
    ("asked", "has_cuda", "taken"),
    [
        ("gloo", False, "fastcomm"),
        ("GLOO", True, "fastcomm"),
        ("cpu:gloo,cuda:nccl", True, "cpu:fastcomm,cuda:nccl"),
        ("nccl", True, "nccl"),
        ("nccl", False, "fastcomm"),
        ("cpu:gloo,cuda:nccl", False, "cpu:fastcomm,cuda:fastcomm"),
        ("mpi", False, "mpi"),
        (None, False, "fastcomm"),
        (None, True, None),
    ],
)
def test_which_backend(asked: str | None, has_cuda: bool, taken: str | None) -> None:
    assert instead_of(asked, has_cuda=has_cuda) == taken


OLD_SCRIPT = """
from torch import nn, ones

class Model(nn.Linear):
    def forward(self, x):
        print(f"replica with {len(x)}\\n", end="")
        return super().forward(x)

nn.DataParallel(Model(2, 2), device_ids=["cpu", "cpu"])(ones(6, 2))
"""


def test_an_old_data_parallel_script_gets_the_slots_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD_SCRIPT)
    (ended,) = scripts.run(tmp_path, "old.py", taken_over=True)
    assert ended.status == 0 and ended.said.split() == ["replica", "with", "3"] * 2, ended


PARENT = """
import multiprocessing, subprocess, sys
import first, workers
import torch.multiprocessing as mp

if __name__ == "__main__":
    store = sys.argv[1]
    other = subprocess.Popen([sys.executable, "workers.py", store + "other"])
    torchs = mp.start_processes(
        first.work, (store + "torch", "torch spawn"), 1, join=False, start_method="spawn"
    )
    processes = []
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        processes.append(context.Process(target=workers.work, args=(0, store + method, method)))
        processes[-1].start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    while not torchs.join():
        pass
    assert other.wait() == 0
"""
WORKERS = """
import sys
import torch
import torch.cuda.comm
import torch.distributed as dist
from torch.nn import DataParallel

def work(rank, store, name):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    ours = type(DataParallel) is not type
    print(f"{name}: {dist.get_backend()} {torch.cuda.comm.gather.__module__} {ours}\\n", end="")
    dist.destroy_process_group()

if __name__ == "__main__":
    work(0, sys.argv[1], "other")
"""


def test_workers_follow_and_other_programs_do_not(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "workers.py").write_text(WORKERS)
    (tmp_path / "first.py").write_text("import fastcomm" + WORKERS)
    said, told = run(tmp_path, "parent.py", str(tmp_path / "store"))
    assert sorted(said.splitlines()) == [
        "forkserver: fastcomm fastcomm.comm True",
        "other: gloo torch.nn.parallel.comm False",
        "spawn: fastcomm fastcomm.comm True",
        "torch spawn: fastcomm fastcomm.comm True",
    ]
    assert told.count("fastcomm run: ") == 1


RANKS = """
import json, os, signal, sys, time
cores = sorted(os.sched_getaffinity(0))
import torch.distributed as dist

dist.init_process_group("gloo")
names = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
found = {name: os.environ[name] for name in names}
every = [None, None]
dist.all_gather_object(every, [dist.get_backend(), found, cores, sys.argv[1:], __name__])
dist.destroy_process_group()
if os.environ["RANK"] == "0":
    print(json.dumps(every))
    sys.exit(int(sys.argv[2]))
time.sleep(float(sys.argv[3]))
"""


def ranks(folder: Path, *words: str, status: int = 0) -> tuple[Any, str]:
    (folder / "ranks.py").write_text(RANKS)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ended = subprocess.run(
        [sys.executable, "-m", "fastcomm", "run", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=ENDS,
    )
    assert ended.returncode == status, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_it_starts_ranks_itself_and_binds_them(tmp_path: Path) -> None:
    shares = division.divide(topology.cpus(), 2, topology.quota())
    words = ["--nproc", "2", "--bind", "ranks.py", "--nproc", "0", "0"]
    said, told = ranks(tmp_path, *words)
    for rank, (backend, found, cores, arguments, name) in enumerate(said):
        assert (backend, name, arguments) == ("fastcomm", "__main__", ["--nproc", "0", "0"])
        assert cores == list(shares[rank].cpus)
        assert found == {
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "OMP_NUM_THREADS": str(shares[rank].threads),
        }
    assert told.count("fastcomm run: ") == 1


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    begin = time.monotonic()
    words = ["--nproc=2", "-m", "ranks", "x", "7", str(ENDS)]
    said, told = ranks(tmp_path, *words, status=7)
    assert time.monotonic() - begin < ENDS / 2
    assert said[1][2] == sorted(os.sched_getaffinity(0))  # not bound
    assert told.splitlines()[-2:] == [
        "fastcomm run: rank 0: its process ended with status 7",
        "fastcomm run: ended because of that: rank 1",
    ]


STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("new" + os.environ["RANK"]).write_text(str(os.getpid()))
os.rename("new" + os.environ["RANK"], "pid" + os.environ["RANK"])
time.sleep(300)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ranks_end_with_the_command(tmp_path: Path, number: signal.Signals, status: int) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    words = [sys.executable, "-m", "fastcomm", "run", "--nproc", "2", "stubborn.py"]
    with interruptible():
        command = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    until(lambda: all(pid.exists() for pid in pids), "the ranks do not start")
    command.send_signal(number)
    _, told = command.communicate(timeout=ENDS)
    assert command.returncode == status, told
    assert "Traceback" not in told
    until(lambda: all(has_ended(int(pid.read_text())) for pid in pids), "ranks live on")


AGAIN = """
import os, subprocess, sys
import torch.distributed as dist

rank = int(os.environ.get("LOCAL_RANK", 0))
if "LOCAL_RANK" not in os.environ:  # as Lightning starts the other ranks
    words = ["-m", "again"] if sys.argv[2] == "module" else [os.path.abspath("again.py")]
    other = subprocess.Popen(
        [sys.executable, *words, *sys.argv[1:]], env={**os.environ, "LOCAL_RANK": "1"}
    )
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
dist.barrier()
print(f"{dist.get_backend()}\\n", end="")
dist.destroy_process_group()
sys.exit(0 if rank else other.wait())
"""


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_script_that_starts_itself_again_is_followed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    words = ["-m", "again"] if kind == "module" else ["again.py"]
    said, _ = run(tmp_path, *words, str(tmp_path / "store"), kind)
    assert said.split() == ["fastcomm", "fastcomm"]
