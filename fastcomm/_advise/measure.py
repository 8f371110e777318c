"""Rounds of all crews by turns, so that what the machine does meanwhile meets them alike."""

from __future__ import annotations

import bisect
import contextlib
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fastcomm._advise.crew import AdviseError, Crew, StoppedError
from fastcomm._advise.loop import Parts
from fastcomm._advise.replay import AS_ALONE, Speeds
from fastcomm._advise.told import Facts, Round, Spec
from fastcomm._machine import division, topology

MOST_RANKS = 8  # that are tried unless the caller says more
EVERY = 2  # turns between measurements of what messages cost, and what they slow down

_ROUND_S = 0.25  # of a round, about
_FEWEST, _MOST = 3, 200  # steps of a round
_SURVEYED = 4  # steps
_PROCESS = 300 << 20  # bytes of a process with torch, without a model
_FAR_LONGER, _NOTHING_S = 5, 0.0005  # a wait for data between epochs: times a usual one, and above
_SWEEP = tuple(1 << power for power in range(12, 31, 2))  # bytes of messages
_MOST_MESSAGES = 400  # that are under way at once

Progress = Callable[[str], None]


@dataclass
class Recorded:
    """Rounds of one crew, and what was measured beside them, each time anew.

    Attributes:
        rounds: by way, then by turn and rank.
        costs: of messages by what is done to them and bytes, in seconds.
        speeds: of computation and messages beside each other.
        moved: seconds in which DataParallel moves parameters and gradients.
        apart: seconds of a step of one rank while the others rest, by turn.
    """

    spec: Spec
    facts: Facts
    rounds: dict[str, list[list[Round]]] = field(default_factory=dict)
    costs: dict[str, list[dict[int, float]]] = field(default_factory=dict)
    speeds: list[Speeds] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def cost(self, size: int, how: str = "all_reduce") -> float:
        """Return the seconds of a message, between sizes that were measured in proportion."""
        known = self.costs[how]
        sizes = sorted(set.intersection(*(set(costs) for costs in known)))
        place = bisect.bisect_left(sizes, size)
        if place == len(sizes):  # as fast as the largest one
            return size / sizes[-1] * self.cost(sizes[-1], how)
        above = statistics.median(costs[sizes[place]] for costs in known)
        if sizes[place] == size or place == 0:
            return above
        below = statistics.median(costs[sizes[place - 1]] for costs in known)
        part = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        return below + part * (above - below)

    @property
    def speed(self) -> Speeds:
        """The median speeds; as alone if none were measured."""
        if not self.speeds:
            return AS_ALONE
        return Speeds(
            statistics.median(each.computation for each in self.speeds),
            statistics.median(each.communication for each in self.speeds),
        )

    def seconds(self, way: str) -> list[float]:
        """Return a step's time in each turn, of the slowest rank."""
        return [max(round.seconds for round in ranks) for ranks in self.rounds.get(way, [])]

    def parts(self, way: str) -> Parts:
        """Return the mean parts of a step, over all turns, ranks and steps."""
        steps = [s for ranks in self.rounds[way] for round in ranks for s in round.steps]
        return Parts(
            loading=statistics.fmean(step.loading for step in steps),
            forward=statistics.fmean(step.forward for step in steps),
            backward=statistics.fmean(step.backward for step in steps),
            optimizer=statistics.fmean(step.optimizer for step in steps),
        )


def measure(
    train: Callable[[Spec], None],
    ranks: Sequence[int] | None,
    turns: int,
    verify: bool,
    progress: Progress,
) -> tuple[list[Recorded], list[str]]:
    """Let crews step by turns; see `fastcomm._advise.advise.advise` for the arguments.

    Returns:
        What they have told, one process with the whole batch first; and what was left out.
    """
    with contextlib.ExitStack() as stack:

        def start(spec: Spec) -> _Study:
            progress(f"starting {spec}")
            return _Study(stack.enter_context(Crew(spec, train)), verify)

        studies = [start(Spec())]
        facts = studies[0].recorded.facts
        if facts.batch == 0:
            raise AdviseError("the model is called without a tensor whose rows are the batch's")
        if ranks is None:
            ranks = [number for number in ranks_to_try(facts.device) if number <= facts.batch]
        elif ranks and max(ranks) > facts.batch:
            raise AdviseError(
                f"a batch of {facts.batch} rows cannot be divided among {max(ranks)} ranks"
            )
        specs, notes = fitting(specs_of(ranks), facts, _available())
        divides = True
        for spec in specs:
            if spec.divisor > 1 and not divides:
                continue
            try:
                study = start(spec)
            except StoppedError:
                raise
            except AdviseError as error:  # as where replicas' losses are a vector
                notes.append(f"{spec}: left out, since the training fails so: {error.reason}")
                continue
            if study.recorded.facts.batch * spec.divisor > facts.batch:
                divides = False
                notes.append(
                    "no batch could be divided, so each rank has a whole one: no DataLoader with a "
                    "batch_size was found"
                )
                continue
            studies.append(study)
        for turn in range(turns):
            progress(f"turn {turn + 1} of {turns}")
            for study in studies if turn % 2 == 0 else reversed(studies):
                study.take_turn(turn)
    return [study.recorded for study in studies], notes


def ranks_to_try(device: str) -> list[int]:
    """Return numbers of devices to try: powers of two, and all of them, on this machine."""
    if device == "cpu":
        cores = division.physical_cores(topology.cpus())
        quota = topology.quota()
        most = cores if quota is None else max(1, min(cores, int(quota)))
    else:
        most = torch.accelerator.device_count()
    most = min(most, MOST_RANKS)
    return sorted({number for number in (2, 4, 8, most) if 1 < number <= most})


def specs_of(ranks: Sequence[int]) -> list[Spec]:
    """Return the crews for numbers of devices, besides one process with the whole batch."""
    specs = [Spec(divisor=number) for number in ranks[:1]]
    for number in ranks:
        specs += [Spec(number), Spec(number, divisor=number), Spec(slots=number)]
    return specs


def fitting(specs: Sequence[Spec], facts: Facts, available: int) -> tuple[list[Spec], list[str]]:
    """Return the crews whose copies of the model fit into memory, and notes on the others.

    Args:
        specs: in the order in which they are to be had.
        facts: of one process.
        available: bytes.
    """
    kept, notes = [], []
    for spec in specs:
        # Two wrapped ones at once have buckets of their own.
        needed = spec.ranks * (_PROCESS + facts.memory_bytes + 2 * facts.gradient_bytes)
        needed += (spec.slots - 1) * (facts.parameter_bytes + facts.gradient_bytes)
        if facts.device == "cpu" and needed > available:
            notes.append(f"{spec}: left out, since it does not fit into the memory that is free")
            continue
        available -= needed
        kept.append(spec)
    return kept, notes


def _available() -> int:
    """Return the bytes of memory that processes may still take."""
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else sys.maxsize


class _Study:
    """What is asked of one crew."""

    def __init__(self, crew: Crew, verify: bool) -> None:
        self._crew, spec = crew, crew.spec
        facts = crew.facts(_SURVEYED)
        self.recorded = Recorded(spec, facts)
        self._sometimes: list[str] = []  # ways
        if spec.ranks > 1:
            self._ways = ["quiet", *(["ddp"] if verify else [])]
            self._sometimes = ["quiet views", *(["views", "bfloat16"] if verify else [])]
        elif spec.slots > 1:
            self._ways = ["quiet slots", *(["slots"] if verify else [])]
        else:
            self._ways = ["plain"]
        first, *_ = [crew.round(way, _FEWEST) for way in (*self._ways, *self._sometimes)]
        seconds = max(round.seconds for round in first)
        self._steps = min(_MOST, max(_FEWEST, math.ceil(_ROUND_S / seconds)))
        self._buckets = sorted({size for each in first[0].passes for size, _ in each.buckets})
        if self._buckets:
            whole = facts.gradient_bytes
            sizes = sorted({*self._buckets, *(s for s in _SWEEP if s < whole), whole})
            for how in ("all_reduce", "bfloat16"):
                recorded_costs = self.recorded.costs.setdefault(how, [])
                recorded_costs.append(crew.costs(sizes, how))
            self.recorded.costs["sharded"] = [crew.costs([whole], "sharded")]

    def take_turn(self, turn: int) -> None:
        """Let the crew step in each of its ways."""
        crew, recorded = self._crew, self.recorded
        often = turn % EVERY == 0
        ways = self._ways + (self._sometimes if often else [])
        for way in ways if turn % 2 == 0 else reversed(ways):
            recorded.rounds.setdefault(way, []).append(steady(crew.round(way, self._steps)))
        if crew.spec.ranks > 1:
            recorded.apart.append(crew.apart(self._steps).seconds)
        if not often:
            return
        if crew.spec.slots > 1:
            recorded.moved.append(crew.moved_by_slots(10))
        if self._buckets:
            costs = crew.costs(self._buckets, "all_reduce")
            recorded.costs["all_reduce"].append({**recorded.costs["all_reduce"][0], **costs})
            together = max(round.seconds for round in crew.round("plain", self._steps))
            size = self._buckets[-1]
            recorded.speeds.append(self._beside(size, costs[size], together * self._steps))

    def _beside(self, size: int, cost: float, alone: float) -> Speeds:
        """Return the speeds of computation and messages while both go on."""
        # They outlast the computation, however slow it becomes.
        messages = min(_MOST_MESSAGES, round(3 * alone / cost) + 2)
        both = self._crew.beside(size, messages, self._steps)
        computed = max(round.seconds for round in both) * self._steps
        sent = max(round.messages[1] for round in both)
        return speeds_of(alone, computed, messages * cost, sent)


def steady(ranks: Sequence[Round]) -> list[Round]:
    """Return rounds without steps that wait far longer for data than others, on any rank.

    Between epochs scripts validate and save, and loaders begin anew.
    """
    loading = [
        max(step.loading for step in steps) for steps in zip(*(r.steps for r in ranks), strict=True)
    ]
    most = _FAR_LONGER * statistics.median(loading) + _NOTHING_S
    kept = [number for number, seconds in enumerate(loading) if seconds <= most]
    found = []
    for each in ranks:
        passes = len(each.passes) // len(each.steps)  # of each step
        found.append(
            replace(
                each,
                steps=tuple(each.steps[number] for number in kept),
                passes=tuple(
                    each.passes[number * passes + place]
                    for number in kept
                    for place in range(passes)
                ),
            )
        )
    return found


def speeds_of(alone: float, computed: float, messages: float, sent: float) -> Speeds:
    """Return the speeds of a computation and of messages that began at once.

    Args:
        alone: seconds of the computation without messages.
        computed: until its end, with them.
        messages: seconds of all messages without computation.
        sent: until the end of the last one, with it.
    """
    if sent < computed:  # the computation has gone on alone
        computation = (alone - (computed - sent)) / sent
        communication = messages / sent
    else:
        computation = alone / computed
        communication = (messages - (sent - computed)) / computed
    return Speeds(min(1.0, max(0.01, computation)), min(1.0, max(0.01, communication)))
