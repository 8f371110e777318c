"""What a rank notes of Ctrl-C: whether it struck in an operation, or had come too late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from faults.player import Player
from faults.report import Result
from faults.schedule import WORLD, Fault, Op, Schedule, Step
from torch._C._distributed_c10d import ErrorType
from trials.case import Case


def _player(failed: bool, asynchronous: bool) -> Player:
    steps = (Step(0, asynchronous, False),)
    op = Op(WORLD, "all_reduce", "float32", 3)
    player: Any = Player(
        Schedule(0, 2, "small blocks", ((0, 1),), (op,), (steps, steps), Fault("interrupt", 0, 0)),
        0,
        cast(Any, None),
    )
    error = ErrorType.COMM_ERROR if failed else ErrorType.SUCCESS
    backend = SimpleNamespace(get_error=lambda: error)
    player.groups = [SimpleNamespace(_get_backend=lambda device: backend)]
    return player


def _raised(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_ctrl_c_after_the_end_of_an_operation_is_no_fault(
    failed: bool, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(_raised, objects=lambda: "" if right else "a wrong sum")
    monkeypatch.setattr("faults.operations.bind", lambda *arguments: case)
    struck = failed or not right

    player: Any = _player(failed, True)
    waits = [_raised, lambda: None]
    result = Result(0, WORLD, 0.0, 0.0)
    player.pending[0] = (SimpleNamespace(wait=lambda: waits.pop(0)()), case, result)
    player._wait(0, None)
    assert (result.interrupted > 0) == struck

    player = _player(failed, False)
    player._issue(player.schedule.ops[0], player.schedule.steps[0][0])
    (result,) = player.ended.results
    assert (result.interrupted > 0) == struck == (result.error is not None)
