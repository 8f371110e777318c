"""all_reduce of tensors in shared memory: the bits of any other memory, and no copy of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest
import torch
import torch.distributed as dist
from support.caught import catch
from support.on_ranks import on_ranks
from support.ranks import World, run_ranks
from support.segment import holds
from support.tree import same_bits, tree_sum
from support.values import FLOATS, INTEGERS, cancelling, special

import fastcomm

SMALL_BLOCKS = {"FASTCOMM_ONE_SHOT_BYTES": "1024", "FASTCOMM_BLOCK_BYTES": "4096"}
SMALL_SEGMENT = {"FASTCOMM_SEGMENT_MB": "32"}
OPS = {dist.ReduceOp.SUM: False, dist.ReduceOp.AVG: True}
GUARD = 0xA5


class Arena:
    """Memory that tensors are cut out of; what they do not cover must stay as it is."""

    def __init__(self, world: World, nbytes: int = 2 << 20, shared: bool = True) -> None:
        # At a different place in every rank's segment, with a hole before it.
        junk = [fastcomm.empty(1000 * (world.rank + 1)) for _ in range(2 + world.rank % 3)]
        self.bytes = (fastcomm.empty if shared else torch.empty)(nbytes, dtype=torch.uint8)
        self._kept = junk[1:]
        self.bytes.fill_(GUARD)

    def place(self, values: torch.Tensor, shift: int) -> torch.Tensor:
        """Return a tensor of these values that starts ``64 + shift`` elements after the start."""
        start = (64 + shift) * values.element_size()
        self._used = slice(start, start + values.nbytes)
        return self.bytes[self._used].view(values.dtype).copy_(values)

    def clear(self) -> None:
        """Check that no other byte was written to."""
        self.bytes[self._used] = GUARD
        beside = self.bytes[: self._used.stop + 8192]
        assert torch.equal(beside, torch.full_like(beside, GUARD))


def _all_reduce(tensor: torch.Tensor, asynchronous: bool, **options: object) -> None:
    work = dist.all_reduce(tensor, async_op=asynchronous, **options)
    if work is not None:
        work.wait()


def _counts(dtype: torch.dtype, size: int) -> Iterable[int]:
    """Yield the one-shot limit, fewer lines than ranks, about a block, uneven slices."""
    limit = 1024 // (size - 1) // dtype.itemsize
    block = 4096 // dtype.itemsize
    yield from (limit, limit + 1, limit + 17, block - 1, block, block + 1, 20_011)
    if dtype in (torch.float32, torch.int8):  # slices of more than one piece
        yield from (65_536 * size // dtype.itemsize, 66_000 * size // dtype.itemsize + 1)


@on_ranks(2, 3, 4, 5, 7, 8, environment=SMALL_BLOCKS)
def test_sums_in_shared_memory_have_the_order_of_the_tree(world: World) -> None:
    world.init()
    arena = Arena(world)
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        for number, count in enumerate(_counts(dtype, world.size)):
            inputs = [cancelling(dtype, count, rank) for rank in range(world.size)]
            shift = (number + 3 * world.rank) % 7  # each rank another alignment
            for op, average in OPS.items():
                if average and dtype == torch.bool:
                    continue
                expected = tree_sum(inputs, average)
                for asynchronous in (False, True):
                    tensor = arena.place(inputs[world.rank], shift)
                    _all_reduce(tensor, asynchronous, op=op)
                    assert same_bits(tensor, expected), (dtype, count, op, asynchronous)
                    arena.clear()
    for dtype in FLOATS:
        inputs = [special(dtype, rank).repeat(200) for rank in range(world.size)]
        _all_reduce(tensor := arena.place(inputs[world.rank], world.rank), False)
        assert same_bits(tensor, tree_sum(inputs)), dtype


@on_ranks(5, environment=SMALL_BLOCKS)
def test_complex_numbers_are_summed_in_shared_memory(world: World) -> None:
    world.init()
    for dtype, count in product((torch.complex64, torch.complex128), (7, 129, 20_011)):
        parts = [cancelling(dtype.to_real(), 2 * count, rank) for rank in range(world.size)]
        for op, average in OPS.items():
            tensor = fastcomm.empty(count + 1, dtype=dtype)[1:]
            tensor.copy_(torch.view_as_complex(parts[world.rank].view(-1, 2)))
            dist.all_reduce(tensor, op=op)
            flat = torch.view_as_real(tensor).reshape(-1)
            assert same_bits(flat, tree_sum(parts, average)), (dtype, count, op)


@on_ranks(2, 5, environment=SMALL_BLOCKS)
def test_the_bits_are_the_same_where_one_rank_has_ordinary_memory(world: World) -> None:
    world.init()
    shared, plain = Arena(world), Arena(world, shared=False)
    cases = product((torch.float32, torch.bfloat16, torch.int16), (513, 20_011), OPS.items())
    for number, (dtype, count, (op, average)) in enumerate(cases):
        inputs = [cancelling(dtype, count, rank) for rank in range(world.size)]
        expected = tree_sum(inputs, average)
        for odd in range(world.size):
            arena = plain if world.rank == odd else shared
            tensor = arena.place(inputs[world.rank], world.rank)
            _all_reduce(tensor, asynchronous=number % 2 == 1, op=op)
            assert same_bits(tensor, expected), (dtype, count, op, odd)
            arena.clear()


# Each makes a tensor of 20'000 elements out of 80'000 in shared memory.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every fourth": lambda t: t[::4],
    "columns": lambda t: t.view(-1, 8)[:, 3:5],
    "transposed": lambda t: t[7:20_007].view(4, -1).t(),
    "flipped halves": lambda t: t[:40_000].view(2, -1)[:, :10_000],
}


@on_ranks(3, environment=SMALL_BLOCKS)
def test_a_view_with_gaps_is_summed_and_its_gaps_are_untouched(world: World) -> None:
    world.init()
    whole = fastcomm.empty(80_000)
    for name, cut in LAYOUTS.items():
        inputs = [cancelling(torch.float32, 20_000, rank) for rank in range(world.size)]
        whole.fill_(-1.5)
        expected = torch.full((80_000,), -1.5)
        view = cut(whole)
        assert fastcomm.is_shared(view) and not view.is_contiguous()
        view.copy_(inputs[world.rank].view_as(view))
        dist.all_reduce(view)
        cut(expected).copy_(tree_sum(inputs).view_as(view))
        assert same_bits(whole, expected), name


@on_ranks(5, environment=SMALL_BLOCKS)
def test_groups_take_turns_on_one_tensor(world: World) -> None:
    world.init()
    half = [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
    for start in (0, 1):
        group = dist.new_group(list(range(start, world.size, 2)))
        if world.rank % 2 == start:
            mine = group
    values = [cancelling(torch.float32, 20_011, rank) for rank in range(world.size)]
    tensor = fastcomm.empty(20_011).copy_(values[world.rank])
    for asynchronous in (False, True) * 5:
        _all_reduce(tensor, asynchronous, group=mine, op=dist.ReduceOp.AVG)
        means = [tree_sum(values[start::2], average=True) for start in (0, 1)]
        values = [means[rank % 2] for rank in range(world.size)]
        assert same_bits(tensor, values[half[0]])
        _all_reduce(tensor, asynchronous, op=dist.ReduceOp.AVG)
        values = [tree_sum(values, average=True)] * world.size
        assert same_bits(tensor, values[0])
        values = [value * (rank + 1) for rank, value in enumerate(values)]
        tensor.copy_(values[world.rank])


@on_ranks(4, environment=SMALL_BLOCKS)
def test_many_operations_are_in_flight(world: World) -> None:
    world.init()
    for round_ in range(5):
        inputs = [
            [cancelling(torch.float32, 3001 + 7 * i, rank, seed=round_) for i in range(9)]
            for rank in range(world.size)
        ]
        whole = fastcomm.empty(100_000)
        tensors = []
        for i, values in enumerate(inputs[world.rank]):  # neighbours, and every third is ordinary
            place = whole[10_000 * i :][: len(values)] if (i + world.rank) % 3 else values.clone()
            tensors.append(place.copy_(values))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        del whole
        for i in (8, *range(8)):
            works[i].wait()
            assert same_bits(tensors[i], tree_sum([values[i] for values in inputs])), (round_, i)
        # One after the other on the same memory.
        twice = fastcomm.empty(20_011).fill_(world.rank)
        works = [dist.all_reduce(twice, async_op=True) for _ in range(2)]
        works[1].wait()
        assert twice.eq(world.size * sum(range(world.size))).all()
        # Nobody but the operations holds them.
        dropped = [fastcomm.empty(50_000).fill_(rank) for rank in range(4)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in dropped]
        futures = [work.get_future() for work in works]
        del dropped, works
        for rank, future in enumerate(futures):
            assert future.wait()[0].eq(rank * world.size).all()


def _leaves_a_copy(tensor: torch.Tensor, value: float, asynchronous: bool) -> bool:
    """Tell whether this rank's input is still in its segment when the result overwrote it."""
    tensor.fill_(value)
    pattern = torch.full((64,), value, dtype=tensor.dtype).numpy().tobytes()
    _all_reduce(tensor, asynchronous)
    assert not tensor.eq(value).any()
    return holds(pattern)


def _copies(world: World, count: int) -> dict[str, bool]:
    world.init()
    pool = fastcomm.empty(count + 16)
    ways = {
        "whole": fastcomm.empty(count),
        "two dimensions": fastcomm.empty(200, count // 200),
        "shifted": pool[world.rank + 1 :][:count],
        "elsewhere in the segment": [fastcomm.empty(count + 10_000) for _ in range(world.rank + 1)][
            -1
        ],
        "complex": fastcomm.empty(count, dtype=torch.complex64),
        "float64": fastcomm.empty(count, dtype=torch.float64),
        "ordinary on one rank": fastcomm.empty(count) if world.rank else torch.empty(count),
        "ordinary": torch.empty(count),
        "with gaps": fastcomm.empty(2 * count)[::2],
    }
    found = {}
    value = 100.25 + world.rank
    for (name, tensor), asynchronous in product(ways.items(), (False, True)):
        how = f"{name}, {'asynchronous' if asynchronous else 'synchronous'}"
        value += 50
        found[how] = _leaves_a_copy(tensor, value, asynchronous)
    dist.destroy_process_group()
    world.init(name="second")
    found["whole, in a second group"] = _leaves_a_copy(ways["whole"], value + 50, False)
    return found


@pytest.mark.parametrize(
    ("size", "count", "one_shot_bytes"),
    [(2, 40_000, 64 << 10), (3, 40_000, 64 << 10), (2, 300_000, 4 << 20), (3, 300_000, 4 << 20)],
)
def test_nothing_is_staged_where_every_tensor_is_shared(
    size: int, count: int, one_shot_bytes: int
) -> None:
    """Both in blocks and in one step: more than 1 MiB."""
    environment = {**SMALL_SEGMENT, "FASTCOMM_ONE_SHOT_BYTES": str(one_shot_bytes)}
    if count > 40_000:
        environment["FASTCOMM_SEGMENT_MB"] = "128"
    staged = {"ordinary on one rank", "ordinary", "with gaps"}
    for found in run_ranks(size, _copies, count, environment=environment):
        assert {how.split(", ")[0] for how, copied in found.items() if copied} == staged
        assert {how.split(", ")[0] for how, copied in found.items() if not copied}.isdisjoint(
            staged
        )


@on_ranks(3)
def test_a_mismatch_touches_no_shared_tensor(world: World) -> None:
    wrong: list[tuple[int, torch.dtype, dist.ReduceOp.RedOpType]] = [
        (20_012, torch.float32, dist.ReduceOp.SUM),
        (20_011, torch.int32, dist.ReduceOp.SUM),
        (20_011, torch.float32, dist.ReduceOp.AVG),
    ]
    for number, odd in enumerate(wrong):
        world.init(name=f"store{number}")
        count, dtype, op = odd if world.rank == 1 else (20_011, torch.float32, dist.ReduceOp.SUM)
        tensor = fastcomm.empty(count, dtype=dtype).fill_(1)
        assert catch(dist.all_reduce, tensor, op=op).kind == "CollectiveMismatchError"
        dist.barrier(group=dist.new_group(backend="gloo"))
        assert tensor.eq(1).all()
        dist.destroy_process_group()


@on_ranks(4, environment=SMALL_BLOCKS)
def test_a_tensor_outlives_its_groups(world: World) -> None:
    inputs = [cancelling(torch.float32, 20_011, rank) for rank in range(world.size)]
    tensor = fastcomm.empty(20_011).copy_(inputs[world.rank])  # before there is any group
    for attempt in range(3):
        world.init(name=f"store{attempt}")
        _all_reduce(tensor, asynchronous=attempt % 2 == 1, op=dist.ReduceOp.AVG)
        inputs = [tree_sum(inputs, average=True)] * world.size
        assert same_bits(tensor, inputs[0])
        dist.destroy_process_group()
        assert same_bits(tensor, inputs[0])
        inputs = [inputs[0] * (rank + 1) for rank in range(world.size)]
        tensor.copy_(inputs[world.rank])


@on_ranks(2)
def test_memory_asked_of_the_backend_has_the_dtype_and_size_asked_for(world: World) -> None:
    """Ask for memory through Python, as FSDP2 does, and get what was asked for."""
    world.init()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128):
        tensor = backend.allocate_tensor(6, dtype=dtype, device=torch.device("cpu"))
        assert tensor.dtype == dtype and tensor.shape == (6,)
        assert fastcomm.is_shared(tensor)
