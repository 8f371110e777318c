"""Messages, sparse tensors, objects, and collectives under the coalescing manager."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from support import reductions
from trials import values
from trials.case import Maker, pair, ranks_of
from trials.collective_calls import gathered, scattered, summed
from trials.layouts import Sparse


def messages(make: Maker) -> None:
    """Send from one rank to others, or receive, perhaps from any rank and with a tag."""
    spec, root, size = make.spec, make.spec.root, make.size
    choice = random.Random(spec.seed)
    pairs = [(root, peer) for peer in range(size) if peer != root]
    pairs = [pair if choice.random() < 0.5 else pair[::-1] for pair in pairs for _ in range(2)]
    shape, tag, calls = spec.shapes[0], spec.option % 4, []
    any_rank = spec.option % 5 == 0 and size == 2
    for i, (source, target) in enumerate(pairs):
        if make.rank == source:
            calls.append((True, target, make.given(f"message {i}", shape)))
        elif make.rank == target:
            wanted = make.term(source, f"message {i}", shape)
            calls.append((False, source, make.output(f"received {i}", wanted)))

    def call() -> Any:
        works = []
        for sends, peer, tensor in calls:
            if spec.asynchronous:
                function = dist.isend if sends else dist.irecv
            else:
                function = dist.send if sends else dist.recv
            where = ranks_of(make, peer, "dst" if sends else "src")
            where = {} if any_rank and not sends else where
            works.append(function(tensor, group=make.group, tag=tag, **where))
        return works if spec.asynchronous else None

    make.case.call = call


def batch(make: Maker) -> None:
    """Exchange messages of random sizes with each rank in one batch."""
    me, choice = make.rank, random.Random(make.spec.seed)
    works: list[dist.P2POp] = []
    for i in range(choice.randint(1, 4)):
        source, target = choice.sample(range(make.size), 2) if make.size > 1 else (0, 0)
        shape = pair(make, source, target)
        if source == target:
            continue
        if me == source:
            tensor = make.given(f"message {i}", shape)
            works.append(dist.P2POp(dist.isend, tensor, group=make.group, group_peer=target))
        if me == target:
            tensor = make.output(f"received {i}", make.term(source, f"message {i}", shape))
            works.append(dist.P2POp(dist.irecv, tensor, group=make.group, group_peer=source))
    make.case.call = lambda: dist.batch_isend_irecv(works) if works else None


def sparse(make: Maker) -> None:
    """Sum sparse tensors of different places, with some places twice; one rank has none."""
    shape = make.spec.shapes[0]
    terms = [
        torch.where(term.abs() > (1 if rank != 3 else math.inf), term, torch.zeros_like(term))
        for rank, term in enumerate(make.terms("sparse", shape))
    ]
    # Dense dimensions in some.
    tensor = terms[make.rank].to_sparse(1 + make.spec.option % len(shape))
    places, numbers = tensor.indices(), tensor.values()
    tensor = torch.sparse_coo_tensor(
        torch.cat([places, places], 1), torch.cat([numbers, numbers]), shape
    )
    make.case.wanted.append(
        ("sparse", Sparse(tensor), lambda: reductions.reduced([2 * term for term in terms], "sum"))
    )
    make.case.call = lambda: dist.all_reduce(tensor, **make.options)


def barrier(make: Maker) -> None:
    make.case.call = lambda: dist.barrier(**make.options)


def objects(make: Maker) -> None:
    """The operations on objects, one after another: some grow with the rank."""
    spec, me, size, root = make.spec, make.rank, make.size, make.spec.root
    at_root, to, source = me == root, ranks_of(make, root, "dst"), ranks_of(make, root, "src")
    group, found = make.group, list[Any]()

    def of(rank: int) -> list[Any]:
        text = "é" * (math.prod(spec.shapes[0]) * (rank + 1))
        return [None, {"rank": rank, 3: (text, 1.5)}, values.made(values.WHOLE, torch.int32, (2,))]

    every = [of(rank) for rank in range(size)]

    def call() -> None:
        all_gathered: list[Any] = [None] * size
        dist.all_gather_object(all_gathered, of(me), group=group)
        gathered: list[Any] | None = [None] * size if at_root else None
        dist.gather_object(of(me), gathered, group=group, **to)
        told = of(root) if at_root else [None] * 3
        dist.broadcast_object_list(told, group=group, **source)
        part: list[Any] = [None]
        dist.scatter_object_list(part, every if at_root else None, group=group, **source)
        received: list[Any] = [None] * 3
        if not at_root:
            received.append(dist.recv_object_list(received, group=group, **source))
        for peer in (peer for peer in range(size) if at_root and peer != me):
            dist.send_object_list(of(me), group=group, **ranks_of(make, peer, "dst"))
        found.extend([all_gathered, gathered, told, part, received])

    sent = [None] * 3 if at_root else [*of(root), spec.members[root]]
    wanted = [every, every if at_root else None, of(root), [every[me]], sent]
    make.case.call = call
    make.case.objects = lambda: "" if repr(found) == repr(wanted) else f"{found} is not {wanted}"


def coalesced(make: Maker, which: int) -> None:
    """Several calls under torch's coalescing manager."""
    calls: list[Callable[[], Any]] = []
    for i, shape in enumerate(make.spec.shapes):
        if which == 0:
            tensor = summed(make, f"tensor {i}", shape)
            calls.append(partial(dist.all_reduce, tensor, make.op(), group=make.group))
        elif which == 1:
            both = gathered(make, f"input {i}", shape)
            calls.append(partial(dist.all_gather_into_tensor, *both, group=make.group))
        else:
            both = scattered(make, f"input {i}", shape)
            scattering = partial(dist.reduce_scatter_tensor, *both, make.op(), group=make.group)
            calls.append(scattering)

    def call() -> Any:
        manager = dist.distributed_c10d._coalescing_manager
        with manager(group=make.group, async_ops=make.spec.asynchronous) as works:
            for each in calls:
                each()
        return works if make.spec.asynchronous else None

    make.case.call = call
