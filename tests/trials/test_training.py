"""Random training over fastcomm and over Gloo, compared. `trials.training` replays a trial."""

from __future__ import annotations

import pytest
import torch
from trials.launch import check
from trials.training import TRIALS, Ended, judge


def test_the_judge_sees_one_bit() -> None:
    state = [("w", torch.ones(3)), ("n", torch.tensor([1.0, float("nan")]))]
    other = [("w", torch.tensor([1.0, 1.0, 1.0 + 2**-23])), state[1]]
    assert not judge(Ended([0.5], state), Ended([0.5], state))
    assert judge(Ended([0.5], other), Ended([0.5], state)).startswith("w:")
    assert judge(Ended([0.5 + 2**-53], state), Ended([0.5], state)).startswith("losses")
    assert judge(Ended([0.5], state[:1]), Ended([0.5], state)).startswith("values")


def test_random_training() -> None:
    check(TRIALS, 0, 60)


@pytest.mark.release
@pytest.mark.parametrize("hundred", range(10))
def test_more_random_training(hundred: int) -> None:
    check(TRIALS, 100 * hundred, 100)
