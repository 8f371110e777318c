"""What is made of the answers of crews."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from support import advised as made

from fastcomm._advise import measure
from fastcomm._advise.crew import AdviseError
from fastcomm._advise.measure import fitting, specs_of, speeds_of, steady
from fastcomm._advise.replay import AS_ALONE, Message, Speeds, replay
from fastcomm._advise.told import Facts, Pass, Round, Spec
from fastcomm._machine import division, topology

MIB = made.MIB


@pytest.mark.parametrize("speeds", [Speeds(0.5, 0.25), Speeds(1.0, 0.5), Speeds(0.8, 0.1)])
@pytest.mark.parametrize("messages", [0.5, 3.0, 8.0])
def test_speeds_are_those_that_a_replay_would_need(speeds: Speeds, messages: float) -> None:
    """Both begin at once; whichever ends first, the other goes on alone."""
    alone = 4.0
    replayed = replay(alone, [Message(0.0, messages)], speeds)
    sent = replayed.busy
    found = speeds_of(alone, replayed.computed, messages, sent)
    assert found.computation == pytest.approx(speeds.computation)
    assert found.communication == pytest.approx(speeds.communication)


def test_costs_between_sizes_are_in_proportion() -> None:
    recorded = made.ranks(0.02, cost=0.004)
    assert recorded.cost(4 * MIB) == 0.004 and recorded.cost(MIB) == 0.001
    assert recorded.cost(2 * MIB) == pytest.approx(0.002)
    assert recorded.cost(8) == 0.001  # no less than the shortest one that was measured
    assert recorded.cost(8 * MIB) == pytest.approx(0.008)
    recorded.costs["all_reduce"] += [{MIB: 0.003, 4 * MIB: 0.009}, {MIB: 0.002, 4 * MIB: 0.008}]
    assert recorded.cost(4 * MIB) == 0.008 and recorded.cost(MIB) == 0.002


def test_speeds_are_medians() -> None:
    recorded = made.one(0.02)
    assert recorded.speed == AS_ALONE
    recorded.speeds = [Speeds(0.5, 0.1), Speeds(0.9, 0.2), Speeds(0.7, 0.9)]
    assert recorded.speed == Speeds(0.7, 0.2)


def test_a_step_takes_as_long_as_on_the_slowest_rank() -> None:
    recorded = made.one(0.02)
    recorded.rounds["quiet"] = [[Round(made.steps(0.01)), Round(made.steps(0.03))]]
    assert recorded.seconds("quiet") == [pytest.approx(0.03)]
    assert recorded.seconds("ddp") == []


def test_steps_that_wait_for_an_epoch_are_left_out() -> None:
    usual, waiting = made.steps(0.02, 1, 0.001), made.steps(1.0, 1, 0.98)
    passes = tuple(Pass(float(i), ((8, i + 0.5),)) for i in range(8))  # two a step
    first = Round((*usual, *waiting, *usual, *usual), passes)
    second = Round(usual * 4, passes)
    for kept in steady([first, second]):
        assert kept.steps == usual * 3
        assert [each.begin for each in kept.passes] == [0.0, 1.0, 4.0, 5.0, 6.0, 7.0]
    same = [replace(first, steps=usual * 4)]
    assert steady(same) == same


def test_crews_of_numbers_of_devices() -> None:
    assert specs_of([]) == []
    assert specs_of([2]) == [
        Spec(divisor=2),
        Spec(2),
        Spec(2, divisor=2),
        Spec(slots=2),
    ]
    assert str(Spec()) == "one process"
    assert str(Spec(4, divisor=2)) == "4 ranks, a batch divided by 2"
    assert str(Spec(slots=2)) == "one process with 2 replicas"


def test_crews_that_do_not_fit_are_left_out() -> None:
    specs = specs_of([2])
    everything = fitting(specs, made.facts(), 1 << 40)
    assert everything == (specs, [])
    kept, notes = fitting(specs, made.facts(), 800 << 20)
    assert kept == [Spec(divisor=2), Spec(slots=2)]
    assert (
        notes[0] == ("2 ranks: left out, since it does not fit into the memory that is free")
        and len(notes) == 2
    )
    on_gpus = replace(made.facts(), device="cuda")
    assert fitting(specs, on_gpus, 0) == (specs, [])


class Told:
    """A crew whose answers are known: replicas fail, and each worker has the whole batch."""

    started: ClassVar[list[Spec]] = []

    def __init__(self, spec: Spec, _: Any) -> None:
        self.spec = spec

    def __enter__(self) -> Told:
        self.started.append(self.spec)
        return self

    def __exit__(self, *_: object) -> None:
        self.started.remove(self.spec)

    def facts(self, _: int) -> Facts:
        if self.spec.slots > 1:
            raise AdviseError("a long text", "a short one")
        return made.facts(64)

    def round(self, _: str, steps: int) -> list[Round]:
        return [Round(made.steps(0.1, steps))] * self.spec.ranks

    def apart(self, steps: int) -> Round:
        return Round(made.steps(0.1, steps))


def test_crews_that_fail_or_do_not_divide_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Crew", Told)
    recorded, notes = measure.measure(lambda _: None, [2], 3, verify=False, progress=lambda _: None)
    assert [each.spec for each in recorded] == [Spec(), Spec(2)]
    assert len(recorded[0].rounds["plain"]) == len(recorded[1].rounds["quiet"]) == 3
    assert notes[0].startswith("no batch could be divided") and len(notes) == 2
    assert notes[1] == (
        "one process with 2 replicas: left out, since the training fails so: a short one"
    )
    assert Told.started == []
    with pytest.raises(AdviseError, match="64 rows cannot be divided among 65 ranks"):
        measure.measure(lambda _: None, [65], 3, verify=False, progress=lambda _: None)


@pytest.mark.parametrize(
    ("cores", "quota", "tried"),
    [(1, None, []), (2, None, [2]), (6, None, [2, 4, 6]), (64, None, [2, 4, 8]), (64, 3.5, [2, 3])],
)
def test_numbers_of_devices_to_try(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, tried: list[int]
) -> None:
    cpus = [division.Cpu(number, number // 2, 0) for number in range(2 * cores)]
    monkeypatch.setattr(topology, "cpus", lambda: cpus)
    monkeypatch.setattr(topology, "quota", lambda: quota)
    assert measure.ranks_to_try("cpu") == tried
