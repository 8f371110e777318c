"""Groups over other stores than the file of ``World.init``."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from support.namespaces import Host
from support.ranks import World


def join_over(store: dist.Store, world: World) -> None:
    """Join the default group over a store."""
    dist.init_process_group(
        world.backend,
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=world.timeout,
    )


def join_hosts(world: World, hosts: list[Host], port: int, places: str) -> None:
    """Move to a host and join the default group; ``places`` has a host's number for each rank."""
    hosts[int(places[world.rank])].enter()
    store = dist.TCPStore(hosts[int(places[0])].address, port, world.size, world.rank == 0)
    join_over(store, world)


def tcp_store(world: World) -> dist.Store:
    """Return a store that rank 0 holds, at any free port."""
    port = Path(world.directory, "port")
    if world.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.write_text(str(store.port))
        world.tell("the port")
        return store
    world.hear("the port")
    return dist.TCPStore("127.0.0.1", int(port.read_text()), is_master=False)
