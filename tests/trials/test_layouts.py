"""Mistakes that the oracle of the random collectives must notice."""

from __future__ import annotations

import pytest
import torch
from trials.collectives import Ended, difference, judge
from trials.launch import GROUPS
from trials.layouts import FORMS, MEMORY, Laid, Layout
from trials.operations import draw_spec

SHAPE = (2, 3, 4, 5)


def _values(form: str) -> torch.Tensor:
    dtype = torch.complex64 if form == "conjugated" else torch.float32
    return torch.arange(1.0, 121.0).to(dtype).view(SHAPE)


@pytest.mark.parametrize("form", ["plain", *FORMS])
def test_a_wrong_element_is_seen(form: str) -> None:
    laid = Laid(_values(form), Layout(form))
    assert laid.trouble() == ""
    laid.given[0, 1, 2, 3] += 1
    assert "found" in laid.trouble()


@pytest.mark.parametrize("form", ["offset", "strided", "sliced", "negated with gaps"])
@pytest.mark.parametrize("memory", sorted(set(MEMORY)))
def test_a_byte_beside_is_seen(form: str, memory: str) -> None:
    laid = Laid(_values(form), Layout(form, memory))
    taken = torch.zeros(len(laid.base))
    laid._view(taken).fill_(1.0)
    laid.base[(taken == 0).nonzero()[-1]] += 1
    assert "beside" in laid.trouble()


def test_errors_are_judged() -> None:
    specs = [draw_spec(seed, GROUPS) for seed in range(300)]
    refused = next(spec for spec in specs if spec.refused)
    fine = next(spec for spec in specs if not spec.refused)
    refusal = Ended(error="UnsupportedError: sum")
    assert judge(fine, Ended()) == "" == judge(refused, refusal)
    assert judge(fine, refusal) and judge(fine, Ended(wrong="x")) and judge(refused, Ended())
    assert judge(refused, Ended(error="UnsupportedError: sum", wrong="touched"))
    assert "fastcomm alone" in difference(fine, refusal, Ended())
    assert "Gloo alone" in difference(fine, Ended(), refusal)
