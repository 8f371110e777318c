"""Which optimizers may be divided by rows: the table agrees with steps on rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fastcomm.optim._elementwise import ELEMENTWISE, OTHERS, refuse_others


def _train(kind: Any, cut: int | None, **settings: Any) -> torch.Tensor:
    """Step on a whole matrix, or separately on its rows before and from ``cut``."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(16, 8, generator=generator)
    rows = [whole] if cut is None else [whole[:cut], whole[cut:]]
    parameters = [nn.Parameter(part.clone()) for part in rows]
    optimizer = kind(parameters, **settings)
    for _ in range(4):
        grad = torch.randn(16, 8, generator=generator)
        grads = [grad] if cut is None else [grad[:cut], grad[cut:]]
        for parameter, part in zip(parameters, grads, strict=True):
            parameter.grad = part.clone()
        optimizer.step()
    return torch.cat([parameter.detach() for parameter in parameters])


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE, key=repr))
def test_a_step_on_rows_is_that_on_the_whole(kind: Any) -> None:
    assert torch.equal(_train(kind, None, lr=0.1), _train(kind, 8, lr=0.1))
    refuse_others(kind, elementwise=False)
    refuse_others(partial(kind, lr=0.1), elementwise=False)


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_others_step_otherwise_on_rows(name: str) -> None:
    kind = getattr(torch.optim, name)
    assert not torch.allclose(_train(kind, None, lr=0.1), _train(kind, 8, lr=0.1), rtol=1e-3)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("elementwise", [False, True])
def test_others_are_refused_by_name(name: str, elementwise: bool) -> None:
    with pytest.raises(ValueError, match=f"torch.optim.{name} cannot be divided by rows"):
        refuse_others(getattr(torch.optim, name), elementwise)


def test_every_optimizer_of_torch_is_in_the_table() -> None:
    classes = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    del classes["Optimizer"]
    known = ELEMENTWISE | {kind for name, kind in classes.items() if name in OTHERS}
    assert set(classes.values()) == known


class Mine(torch.optim.Adam):
    pass


def test_what_is_not_known_needs_a_word() -> None:
    with pytest.raises(ValueError, match=r"Mine is not known .* elementwise=True"):
        refuse_others(Mine, elementwise=False)
    refuse_others(Mine, elementwise=True)


def test_an_optimizer_is_no_class() -> None:
    made = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(TypeError, match=r"a class, torch\.optim\.SGD for instance"):
        refuse_others(made, elementwise=False)
