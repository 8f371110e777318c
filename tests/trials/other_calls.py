"""Messages, sparse tensors, objects, and collectives under the coalescing manager."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from trials import values
from trials.case import Maker, pair, ranks_of, whole, whole_shape


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
    """Sum sparse tensors of different places, with some places twice."""
    shape = make.spec.shapes[0]
    terms = [term * (term.abs() > 1) for term in make.terms("sparse", shape)]
    wanted = torch.stack([2 * term for term in terms]).sum(0, dtype=make.spec.dtype)
    # Dense dimensions in some.
    tensor = terms[make.rank].to_sparse(1 + make.spec.option % len(shape))
    places, numbers = tensor.indices(), tensor.values()
    tensor = torch.sparse_coo_tensor(
        torch.cat([places, places], 1), torch.cat([numbers, numbers]), shape
    )
    make.case.call = lambda: dist.all_reduce(tensor, **make.options)
    make.case.objects = lambda: "" if torch.equal(tensor.to_dense(), wanted) else "a wrong sum"


def barrier(make: Maker) -> None:
    make.case.call = lambda: dist.barrier(**make.options)


def objects(make: Maker) -> None:
    """One of the four operations on objects."""
    spec, me, size, root = make.spec, make.rank, make.size, make.spec.root

    def of(rank: int) -> list[Any]:
        text = "x" * (math.prod(spec.shapes[0]) * (rank + 1))
        return [None, {"rank": rank, 3: (text, 1.5)}, values.made(values.WHOLE, torch.int32, (2,))]

    every = [of(rank) for rank in range(size)]
    which = spec.option % 4
    found: list[Any] = [None] * size
    wanted: list[Any] = every

    def call() -> None:
        nonlocal found, wanted
        if which == 0:
            dist.all_gather_object(found, of(me), group=make.group)
        elif which == 1:
            wanted = every if me == root else [None] * size
            into = found if me == root else None
            dist.gather_object(of(me), into, group=make.group, group_dst=root)
        elif which == 2:
            found, wanted = (of(root) if me == root else [None] * 3), of(root)
            dist.broadcast_object_list(found, group=make.group, group_src=root)
        else:
            found, wanted = [None], [every[me]]
            dist.scatter_object_list(
                found, every if me == root else None, group=make.group, group_src=root
            )

    make.case.call = call
    make.case.objects = lambda: "" if repr(found) == repr(wanted) else f"{found} is not {wanted}"


def coalesced(make: Maker, which: int) -> None:
    """Several calls under torch's coalescing manager."""
    calls: list[Callable[[], Any]] = []
    size, stacked = make.size, make.spec.option % 2 == 1
    for i, shape in enumerate(make.spec.shapes):
        if which == 0:
            tensor = make.given(f"tensor {i}", shape, make.sum(f"tensor {i}", shape, True))
            calls.append(lambda t=tensor: dist.all_reduce(t, make.op(), group=make.group))
        elif which == 1:
            name = f"input {i}"
            output = make.output(f"output {i}", whole(make.terms(name, shape), stacked))
            source = make.given(name, shape)
            calls.append(
                lambda o=output, s=source: dist.all_gather_into_tensor(o, s, group=make.group)
            )
        else:
            every = whole_shape(size, shape, stacked)
            wanted = make.sum(f"input {i}", every).reshape(size, *shape)[make.rank]
            output = make.output(f"output {i}", wanted)
            source = make.given(f"input {i}", every)
            calls.append(
                lambda o=output, s=source: dist.reduce_scatter_tensor(
                    o, s, make.op(), group=make.group
                )
            )

    def call() -> Any:
        manager = dist.distributed_c10d._coalescing_manager
        with manager(group=make.group, async_ops=make.spec.asynchronous) as works:
            for each in calls:
                each()
        return works if make.spec.asynchronous else None

    make.case.call = call
