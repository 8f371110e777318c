"""Stock DistributedDataParallel over fastcomm: Gloo's bits at two ranks, stable bits beyond."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.ranks import World, run_ranks
from support.training import VARIANTS, train

# Losses as exact text, and a digest of the final state.
Result = tuple[list[str], str]


def _digest(state: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for value in state:
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _train_all(
    world: World, backends: list[str], variants: list[str], detail: bool = False
) -> list[dict[str, Result]]:
    """Train every variant over every backend in turn; one process start serves them all."""
    results = []
    for number, backend in enumerate(backends):
        if detail:
            dist.set_debug_level(dist.DebugLevel.DETAIL)
        world.init(backend, name=f"store{number}")
        trained = {}
        for name in variants:
            losses, state = train(VARIANTS[name], world.rank)
            assert all(value.isfinite().all() for value in state), name
            trained[name] = ([loss.hex() for loss in losses], _digest(state))
        results.append(trained)
        dist.barrier()
        dist.destroy_process_group()
    return results


def _has_statistics(variant: str) -> bool:
    how = VARIANTS[variant]
    return hasattr(how.model, "statistics") and not how.uneven  # join() broadcasts at its end


@pytest.fixture(scope="module")
def two_ranks() -> Any:
    backends = ["gloo", "fastcomm", "fastcomm"]
    return run_ranks(2, _train_all, backends, list(VARIANTS))


@pytest.fixture(scope="module")
def four_ranks() -> Any:
    return run_ranks(4, _train_all, ["fastcomm", "fastcomm"], list(VARIANTS))


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_have_the_bits_of_gloo(two_ranks: Any, variant: str) -> None:
    for gloo, first, second in two_ranks:
        assert first[variant] == gloo[variant]
        assert second[variant] == gloo[variant]
    states = {run[variant][1] for rank in two_ranks for run in rank}
    # Running statistics are each rank's own after the last step, as with Gloo.
    assert len(states) == (2 if _has_statistics(variant) else 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_four_ranks_agree_and_repeat(four_ranks: Any, variant: str) -> None:
    for first, second in four_ranks:
        assert first[variant] == second[variant]
    states = {rank[0][variant][1] for rank in four_ranks}
    assert len(states) == (4 if _has_statistics(variant) else 1)


def test_debug_detail_changes_nothing() -> None:
    names = ["default", "find_unused_parameters", "batch norm", "complex"]
    plain = run_ranks(2, _train_all, ["gloo"], names)
    detailed = run_ranks(2, _train_all, ["fastcomm"], names, True)
    assert plain == detailed
