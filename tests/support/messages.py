"""Messages between ranks that every engine must deliver."""

from __future__ import annotations

import torch
import torch.distributed as dist
from support.ranks import World


def exchange(world: World) -> None:
    """Send around the ring, to rank 0 from any rank, and in a batch; check what arrives."""
    rank, size = world.rank, world.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 1 << 18):
        got = torch.full((count,), -1.0)
        works = [dist.isend(torch.full((count,), float(rank)), after, tag=3)]
        works.append(dist.irecv(got, before, tag=3))
        for work in works:
            assert work is not None
            work.wait()
            assert work.is_completed() and work.is_success()
            work.wait()  # again
        assert got.tolist() == [float(before)] * count
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            x = torch.zeros(1)
            source = dist.recv(x)  # from any rank
            assert x.item() == source
            seen.append(source)
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0)
    dist.barrier()  # else a rank's next message could be taken by a recv from any rank
    x, y = torch.ones(2) * rank, torch.zeros(2)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    ):
        work.wait()
    assert y.tolist() == [before] * 2
