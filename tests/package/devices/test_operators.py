"""torch.ops.fastcomm: what torch checks of an operator, and torch.compile over the primitives."""

from __future__ import annotations

import pytest
import torch

from fastcomm import comm
from fastcomm._devices import operators as _operators

OPERATORS = torch.ops.fastcomm


def _tensors() -> list[torch.Tensor]:
    return [
        torch.randn(3, 4, requires_grad=True),
        torch.randn(5, 2, dtype=torch.float64, requires_grad=True).t(),
        torch.arange(7),
        torch.randn(0),
    ]


def test_opcheck() -> None:
    assert _operators.__doc__
    torch.library.opcheck(OPERATORS.broadcast_coalesced.default, (_tensors()[:2], [-1, -1]))
    torch.library.opcheck(OPERATORS.broadcast_coalesced.default, (_tensors()[2:], [-1]))
    twice = [*_tensors()[:2], *_tensors()[:2]]
    torch.library.opcheck(OPERATORS.reduce_add_coalesced.default, (twice, 2, -1))


def test_wrong_arguments() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)cuda|nvidia"):
        OPERATORS.broadcast_coalesced([torch.ones(1)], [3])
    with pytest.raises(RuntimeError, match="3 tensors from 2 sources"):
        OPERATORS.reduce_add_coalesced([torch.ones(1)] * 3, 2, -1)


def test_what_our_kernels_do_not_do_torch_does() -> None:
    phases = torch.tensor([1j, 2.0])
    copies = OPERATORS.broadcast_coalesced([phases, torch.ones(2)], [-1, -1])
    assert torch.equal(copies[2], phases) and copies[2].data_ptr() != phases.data_ptr()
    (total,) = OPERATORS.reduce_add_coalesced([phases, phases, phases], 3, -1)
    assert torch.equal(total, 3 * phases)


def test_compile_traces_the_primitives() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        _, (a, b) = comm.broadcast_coalesced([x, y], ["cpu", "cpu"])
        (total,) = comm.reduce_add_coalesced([[a], [x]])
        chunks = comm.scatter(total * 2, ["cpu", "cpu"])
        return comm.gather(chunks, destination="cpu") + comm.reduce_add([b, y]).sum()

    torch.compiler.reset()
    x, y = torch.randn(4, 3), torch.randn(5)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), step(x, y))
