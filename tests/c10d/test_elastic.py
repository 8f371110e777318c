"""torchrun starts its workers again after one has died: old keys are still in its store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.patience import ENDS

WORKER = """
import os, signal, sys, time
import torch, torch.distributed as dist

dist.init_process_group("fastcomm")
rank, size = dist.get_rank(), dist.get_world_size()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {rank}, start {restarts}", flush=True)
x = torch.full((100_000,), float(rank))
dist.all_reduce(x)
if restarts == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if restarts == 0:
    try:
        while True:
            dist.all_reduce(x)
    except dist.DistBackendError as error:
        print(f"rank {rank} was told: {type(error).__name__} {error.peer}", flush=True)
    # The same process, its old keys and torchrun's store: a group of the ranks that are left.
    dist.destroy_process_group()
    if rank == 0:
        time.sleep(1)  # one comes later than the other
    store = dist.PrefixStore("rest/", dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False))
    dist.init_process_group("fastcomm", store=store, rank=rank - (rank > 1), world_size=size - 1)
    y = torch.ones(3)
    dist.all_reduce(y)
    print(f"rank {rank} went on: {y.tolist()}", flush=True)
    sys.exit(1)  # a worker that failed, to torchrun
dist.barrier()
print(f"rank {rank} ended with {x.unique().tolist()}", flush=True)
dist.destroy_process_group()
"""


def test_a_worker_that_dies_once(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    words = ["--nproc-per-node", "3", "--max-restarts", "1", "--monitor-interval", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "worker.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=ENDS,
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    for rank in (0, 2):
        assert f"rank {rank} was told: PeerLostError 1" in said, said + done.stderr
    assert sorted(re.findall(r"rank (\d), start 1", said)) == ["0", "1", "2"]
    assert sorted(re.findall(r"rank (\d) ended with \[3.0\]", said)) == ["0", "1", "2"]
    # Unless torchrun ended them first, the survivors form a group, one later than the other.
    for rank in re.findall(r"rank (\d) went on", said):
        assert f"rank {rank} went on: [2.0, 2.0, 2.0]" in said
