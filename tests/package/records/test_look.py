"""What a second look tells: which processes use the processor."""

from __future__ import annotations

import time

import pytest

from fastcomm._records.look import Looks
from fastcomm._records.processes import Process


def _process(state: str, cpu: float, start_time: int = 5) -> Process:
    return Process(7, 7, 0, state, start_time, cpu, "train")


@pytest.mark.parametrize(
    ("first", "second", "is_busy"),
    [
        (_process("S", 1.0), _process("S", 1.0), False),
        (_process("S", 1.0), _process("S", 1.05), True),
        (_process("S", 1.0), _process("R", 1.0), False),  # it woke up in that moment
        (_process("R", 1.0), _process("S", 1.01), False),
        (_process("R", 1.0), _process("R", 1.01), True),  # the machine is crowded
        (_process("R", 1.0), _process("R", 1.0), False),
        (_process("R", 1.0), _process("R", 1.9, start_time=6), False),  # another one
    ],
)
def test_who_is_busy(
    first: Process, second: Process, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 10.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    looks = Looks()
    assert looks._busy([first]) == set()
    assert looks._busy([second]) == ({7} if is_busy else set())
