"""Operations whose sizes are known in pairs, or that take lists: against plain torch, exactly.

Each world size is one launch that does everything. The one-shot limit is 64 KiB per payload here,
and sizes lie around it.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World

SIZES = [1, 2, 3, 4, 5, 8]
NARROW = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8),
    *(torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128, *NARROW),
]
LIMIT = 64 * 1024
COUNTS = [0, 1, 1000, LIMIT // 8 - 1, LIMIT // 4, LIMIT // 4 + 1]  # of float32


def _bytes(count: int, *seed: int) -> torch.Tensor:
    """Return values that differ by seed and place."""
    start = sum(part * factor for part, factor in zip(seed, (7, 31, 101), strict=False))
    return ((torch.arange(count, dtype=torch.int64) * 3 + start) % 251).to(torch.uint8)


def _message(dtype: torch.dtype, count: int, *seed: int) -> torch.Tensor:
    if dtype in NARROW:
        return _bytes(count, *seed).view(dtype)
    values = _bytes(count, *seed)
    return (values % 2 if dtype == torch.bool else values % 17).to(dtype)


def _same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if got.dtype in NARROW:
        got, wanted = got.view(torch.uint8), wanted.view(torch.uint8)
    return torch.equal(got, wanted)


def _count(sender: int, receiver: int, scale: int = 1) -> int:
    """Return the elements from a sender to a receiver; some pairs have none."""
    return (sender * 3 + receiver * 5) % 7 * scale


def _rooted(
    rank: int, size: int, dtype: torch.dtype, count: int, root: int, **options: Any
) -> None:
    """Run gather and scatter."""
    mine = _message(dtype, count, rank)
    gathered = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
    work = dist.gather(mine, gathered, dst=root, **options)
    assert work is None or work.wait()
    for peer, got in enumerate(gathered or []):
        assert _same(got, _message(dtype, count, peer)), (dtype, count, root, peer)
    parts = [_message(dtype, count, peer, 1) for peer in range(size)] if rank == root else None
    got = torch.empty_like(mine)
    work = dist.scatter(got, parts, src=root, **options)
    assert work is None or work.wait()
    assert _same(got, _message(dtype, count, rank, 1)), (dtype, count, root)


def _reduced(rank: int, size: int, dtype: torch.dtype, count: int, root: int) -> None:
    mine = _message(dtype, count, rank)
    terms = [_message(dtype, count, peer) for peer in range(size)]
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        wanted = torch.stack([term.to(torch.int64) for term in terms]).sum(0).to(dtype)
    elif dtype == torch.bool:
        wanted = torch.stack(terms).any(0)
    else:
        wanted = torch.stack(terms).sum(0, dtype=dtype)  # small integers: exact in any order
    before = mine.clone()
    dist.reduce(mine, dst=root)
    assert _same(mine, wanted if rank == root else before), (dtype, count, root)


def _in_pairs(rank: int, size: int, dtype: torch.dtype, scale: int) -> None:
    """Run all_to_all and all_to_all_single with other sizes for each pair."""
    sends = [_message(dtype, _count(rank, peer, scale), rank, peer) for peer in range(size)]
    wanted = [_message(dtype, _count(peer, rank, scale), peer, rank) for peer in range(size)]
    outputs = [torch.empty_like(each) for each in wanted]
    dist.all_to_all(outputs, sends)
    assert all(_same(*pair) for pair in zip(outputs, wanted, strict=True)), (dtype, scale)
    whole = torch.empty(sum(map(len, wanted)), dtype=dtype)
    splits = [len(each) for each in wanted], [len(each) for each in sends]
    work = dist.all_to_all_single(whole, _cat(sends), *splits, async_op=True)
    work.wait()
    assert _same(whole, _cat(wanted)), (dtype, scale)
    even = _cat([_message(dtype, 6, rank, peer) for peer in range(size)]).view(-1, 3)
    got = torch.empty_like(even)
    dist.all_to_all_single(got, even)
    from_all = _cat([_message(dtype, 6, peer, rank) for peer in range(size)])
    assert _same(got, from_all.view(-1, 3)), dtype


def _cat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.view(torch.uint8) for each in tensors]).view(tensors[0].dtype)


def _uneven(rank: int, size: int, dtype: torch.dtype, scale: int) -> None:
    counts = [(peer * 2 + 1) % 5 * scale for peer in range(size)]
    outputs = [torch.empty(count, dtype=dtype) for count in counts]
    dist.all_gather(outputs, _message(dtype, counts[rank], rank))
    for peer, got in enumerate(outputs):
        assert _same(got, _message(dtype, counts[peer], peer)), (dtype, scale, peer)
    if dtype in NARROW or dtype.is_complex or not dtype.is_signed:
        return
    output = torch.empty(counts[rank], dtype=dtype)
    inputs = [_message(dtype, count, rank, peer) for peer, count in enumerate(counts)]
    dist.reduce_scatter(output, inputs)
    terms = [_message(dtype, counts[rank], peer, rank) for peer in range(size)]
    assert _same(output, torch.stack(terms).sum(0, dtype=dtype)), (dtype, scale)


def _layouts(rank: int, size: int) -> None:
    """Use gaps, transposition, conjugation, negation, no dimension, outputs that overlap inputs."""
    root = size - 1
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    plain = torch.arange(24.0).view(4, 6) + 100 * rank
    parts = [torch.empty(6, 4).t() if peer % 2 else torch.empty(8, 6)[::2] for peer in range(size)]
    dist.gather(plain, parts if rank == root else None, dst=root)
    if rank == root:
        assert all(_same(p, torch.arange(24.0).view(4, 6) + 100 * k) for k, p in enumerate(parts))
    numbers = torch.complex(plain, plain + 1)
    for view in (numbers.conj(), numbers.conj().imag, numbers.t(), numbers[:, ::2]):
        outputs = [torch.empty_like(view.resolve_conj().resolve_neg()) for _ in range(size)]
        backend.alltoall(outputs, [view] * size).wait()  # torch's own function refuses conj()
        for peer, got in enumerate(outputs):
            shift = 100.0 * (peer - rank)
            offset = torch.tensor(-shift if view.is_neg() else complex(shift, shift))
            offset = offset.conj() if view.is_conj() else offset
            assert torch.equal(got, view.resolve_conj().resolve_neg() + offset)
    dist.scatter(
        single := torch.zeros(()),
        [torch.tensor(float(k)) for k in range(size)] if not rank else None,
    )
    assert single.item() == rank
    dist.broadcast(torch.tensor(2.0).expand(3) if rank == 0 else (seen := torch.zeros(3)), src=0)
    assert rank == 0 or seen.tolist() == [2.0] * 3
    for count in (3, LIMIT):
        own = torch.arange(size * count, dtype=torch.float32) + 1e6 * rank
        flat = own.clone()
        dist.all_to_all_single(flat, flat)
        wanted = [torch.arange(rank * count, (rank + 1) * count) + 1e6 * k for k in range(size)]
        assert _same(flat, torch.cat(wanted))
        lists = list(own.clone().split(count))
        dist.all_to_all(list(reversed(lists)), lists)
        assert _same(torch.cat(list(reversed(lists))), torch.cat(wanted))
        longer = torch.cat([own, own[:count]])
        shifted = longer[count // 2 :][:count]  # over the borders of the outputs
        mine = shifted.clone()
        dist.all_gather(list(longer.split(count)[:size]), shifted)
        wanted = [mine + 1e6 * (k - rank) for k in range(size)]
        assert _same(longer[: size * count], torch.cat(wanted))
        flat = own.clone()
        mine = list(flat.split(count))
        dist.gather(mine[rank - 1], mine if rank == root else None, dst=root)
        if rank == root:
            at = [(k - 1) % size * count for k in range(size)]
            sent = [torch.arange(a, a + count) + 1e6 * k for k, a in enumerate(at)]
            assert _same(flat, torch.cat(sent).float())
        flat = own.clone()
        mine = list(flat.split(count))
        dist.scatter(mine[rank - 1], mine if rank == root else None, src=root)
        sent = torch.arange(rank * count, (rank + 1) * count) + 1e6 * root
        assert _same(flat.split(count)[rank - 1], sent.float())


def _groups_and_threads(rank: int, size: int) -> None:
    """Keep several operations in flight on each of several groups, each with a thread."""
    groups = [dist.new_group(timeout=timedelta(seconds=60)) for _ in range(3)]
    failures: list[BaseException] = []

    def exchange(number: int) -> None:
        try:
            for turn in range(4):
                scale = 4000 if turn == number else 3
                works, checks = [], []
                for each in range(6):
                    sends = [
                        _message(torch.int32, _count(rank, p, scale), rank, each)
                        for p in range(size)
                    ]
                    got = [
                        torch.empty(_count(p, rank, scale), dtype=torch.int32) for p in range(size)
                    ]
                    works.append(dist.all_to_all(got, sends, group=groups[number], async_op=True))
                    checks.append((each, got))
                    total = torch.full((each * scale + 1,), float(rank))
                    works.append(dist.all_reduce(total, group=groups[number], async_op=True))
                values = [work.get_future().wait() for work in reversed(works)]
                assert len(values) == 12 and values[-1][0] is not None
                for each, got in checks:
                    for peer, message in enumerate(got):
                        count = _count(peer, rank, scale)
                        assert _same(message, _message(torch.int32, count, peer, each))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@on_ranks(*SIZES, environment={"FASTCOMM_ONE_SHOT_BYTES": str(LIMIT)})
def test_what_arrives_is_what_was_sent(world: World) -> None:
    world.init()
    rank, size = world.rank, world.size
    for dtype in DTYPES:
        for root in {0, size - 1}:
            _rooted(rank, size, dtype, 37, root)
            if dtype not in NARROW:
                _reduced(rank, size, dtype, 37, root)
        _in_pairs(rank, size, dtype, 1)
        _uneven(rank, size, dtype, 1)
    for count in (*COUNTS, 700_001):
        _rooted(rank, size, torch.float32, count, count % size, async_op=count % 2 == 1)
        _reduced(rank, size, torch.float32, count, count % size)
    for scale in (100, LIMIT // 24, LIMIT // 8, 60_000):  # one-shot on some ranks, blocks on others
        _in_pairs(rank, size, torch.float32, scale)
        _uneven(rank, size, torch.float32, scale)
    _layouts(rank, size)
    _groups_and_threads(rank, size)
