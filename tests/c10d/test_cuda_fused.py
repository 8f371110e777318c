"""Lists of gradients reduced from device to device. On simulated devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.direct import init, joined, never_by_the_host, small_net, train
from support.fused import OPTIONS, check_fused, gradients, moved
from support.ranks import World, run_outcomes, run_ranks
from support.tree import same_bits
from torch import nn

import fastcomm
from fastcomm._gradients.shards import row_offsets
from fastcomm.ddp_comm_hooks import FusedState, fused_hook

pytestmark = pytest.mark.usefixtures("simulated")

# Several rounds for some lists; one launch for a few.
SMALL = {"FASTCOMM_WINDOW_BYTES": "65536", "FASTCOMM_ONE_SHOT_BYTES": "8192"}


def _joined(world: World) -> torch.device:
    """Join; from then on nothing goes through the host."""
    device = joined(world)
    never_by_the_host()
    return device


def _explained(world: World) -> None:
    device = _joined(world)
    for count, algorithm in ((10, "one-shot"), (100_000, "pipelined")):
        told = fastcomm.explain("fused_all_reduce", torch.ones(count, device=device))
        assert told.native and told.algorithm == algorithm and "they meet" in told.reason, told
        assert ("this rank's tensor is staged" in told.reason) == (algorithm == "pipelined"), told
    there = fastcomm.empty(100_000, device=device)
    assert "this rank's tensor is used where it lies" in fastcomm.explain("broadcast", there).reason
    assert "this rank" not in fastcomm.explain("all_reduce", there, op="max").reason


def test_explain_tells_of_it() -> None:
    run_ranks(2, _explained)


def _bits(world: World) -> None:
    device = _joined(world)
    for seed, options in enumerate(OPTIONS):
        grads = gradients(world.rank, seed)
        if options.get("norm_type") in (1, math.inf):
            grads = grads[:-1]  # no complex ones
        there = moved(grads, device)
        work_is_there = seed % 2 == 0
        found = fastcomm.fused_all_reduce_([None, *there], **options, async_op=work_is_there)
        assert (found.work is not None) == work_is_there
        found.wait()
        expected = fastcomm.fused_all_reduce_(grads, **options)
        check_fused(found, expected, device)
        for i, (a, b) in enumerate(zip(there, grads, strict=True)):
            assert a.stride() == b.stride() and same_bits(a.cpu(), b), (options, i)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_bits_of_the_cpu(size: int) -> None:
    """Every type and layout, on the wire as they are and rounded; norms and flags too."""
    run_ranks(size, _bits, environment=SMALL)


def test_the_bits_of_the_cpu_by_pinned_memory() -> None:
    run_ranks(3, _bits, environment={**SMALL, "FASTCOMM_ROUTE": "pinned"})


def _buckets(world: World) -> None:
    """Reduce gradients that lie end to end, in memory that all, some or no ranks have mapped."""
    device = _joined(world)
    counts = [7, 3000, 64, 4097, 1]
    for count in (sum(counts), 5):
        for shared_by in (range(world.size), range(1, world.size), range(0)):
            whole = torch.randn(count, generator=torch.Generator().manual_seed(world.rank))
            memory = fastcomm.empty(count, device=device)
            if world.rank not in shared_by:
                memory = torch.empty(count, device=device)
            bucket = memory.copy_(whole)
            lengths = counts if count > 5 else [2, 3]
            for options in OPTIONS[:2]:
                found = fastcomm.fused_all_reduce_(list(bucket.split(lengths)), **options)
                expected = fastcomm.fused_all_reduce_(list(whole.split(lengths)), **options)
                assert same_bits(bucket.cpu(), whole)
                check_fused(found, expected, device)


@pytest.mark.parametrize("size", [2, 3])
def test_buckets_are_used_where_they_lie(size: int) -> None:
    run_ranks(size, _buckets, environment=SMALL)


def _error_feedback(world: World) -> None:
    """Keep what rounding takes away; then from an infinity, and from a NaN, nothing."""
    device = _joined(world)
    sizes = [5000, 3, 0, 4097]
    kept = [torch.zeros(n) for n in sizes]
    kept_there = moved(kept, device)
    for step in range(3):
        generator = torch.Generator().manual_seed(90 * step + world.rank)
        grads = [torch.randn(n, generator=generator) for n in sizes]
        if step > 0 and world.rank == 1:  # which leaves no residual
            grads[(step - 1) * 3][4095] = (math.inf, math.nan)[step - 1]
        there = moved(grads, device)
        options: dict[str, Any] = {"comm_dtype": torch.bfloat16, "scale": 0.5}
        found = fastcomm.fused_all_reduce_(there, **options, residuals=kept_there)
        expected = fastcomm.fused_all_reduce_(grads, **options, residuals=kept)
        check_fused(found, expected, device)
        assert found.found_inf.item() == (step > 0)
        for a, b in zip([*there, *kept_there], [*grads, *kept], strict=True):
            assert same_bits(a.cpu(), b), step
    with pytest.raises(ValueError, match="residual"):
        fastcomm.fused_all_reduce_(there, comm_dtype=torch.float16, residuals=kept)


def test_error_feedback() -> None:
    run_ranks(2, _error_feedback)


def _shards(world: World) -> None:
    """Check that what a rank owns has the bits of the whole, and so do the norms."""
    device = _joined(world)
    grads = gradients(world.rank)[:7]
    offsets = [row_offsets(grad, world.size) for grad in grads]
    there = moved(grads, device)
    found = fastcomm.fused_reduce_scatter_(there, offsets)
    expected = fastcomm.fused_all_reduce_(grads)
    check_fused(found, expected, device)
    for a, b, cut in zip(there, grads, offsets, strict=True):
        own = slice(cut[world.rank], cut[world.rank + 1]) if cut else slice(None)
        assert same_bits(a.cpu().flatten()[own], b.flatten()[own])


def test_each_rank_its_own_part() -> None:
    run_ranks(3, _shards, environment=SMALL)


def _gathered(world: World) -> None:
    """Gather shards of several types, of which some ranks have none; and those of one rank."""
    device = _joined(world)
    whole = [
        tensor for tensor in gradients(0) if tensor.is_contiguous() and not tensor.is_complex()
    ]
    whole.append(torch.arange(50_000.0))
    for lone in (False, True):
        offsets = [row_offsets(tensor, world.size) for tensor in whole]
        if lone:
            offsets = [[0] * world.size + [tensor.numel()] for tensor in whole]
        here = []
        for tensor, cut in zip(whole, offsets, strict=True):
            mine = torch.full_like(tensor, -1.0) if cut else tensor.clone()
            own = slice(cut[world.rank], cut[world.rank + 1]) if cut else slice(0)
            mine.view(-1)[own] = tensor.view(-1)[own]
            here.append(mine)
        there = moved(here, device)
        fastcomm.gather_shards_(there, offsets)
        for tensor, found in zip(whole, there, strict=True):
            assert same_bits(found.cpu(), tensor), (lone, tensor.shape)


@pytest.mark.parametrize("size", [2, 3])
def test_shards_are_gathered(size: int) -> None:
    run_ranks(size, _gathered, environment=SMALL)


def _several_places(world: World) -> list[list[float]]:
    """Reduce a list on several devices, and one of integers: through the host, or refused."""
    device = init(world)
    other = torch.device("sim", world.size)
    grads = [torch.full((3,), float(world.rank), device=d) for d in (device, other, "cpu")]
    found = fastcomm.fused_all_reduce_(grads)
    assert found.found_inf.item() == 0
    alone = [torch.full((3,), float(world.rank), device=device)]
    assert fastcomm.fused_all_reduce_(alone, average=False).partial_norms.numel() == 1
    assert alone[0].tolist() == [world.size * (world.size - 1) / 2] * 3
    with pytest.raises(ValueError, match="not floating-point"):
        fastcomm.fused_all_reduce_([torch.ones(3, dtype=torch.int32, device=device)])
    if world.size > 1:  # copies share no memory
        with pytest.raises(ValueError, match="gradients 0 and 1 share memory"):
            fastcomm.fused_all_reduce_([grads[0], grads[0][1:]])
    return [grad.tolist() for grad in grads]


@pytest.mark.parametrize("size", [1, 2])
def test_lists_of_several_devices(size: int) -> None:
    assert run_ranks(size, _several_places) == [[[(size - 1) / 2] * 3] * 3] * size


def _mismatch(world: World, kind: str) -> tuple[Caught, bool, float]:
    device = _joined(world)
    grads = [torch.full((5, 4), 7.0, device=device), torch.full((5000,), 7.0, device=device)]
    options: dict[str, Any] = {}
    if world.rank == 1:
        if kind == "shape":
            grads[0] = torch.full((4, 5), 7.0, device=device)
        elif kind == "scale":
            options = {"scale": 2.0}
        elif kind == "count":
            grads = grads[1:]
    result = fastcomm.fused_all_reduce_(grads, **options, async_op=True)
    torch.sim.synchronize()
    caught = catch(result.wait)
    is_nan = all(bool(grad.isnan().all().item()) for grad in grads)
    return caught, is_nan, result.found_inf.item()


@pytest.mark.parametrize("kind", ["shape", "scale", "count"])
def test_lists_that_differ_are_an_error(kind: str) -> None:
    """And their flag tells an optimizer that nobody else has told."""
    for caught, is_nan, found_inf in run_ranks(2, _mismatch, kind, environment=SMALL):
        assert caught.kind == "CollectiveMismatchError", caught
        words = "5000 elements" if kind == "count" else "with tensors of other shapes"
        assert "fused_all_reduce(avg, 50" in caught.text and words in caught.text, caught
        assert is_nan and found_inf == 1.0


def _left_alone(world: World) -> tuple[str, bool, float] | None:
    """Leave one rank out; a later call of the others fails at once."""
    device = _joined(world)
    if world.rank == 1:
        return None
    grads = [torch.ones(50, device=device), torch.ones(20000, device=device)]
    result = fastcomm.fused_all_reduce_(grads, comm_dtype=torch.bfloat16, async_op=True)
    torch.sim.synchronize()
    caught = catch(result.wait)
    assert catch(fastcomm.fused_all_reduce_, grads).kind == caught.kind
    is_nan = all(bool(grad.isnan().all().item()) for grad in grads)
    return caught.kind, is_nan, result.found_inf.item()


def test_a_rank_that_leaves() -> None:
    outcomes = run_outcomes(2, _left_alone, environment=SMALL)
    assert outcomes[0].value == ("PeerLeftError", True, 1.0), outcomes[0]


def _hooked(world: World) -> None:
    """Use a hook of stock DDP, in a group whose buckets lie where all have mapped them."""
    device = _joined(world)
    # As if the group were "fastcomm" alone, which torch takes for "cpu" and "cuda".
    dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    model = small_net().to(device)
    ddp = nn.parallel.DistributedDataParallel(model)
    state = FusedState(model.parameters(), max_norm=1e-3)
    ddp.register_comm_hook(state, fused_hook)
    reduce, lies_there = state._reduce, []

    def noted(bucket):  # type: ignore[no-untyped-def]  # torch would refuse annotations that are strings
        lies_there.append(fastcomm.is_shared(bucket.buffer()))
        return reduce(bucket)

    state._reduce = noted  # type: ignore[method-assign]
    train(world, ddp, device)
    flat = torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])
    assert float(torch.linalg.vector_norm(flat)) <= 1.001e-3
    assert lies_there and all(lies_there)
    total = state.result().total_norm
    assert total is not None and total.item() > 1e-3


def test_the_hook_of_stock_ddp() -> None:
    run_ranks(2, _hooked)
