"""All numbers of ranks in turn, each by ranks of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastcomm._machine.tuning import Key
from fastcomm._measure.launch import launch
from fastcomm.tune.candidates import ON_DEVICES, ON_THE_HOST, Step
from fastcomm.tune.ranks import run_rank

Row = dict[str, Any]
_STARTS_S = 900.0  # on a busy machine, too


@dataclass(frozen=True)
class Options:
    """The measurements that are asked for.

    Attributes:
        ranks: numbers of ranks on the host, each at least 2.
        devices: numbers of ranks on devices, each at least 2; ranks above the number of devices
            share them.
        budget_s: seconds of timing for each number of ranks.
        host_steps: choices on the host.
        device_steps: choices on devices.
        prepare: called first in each rank; importable, since ranks are processes.
    """

    ranks: tuple[int, ...] = (2,)
    devices: tuple[int, ...] = ()
    budget_s: float = 8.0
    host_steps: tuple[Step, ...] = ON_THE_HOST
    device_steps: tuple[Step, ...] = ON_DEVICES
    prepare: Callable[[], None] | None = None


def plan(options: Options) -> list[tuple[int, tuple[Step, ...]]]:
    """Return each number of ranks with its steps."""
    wanted = [(ranks, options.host_steps) for ranks in options.ranks]
    return wanted + [(ranks, options.device_steps) for ranks in options.devices]


def run(
    options: Options, on_row: Callable[[Row], None], on_begin: Callable[[str], None]
) -> dict[Key, dict[str, int]]:
    """Measure, and return the values by number of ranks that differ from the defaults.

    Args:
        options: what to measure.
        on_row: gets each candidate's row when a choice is made.
        on_begin: gets what begins, for people.

    Raises:
        RankError: a rank failed, or did not end in time.
    """
    found: dict[Key, dict[str, int]] = {}
    for ranks, steps in plan(options):

        def note(_: int, message: Any, ranks: int = ranks) -> None:
            if "begins" in message:
                on_begin(f"{ranks} ranks, {message['begins']}")
            else:
                on_row(message)

        values = launch(
            run_rank,
            ranks,
            steps,
            steps is options.device_steps,
            options.budget_s,
            options.prepare,
            timeout_s=_STARTS_S + 20 * options.budget_s * _crowd(ranks),
            on_message=note,
        )[0]
        found.setdefault(ranks, {}).update(values)
    return found


def messages(options: Options) -> int:
    """Return how often ``on_begin`` is called."""
    return sum(len(step.messages) for _, steps in plan(options) for step in steps)


def _crowd(ranks: int) -> float:
    """Return how many ranks share a core, at least 1: the least timing takes that much longer."""
    from fastcomm import _native

    cores: int = _native.load().usable_cores()
    return max(1.0, ranks / cores)
