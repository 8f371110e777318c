"""The training benchmark's model does not see the bytes that it is to guess."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from support import script


@pytest.fixture(scope="module")
def small() -> ModuleType:
    return script.load("small_transformer")


def test_a_byte_changes_nothing_before_it(small: ModuleType) -> None:
    torch.manual_seed(1)
    model = small.Transformer(width=16, layers=2, heads=2)
    text = torch.randint(small.VOCABULARY, (3, 12))
    other = text.clone()
    other[:, 7] = (other[:, 7] + 1) % small.VOCABULARY
    first, second = model(text), model(other)
    torch.testing.assert_close(first[:, :7], second[:, :7])
    assert all(not torch.equal(first[:, place], second[:, place]) for place in range(7, 12))


def test_the_loss_is_that_of_the_next_byte(small: ModuleType) -> None:
    class Knows(torch.nn.Module):
        """Gives all the weight to the byte after each, in a text that counts."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 100.0 * torch.nn.functional.one_hot(x + 1, small.VOCABULARY)

    counting = torch.arange(40, 52).repeat(2, 1)
    assert small.next_byte_loss(Knows(), counting) < 1e-6
    assert small.next_byte_loss(Knows(), counting.flip(1)) > 99


def test_it_is_as_large_as_it_says(small: ModuleType) -> None:
    assert sum(p.numel() for p in small.Transformer().parameters()) == 875_520
