"""torchrun on two hosts starts all ranks again after one has died, by the same rendezvous."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.namespaces import Host
from support.torchrun import torchrun_on

pytestmark = pytest.mark.serial  # network namespaces

WORKER = """
import os, pathlib, signal, sys
import torch, torch.distributed as dist
import fastcomm

mark = pathlib.Path(sys.argv[1])
again = mark.exists()  # no rank dies before all have looked
dist.init_process_group("fastcomm")
rank = dist.get_rank()
x = torch.full((100_000,), float(rank))
dist.all_reduce(x)
how = fastcomm.explain("all_reduce", x).algorithm
if not again:
    if rank == 2:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(x)
    except fastcomm.PeerLostError as error:
        print(f"rank {rank} has lost {error.peer}.", flush=True)
    sys.exit(1)  # a worker that failed, to torchrun
dist.barrier()
print(f"rank {rank} ended, {how}, with {x.unique().tolist()}.", flush=True)
dist.destroy_process_group()
"""


def test_a_rank_that_dies_once(hosts: list[Host], tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    words = ["--max-restarts=1", str(tmp_path / "worker.py"), str(tmp_path / "mark")]
    said = torchrun_on(hosts, 29830, *words, ranks=2)
    ended = re.findall(r"rank (\d) ended, composed, with \[6.0\]\.", said)
    assert sorted(ended) == ["0", "1", "2", "3"], said
    # Unless torchrun has ended them before.
    assert set(re.findall(r"has lost (\S+)\.", said)) <= {"2"}, said
