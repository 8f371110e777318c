"""Calls in which the ranks disagree, and what each rank then finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from support.caught import Caught, catch
from support.ranks import World

Call = Callable[[torch.Tensor], Any]
# What rank 0 calls, what the others call, and what of each must be in the message.
Disagreements = dict[str, tuple[Call, Call, str, str]]
Told = dict[str, tuple[Caught, bool]]  # the error, and whether the tensor is as it was


def play(world: World, disagreements: Disagreements, elements: int) -> Told:
    """Play each disagreement in a group of its own, with a float32 tensor."""
    told = {}
    for number, (name, (first, others, _, _)) in enumerate(disagreements.items()):
        world.init(name=f"store{number}")
        tensor = torch.arange(elements, dtype=torch.float32) + world.rank
        before = tensor.clone()
        caught = catch(first if world.rank == 0 else others, tensor)
        told[name] = (caught, torch.equal(tensor, before))
        dist.destroy_process_group()
    return told


def check(told_of_ranks: list[Told], disagreements: Disagreements) -> None:
    """Check that every rank got the mismatch with both calls in it, and kept its memory."""
    for rank, told in enumerate(told_of_ranks):
        for name, (caught, untouched) in told.items():
            assert caught.kind == "CollectiveMismatchError", (rank, name, caught)
            for part in disagreements[name][2:]:
                assert part in caught.text, (rank, name, caught.text)
            assert untouched, (rank, name)
