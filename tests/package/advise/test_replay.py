"""Timelines against what arithmetic says, and against a clock with small steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcomm._advise.replay import Message, Replayed, Speeds, replay

_seconds = st.floats(0.0, 1.0)
_speeds = st.builds(Speeds, *[st.floats(0.2, 1.0)] * 2)
_messages = st.lists(st.builds(Message, _seconds, _seconds), max_size=6).map(
    lambda messages: sorted(messages, key=lambda message: message.ready)
)


def _by_small_steps(backward: float, messages: list[Message], speeds: Speeds) -> Replayed:
    """Do the same as a clock would, in steps of a thousandth of a second."""
    step = 1e-3
    time = done = busy = 0.0
    computed = None if backward > 0 else 0.0
    left = [message.seconds for message in messages]
    while computed is None or any(left):
        under_way = next((n for n, seconds in enumerate(left) if seconds > 0), None)
        if under_way is not None and min(messages[under_way].ready, backward) > done:
            under_way = None
        both = under_way is not None and done < backward
        if under_way is not None:
            left[under_way] -= step * (speeds.communication if both else 1.0)
            left[under_way] = max(0.0, left[under_way])
            busy += step
        if done < backward:
            done = min(backward, done + step * (speeds.computation if both else 1.0))
        time += step
        if computed is None and done >= backward:
            computed = time
    return Replayed(computed, time, busy)


def test_what_fits_beside_the_computation_costs_nothing() -> None:
    messages = [Message(1.0, 2.0), Message(2.0, 3.0)]
    assert replay(10.0, messages) == Replayed(10.0, 10.0, 5.0)


def test_the_last_message_is_exposed() -> None:
    found = replay(10.0, [Message(1.0, 2.0), Message(10.0, 3.0)])
    assert found == Replayed(10.0, 13.0, 5.0) and found.exposed == 3.0


def test_messages_wait_for_those_before() -> None:
    assert replay(10.0, [Message(1.0, 8.0), Message(2.0, 8.0)]) == Replayed(10.0, 17.0, 16.0)


def test_where_cores_are_shared_nothing_is_hidden() -> None:
    """Each side at half its speed: as long as one after the other."""
    found = replay(10.0, [Message(4.0, 2.0)], Speeds(0.5, 0.5))
    assert found == Replayed(12.0, 12.0, 4.0)


def test_a_message_that_outlasts_the_computation_goes_on_at_full_speed() -> None:
    found = replay(10.0, [Message(8.0, 3.0)], Speeds(0.5, 0.25))
    assert found == Replayed(12.0, 14.0, 6.0)


def test_no_message() -> None:
    assert replay(3.0, []) == Replayed(3.0, 3.0, 0.0)


@settings(max_examples=30, deadline=None)
@given(_seconds, _messages, _speeds)
def test_small_steps_come_to_the_same(
    backward: float, messages: list[Message], speeds: Speeds
) -> None:
    found = replay(backward, messages, speeds)
    stepped = _by_small_steps(backward, messages, speeds)
    assert found.end == pytest.approx(stepped.end, abs=0.05)
    assert found.computed == pytest.approx(stepped.computed, abs=0.05)
    assert found.busy == pytest.approx(stepped.busy, abs=0.05)


@given(_seconds, _messages, _speeds)
def test_bounds(backward: float, messages: list[Message], speeds: Speeds) -> None:
    found = replay(backward, messages, speeds)
    total = sum(message.seconds for message in messages)
    assert found.end >= max(backward, found.computed) - 1e-9
    assert found.busy >= total - 1e-9
    alone = replay(backward, messages)
    assert alone.end <= found.end + 1e-9 and alone.computed == pytest.approx(backward)


@pytest.mark.parametrize("speed", [0.0, -1.0, 1.5, float("nan")])
def test_no_such_speed(speed: float) -> None:
    with pytest.raises(ValueError, match="a speed of"):
        Speeds(computation=speed)
