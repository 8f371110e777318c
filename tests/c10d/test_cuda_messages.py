"""Operations between devices whose sizes are known in pairs: all_to_all and unequal all_gather.

On simulated devices.
"""

from __future__ import annotations

import random

import pytest
import sim
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import init, is_direct
from support.ranks import World, run_ranks
from support.tree import same_bits
from support.values import cancelling

pytestmark = pytest.mark.usefixtures("simulated")

# Several rounds for most messages, and more for some ranks than for others.
SMALL = {"FASTCOMM_WINDOW_BYTES": "4096"}


def _exchange(world: World, device: torch.device, splits: list[list[int]]) -> None:
    """Exchange parts of one tensor: `splits` from rank to rank."""
    rank, size = world.rank, world.size
    sent = [cancelling(torch.float32, splits[rank][peer], rank, peer) for peer in range(size)]
    wanted = [cancelling(torch.float32, splits[peer][rank], peer, rank) for peer in range(size)]
    sizes = [len(each) for each in wanted], [len(each) for each in sent]
    got = torch.zeros(sum(sizes[0]), device=device)
    work = dist.all_to_all_single(got, torch.cat(sent).to(device), *sizes, async_op=True)
    work.wait()
    assert same_bits(got.cpu(), torch.cat(wanted)), splits


def _splits(world: World) -> None:
    device = init(world)
    size = world.size
    chance = random.Random(size)
    any_size = [[chance.choice([0, 1, 5, 900]) for _ in range(size)] for _ in range(size)]
    one_has_more = [[0] * size for _ in range(size)]
    one_has_more[0][size - 1] = 2700
    for splits in (any_size, one_has_more, [[0] * size] * size):
        _exchange(world, device, splits)
        dist.all_reduce(torch.ones(700, device=device))  # all have met equally often
    ones = torch.ones(2 * size, device=device)
    dist.all_to_all_single(ones, ones)  # onto itself
    if size > 1:
        assert is_direct(ones, "all_to_all") and is_direct(ones, "all_to_all_single")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_messages_of_any_size_arrive(size: int) -> None:
    """Every type, and lists of tensors: test_device_tensors.py."""
    run_ranks(size, _splits, environment=SMALL)


def _does_not_fit(world: World) -> tuple[Caught, float]:
    device = init(world)
    rank, size = world.rank, world.size
    expects = [2] * size
    if rank == 2:
        expects[0] = 1
    got = torch.zeros(sum(expects), device=device)

    def exchange() -> None:
        dist.all_to_all_single(got, torch.ones(2 * size, device=device), expects, [2] * size)
        torch.sim.synchronize()
        dist.all_reduce(torch.ones(1, device=device))

    caught = catch(exchange)
    torch.sim.synchronize()
    return caught, got.isnan().sum().item() / len(got)


def test_sizes_that_do_not_fit_each_other() -> None:
    for caught, spoiled in run_ranks(3, _does_not_fit):
        assert "MismatchError" in caught.kind, caught
        assert "rank 0 sends 8 bytes to rank 2, which expects 4" in caught.text, caught
        assert spoiled == 1


def _own_part_differs(world: World) -> tuple[Caught, list[float]]:
    device = init(world)
    size, rank = world.size, world.rank
    got = torch.zeros(2 * size - 1, device=device)
    expects = [2 - (peer == rank) for peer in range(size)]
    caught = catch(
        lambda: dist.all_to_all_single(
            got, torch.ones(2 * size, device=device), expects, [2] * size
        )
    )
    dist.all_reduce(good := torch.ones(1, device=device))
    return caught, [*got.tolist(), *good.tolist()]


def test_what_a_rank_sends_itself_has_one_size() -> None:
    for rank, (caught, values) in enumerate(run_ranks(2, _own_part_differs)):
        assert caught.kind == "CollectiveArgumentError", caught
        assert f"rank {rank} sends itself 8 bytes and expects 4 of itself" in caught.text, caught
        assert values == [0.0, 0.0, 0.0, 2.0]


def _replayed(world: World) -> None:
    """Replay: each replay finds anew how many rounds the others have."""
    device = init(world)
    native = sim.load()
    rank, size = world.rank, world.size
    splits = [[5] * size for _ in range(size)]
    splits[1][2] = 900
    expects = [row[rank] for row in splits]
    given = torch.zeros(sum(splits[rank]), device=device)
    got = torch.zeros(sum(expects), device=device)
    dist.all_to_all_single(got, given, expects, splits[rank])
    stream = torch.Stream(device)
    torch.sim.synchronize()
    with stream:
        graph = native.CapturedGraph(rank, stream.stream_id)
        dist.all_to_all_single(got, given, expects, splits[rank])
        dist.all_reduce(got[:1])
        graph.end()
        for turn in range(5):
            given.fill_(10.0 * turn + rank)
            graph.replay()
            eager = torch.ones(3, device=device)
            dist.all_reduce(eager)
            wanted = [10.0 * turn + peer for peer in range(size) for _ in range(expects[peer])]
            wanted[0] *= size
            assert got.tolist() == wanted and eager.tolist() == [float(size)] * 3
    torch.sim.synchronize()


def test_messages_are_replayed() -> None:
    run_ranks(3, _replayed, environment=SMALL)
