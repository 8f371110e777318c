"""A store over TCP for ranks that share nothing but a folder."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from support.ranks import World


def tcp_store(world: World) -> dist.Store:
    """Return a store that rank 0 holds."""
    port = Path(world.directory, "port")
    if world.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.write_text(str(store.port))
        world.tell("the port")
        return store
    world.hear("the port")
    return dist.TCPStore("127.0.0.1", int(port.read_text()), is_master=False)
