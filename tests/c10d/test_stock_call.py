"""What is checked before Gloo works: that the calls agree, and what one rank alone gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support import disagreement
from support.caught import Caught, catch
from support.ranks import World, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

DISAGREEMENTS: disagreement.Disagreements = {
    "one goes to Gloo": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.SUM),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        "all_reduce(sum",
        "all_reduce(max",
    ),
    "one goes to Gloo, asynchronous": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait(),
        lambda x: dist.broadcast(x, src=1, async_op=True).wait(),
        "all_reduce(max",
        "broadcast",
    ),
    "reduction": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MIN),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        "min",
        "max",
    ),
    "complex dtype": (
        lambda x: dist.reduce(x.view(torch.complex64), dst=1),
        lambda x: dist.reduce(x.view(torch.complex128), dst=1),
        "complex64",
        "complex128",
    ),
    "root": (
        lambda x: dist.reduce(x, dst=0),
        lambda x: dist.reduce(x, dst=1),
        "root 0",
        "root 1",
    ),
    "size": (
        lambda x: dist.all_gather_into_tensor(torch.empty(4 * dist.get_world_size()), x[:4]),
        lambda x: dist.all_gather_into_tensor(torch.empty(6 * dist.get_world_size()), x[:6]),
        "4 elements",
        "6 elements",
    ),
    "scatter": (
        lambda x: dist.scatter(x[:4], list(x.view(-1, 4)[: dist.get_world_size()].clone()), src=0),
        lambda x: dist.scatter(x[:6], src=0),
        "4 elements",
        "6 elements",
    ),
    "reduce_scatter dtype": (
        lambda x: dist.reduce_scatter_tensor(x[:4], x[: 4 * dist.get_world_size()].clone()),
        lambda x: dist.reduce_scatter_tensor(
            x[:4].view(torch.int32), x[: 4 * dist.get_world_size()].view(torch.int32).clone()
        ),
        "float32",
        "int32",
    ),
    "split sizes": (
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone(), [2, 2, 2], [2, 2, 2]),
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone(), [1, 3, 2], [2, 2, 2]),
        "sends [2, 2, 2], expects [2, 2, 2]",
        "sends [2, 2, 2], expects [1, 3, 2]",
    ),
    "equal parts of other sizes": (
        lambda x: dist.all_to_all_single(x[:3], x[6:9].clone()),
        lambda x: dist.all_to_all_single(x[:6], x[6:12].clone()),
        "sends [1, 1, 1], expects [1, 1, 1]",
        "sends [2, 2, 2], expects [2, 2, 2]",
    ),
    "shape list": (
        lambda x: dist.all_reduce_coalesced([x[:4], x[4:10]]),
        lambda x: dist.all_reduce_coalesced([x[:6], x[6:10]]),
        "in tensors of [4, 6]",
        "in tensors of [6, 4]",
    ),
    "operation": (
        lambda x: dist.gather(x, [torch.empty(48) for _ in range(dist.get_world_size())], dst=0),
        lambda x: dist.reduce(x, dst=0),
        "gather",
        "reduce",
    ),
    "a call more": (
        lambda x: (dist.reduce(x.clone(), dst=0), dist.reduce(x, dst=0)),
        lambda x: (dist.reduce(x.clone(), dst=0), dist.barrier()),
        "reduce(",
        "barrier()",
    ),
}


def _disagree(world: World) -> disagreement.Told:
    return disagreement.play(world, DISAGREEMENTS, 48)


def test_ranks_that_disagree_all_hear_it_and_keep_their_memory() -> None:
    disagreement.check(run_ranks(3, _disagree), DISAGREEMENTS)


def _refuse(world: World) -> list[Caught]:
    """Root lists that do not fit are refused before anything is sent; the group stays usable."""
    world.init()
    x = torch.ones(3)
    lists = [[torch.ones(3)], [torch.ones(3), torch.ones(4)]]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    caught = []
    if world.rank == 0:
        caught = [catch(backend.gather, [entry], [x], dist.GatherOptions()) for entry in lists]
        caught += [catch(dist.all_to_all_single, x, x.clone(), [1, 1], [2, 1])]
    dist.reduce(x, dst=0)
    assert world.rank != 0 or x.tolist() == [2.0] * 3
    return caught


def test_what_one_rank_gives_alone_is_checked_before_the_ranks_meet() -> None:
    caught = run_ranks(2, _refuse)[0]
    assert [error.kind for error in caught[:2]] == ["CollectiveArgumentError"] * 2
    assert len(caught) == 3
