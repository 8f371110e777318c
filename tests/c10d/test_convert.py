"""Tensors of every layout arrive where the user looks: views, complex, empty, misaligned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.on_ranks import on_ranks
from support.ranks import World

SIZES = (12, 40_000)  # one-shot and pipelined


def _base(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) % 101


def _misaligned(count: int) -> torch.Tensor:
    raw = torch.zeros(count * 4 + 1, dtype=torch.uint8)
    view = torch.frombuffer(raw.numpy(), dtype=torch.float32, count=count, offset=1)
    return view.copy_(_base(count))


# Each returns a tensor with about `count` elements; the values do not depend on the rank.
LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "contiguous": _base,
    "transposed": lambda n: _base(n).view(4, -1).t(),
    "every third": lambda n: _base(3 * n)[::3],
    "flipped columns": lambda n: _base(2 * n).view(-1, 4)[:, 1:3],
    "channels last": lambda n: _base(n).view(1, 2, 2, -1).to(memory_format=torch.channels_last),
    "storage offset": lambda n: _base(n + 3)[3:],
    "misaligned": _misaligned,
    "complex": lambda n: torch.complex(_base(n), -_base(n)),
    "conjugated": lambda n: torch.complex(_base(n), _base(n) + 1).conj(),
    "negative view": lambda n: torch.complex(_base(n), _base(n) + 1).conj().imag,
    "complex transposed": lambda n: torch.complex(_base(n), -_base(n)).view(4, -1).t(),
    "requires grad": lambda n: _base(n).requires_grad_(),
    "zero-dimensional": lambda n: torch.tensor(3.0),
    "zero elements": lambda n: torch.empty(0, 5),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@on_ranks(3)
def test_every_layout_arrives(world: World, asynchronous: bool) -> None:
    world.init()
    total = float(sum(range(1, world.size + 1)))
    for name, make in LAYOUTS.items():
        for count in SIZES:
            case = f"{name}, {count}"
            want = make(count).detach()

            def mine(
                rank: int = world.rank, want: torch.Tensor = want, make: Any = make, n: Any = count
            ) -> Any:
                tensor = make(n)
                with torch.no_grad():
                    tensor.copy_(want * (rank + 1))
                return tensor

            tensor = mine()
            _all_reduce(tensor, asynchronous)
            assert torch.equal(tensor.detach(), want * total), case
            if tensor.is_conj() or tensor.is_neg():
                continue  # not possible through torch.distributed
            tensor = mine()
            _run(dist.broadcast(tensor, src=1, async_op=asynchronous))
            assert torch.equal(tensor.detach(), want * 2), case
            parts = [make(count) for _ in range(world.size)]
            _run(dist.all_gather(parts, mine(), async_op=asynchronous))
            for peer, part in enumerate(parts):
                assert torch.equal(part.detach(), want * (peer + 1)), case


def _all_reduce(tensor: torch.Tensor, asynchronous: bool) -> None:
    if tensor.is_conj() or tensor.is_neg():  # what is written does not get past the dispatcher
        dist.group.WORLD._get_backend(tensor.device).allreduce([tensor]).wait()
    else:
        _run(dist.all_reduce(tensor, async_op=asynchronous))


def _run(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


@on_ranks(2)
def test_memory_beside_a_view_is_untouched(world: World) -> None:
    """Check that memory between and beside the elements of a view stays as it is."""
    world.init()
    whole = torch.full((1000, 7), -1.0)
    view = whole[10:990:2, 2:5]
    view.fill_(world.rank + 1)
    dist.all_reduce(view)
    expected = torch.full((1000, 7), -1.0)
    expected[10:990:2, 2:5] = 3
    assert torch.equal(whole, expected)
