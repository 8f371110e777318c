"""Choice of a candidate."""

from __future__ import annotations

import pytest

from fastcomm.tune import candidates


def test_scores_are_ratios_to_the_best_of_each_message() -> None:
    # A candidate that is half as fast for one message and twice as fast for another gains nothing.
    assert candidates.scores([[1.0, 2.0], [400.0, 200.0]]) == pytest.approx([2**0.5, 2**0.5])
    assert candidates.scores([[3.0], [4.0]]) == [1.0]


@pytest.mark.parametrize(
    ("scored", "index"), [([1.0, 1.0], 0), ([1.029, 1.0], 0), ([1.04, 1.0], 1), ([2, 1.5, 1.0], 2)]
)
def test_the_default_stays_unless_another_is_clearly_better(
    scored: list[float], index: int
) -> None:
    assert candidates.best(scored) == index
    assert candidates.best(scored, 0.6) == (index if scored[0] > 1.6 else 0)


STEPS = [candidates.ON_THE_HOST, candidates.ON_DEVICES, candidates.BETWEEN_HOSTS]


@pytest.mark.parametrize("steps", STEPS)
def test_steps(steps: tuple[candidates.Step, ...]) -> None:
    """Shares add up to one; every step has the default first, and something to choose."""
    assert sum(step.share for step in steps) == pytest.approx(1)
    for step in steps:
        assert step.candidates[0] == {} and len(step.candidates) > 1 and step.messages
