"""torch's CUDA tensors in a group of backend fastcomm, on a real GPU, which ranks share."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.direct import ON_DEVICES
from support.ranks import World, run_ranks

import fastcomm
from fastcomm._commands import env

pytestmark = pytest.mark.gpu


def test_env_names_the_device_and_what_it_reaches() -> None:
    text = env.format_text(env.collect())
    assert torch.cuda.get_device_name(0) in text


def _touched(world: World) -> bool:
    """True if this process, or the server it was forked from, has used the device."""
    return torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()


def test_ranks_find_the_device_untouched() -> None:
    """The server that ranks are forked from has torch loaded, but has not used the device."""
    assert run_ranks(2, _touched) == [False, False]


def _on_one_device(world: World) -> tuple[list[float], list[float], str, str]:
    world.init()
    total = torch.full((1000,), float(world.rank + 1), device="cuda")
    dist.all_reduce(total)
    root = torch.full((5,), float(world.rank), device="cuda")
    dist.broadcast(root, src=1)
    on_cpu = str(fastcomm.explain("all_reduce", torch.ones(1000)))
    return total.tolist(), root.tolist(), str(fastcomm.explain("all_reduce", total)), on_cpu


def test_operations_on_a_device_are_right_and_explained() -> None:
    answers = run_ranks(2, _on_one_device)
    for total, root, _, _ in answers:
        assert total == [3.0] * 1000
        assert root == [1.0] * 5
    for _, _, said, on_cpu in answers:
        if "native" not in on_cpu:  # a sandbox without shared memory
            pytest.skip(f"right, but by way of another engine: {on_cpu}")
        assert "native" in said and ON_DEVICES in said  # by kernels, though ranks share the GPU
