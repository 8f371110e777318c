"""Tensors in shared memory that peers read where they lie: the values of any other, and no copy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks
from support.segment import holds

import fastcomm

ALWAYS = {"FASTCOMM_READ_IN_PLACE_BYTES": "0"}
SMALL_BLOCKS = {"FASTCOMM_ONE_SHOT_BYTES": "4096", "FASTCOMM_BLOCK_BYTES": "8192", **ALWAYS}
COUNTS = (1, 100, 1024, 1025, 3001, 20_011)  # in one step, and in blocks

Maker = Callable[[int], torch.Tensor]


def _values(rank: int, count: int, seed: float) -> torch.Tensor:
    return torch.arange(count) % 251 + 1000 * rank + seed


def _operations(rank: int, size: int, count: int, make: Maker, seed: float) -> None:
    """Call every operation that reads in place once, and check what every rank gets."""

    def given(owner: int, numel: int = count) -> torch.Tensor:
        return _values(owner, numel, seed)

    def made(numel: int) -> torch.Tensor:
        return make(numel).copy_(given(rank, numel))

    everybody = [given(owner) for owner in range(size)]
    uneven = [count + owner for owner in range(size)]
    # A rank writes to its tensor as soon as it gets it back.
    mine = made(count)
    parts = [torch.empty(count) for _ in range(size)]
    dist.all_gather(parts, mine)
    mine.fill_(-1)
    assert all(torch.equal(*pair) for pair in zip(parts, everybody, strict=True)), "all_gather"

    whole = make(size * count).fill_(-2)  # as fully_shard does: this rank's part lies in the result
    mine = whole[rank * count :][:count].copy_(given(rank))
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.cat(everybody)), "all_gather_into_tensor"
    whole.fill_(-1)

    lists = [torch.empty(length) for length in uneven]
    mine = made(uneven[rank])
    dist.all_gather(lists, mine)
    mine.fill_(-1)
    for owner, part in enumerate(lists):
        assert torch.equal(part, given(owner, uneven[owner])), "uneven all_gather"

    root = count % size
    mine = made(count)
    dist.broadcast(mine, root)
    assert torch.equal(mine, given(root)), "broadcast"
    mine.fill_(-1)

    of_all = [given(owner, size * count).view(size, count) for owner in range(size)]
    mine, part = made(size * count), torch.empty(count)
    dist.reduce_scatter_tensor(part, mine)
    mine.fill_(-1)
    assert torch.equal(part, sum(rows[rank] for rows in of_all)), "reduce_scatter_tensor"

    mine = made(size * count)
    own = mine.view(size, count)[rank]  # the result may overlap this rank's part
    dist.reduce_scatter_tensor(own, mine)
    assert torch.equal(own, sum(rows[rank] for rows in of_all)), "reduce_scatter_tensor in place"

    mine, got = made(size * count), torch.empty(size, count)
    dist.all_to_all_single(got.view(-1), mine)
    mine.fill_(-1)
    for owner in range(size):
        assert torch.equal(got[owner], of_all[owner][rank]), "all_to_all_single"

    mine = made(size * count)
    chunks = list(mine.view(size, count)) if rank == root else None
    dist.scatter(part, chunks, root)
    mine.fill_(-1)
    assert torch.equal(part, of_all[root][rank]), "scatter"

    mine = made(count)
    dist.gather(mine, parts if rank == root else None, root)
    mine.fill_(-1)
    if rank == root:
        assert all(torch.equal(*pair) for pair in zip(parts, everybody, strict=True)), "gather"


def _mixtures(world: World) -> None:
    world.init()
    seed = 0.0
    for count, ordinary in product(COUNTS, ("none", "one", "all but one")):
        seed += 1
        odd = world.rank == int(seed) % world.size
        ordinary_here = {"none": False, "one": odd, "all but one": not odd}[ordinary]
        make: Maker = torch.empty if ordinary_here else fastcomm.empty
        _operations(world.rank, world.size, count, make, seed)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_get_what_was_given_wherever_it_lies(size: int) -> None:
    run_ranks(size, _mixtures, environment=SMALL_BLOCKS)


def _over_the_input(world: World) -> None:
    """Use outputs that overlap what peers still have to read, so that data goes through slots."""
    world.init()
    for count in (100, 20_011):
        mine = fastcomm.empty(count).copy_(_values(world.rank, count, 0))
        dist.all_gather([mine] * world.size, mine)
        assert any(torch.equal(mine, _values(rank, count, 0)) for rank in range(world.size))
        other = (world.rank + 1) % world.size
        rows = fastcomm.empty(world.size, count)
        rows.copy_(_values(world.rank, world.size * count, 0).view(world.size, count))
        dist.reduce_scatter_tensor(rows[other], rows.view(-1))
        expected = [
            _values(owner, world.size * count, 0).view(world.size, count)[world.rank]
            for owner in range(world.size)
        ]
        assert torch.equal(rows[other], sum(expected))


def test_a_result_over_the_input() -> None:
    run_ranks(3, _over_the_input, environment=SMALL_BLOCKS)


def _staged(world: World, count: int) -> dict[str, bool]:
    """Tell whether what this rank gives is still in its segment when its tensor is overwritten."""
    world.init()
    found = {}
    value = 100.25 + world.rank
    for where, make in {"shared": fastcomm.empty, "ordinary": torch.empty}.items():
        parts = [torch.empty(count) for _ in range(world.size)]
        whole = torch.empty(world.size * count)
        calls: dict[str, tuple[int, Callable[[torch.Tensor], object]]] = {
            "all_gather": (count, lambda mine: dist.all_gather(parts, mine)),  # noqa: B023
            "broadcast": (count, lambda mine: dist.broadcast(mine, 0)),
            "reduce_scatter": (
                world.size * count,
                lambda mine: dist.reduce_scatter_tensor(parts[0], mine),  # noqa: B023
            ),
            "all_to_all": (
                world.size * count,
                lambda mine: dist.all_to_all_single(whole, mine),  # noqa: B023
            ),
        }
        for name, (numel, call) in calls.items():
            value += 50
            mine = make(numel).fill_(value)
            call(mine)
            mine.fill_(0)
            pattern = torch.full((64,), value).numpy().tobytes()
            found[f"{name}, {where}"] = holds(pattern)
    return found


@pytest.mark.parametrize("count", [1000, 40_000])
def test_nothing_is_staged_where_every_tensor_is_shared(count: int) -> None:
    environment = {"FASTCOMM_SEGMENT_MB": "32", "FASTCOMM_ONE_SHOT_BYTES": "65536", **ALWAYS}
    for rank, found in enumerate(run_ranks(2, _staged, count, environment=environment)):
        staged = {how for how, copied in found.items() if copied}
        names = [
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            *(["broadcast"] if rank == 0 else []),
        ]
        assert staged == {f"{name}, ordinary" for name in names}


def _by_default(world: World) -> bool:
    world.init()
    mine, whole = fastcomm.empty(40_000).fill_(7.5 + world.rank), torch.empty(80_000)
    dist.all_gather_into_tensor(whole, mine)
    mine.fill_(0)
    return holds(torch.full((64,), 7.5 + world.rank).numpy().tobytes())


def test_tensors_are_staged_by_default() -> None:
    """A tensor's owner would wait when it writes to the tensor again."""
    assert run_ranks(2, _by_default) == [True, True]
