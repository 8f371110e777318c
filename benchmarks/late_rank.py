"""Four ranks train, and one gets its data late: the records that the documents show as a picture.

    python benchmarks/late_rank.py benchmarks/results/late-rank.records
    fastcomm trace benchmarks/results/late-rank.records -o docs/images/late-rank.png

A small network, trained by stock DDP; its data take 2 ms, and 5 ms on rank 2. At the end rank 0
has the records of all ranks kept by ``fastcomm trace``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastcomm._measure.launch import launch
from fastcomm._measure.rank import Rank

RANKS, LATE = 4, 2
LATE_S, OTHERS_S = 0.005, 0.002  # how long data take


def _train(rank: Rank, steps: int, file: str) -> str:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("fastcomm")
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        time.sleep(LATE_S if rank.rank == LATE else OTHERS_S)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
    said = ""
    store = dist.distributed_c10d._get_default_store()
    if rank.rank == 0:
        command = [sys.executable, "-m", "fastcomm", "trace", str(os.getpid()), "--save", file]
        said = subprocess.run(command, check=True, text=True, capture_output=True).stderr
        store.set("kept", "")
    store.wait(["kept"], timedelta(seconds=60))  # no call, so none is recorded
    dist.destroy_process_group()
    return said


def main(arguments: list[str] | None = None) -> int:
    """Train, and keep the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="where to keep them")
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args(arguments)
    file = str(chosen.file.resolve())
    print(launch(_train, RANKS, chosen.steps, file, timeout_s=120)[0], end="", file=sys.stderr)
    return subprocess.run([sys.executable, "-m", "fastcomm", "trace", file]).returncode


if __name__ == "__main__":
    sys.exit(main())
