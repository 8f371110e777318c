"""Rounds of all crews by turns, so that what the machine does meanwhile meets them alike."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastcomm._advise.crew import Crew
from fastcomm._advise.replay import AS_ALONE, Speeds
from fastcomm._advise.told import Facts, Round, Spec

_ROUND_S = 0.25  # of a round, about
_FEWEST, _MOST = 3, 200  # steps of a round
_EVERY = 3  # turns between measurements of what messages cost, and what they slow down
_SURVEYED = 4  # steps

Progress = Callable[[str], None]


@dataclass
class Recorded:
    """Rounds of one crew.

    Attributes:
        rounds: by way, then by turn and rank.
        costs: seconds of a message by bytes, from each time that it was measured.
        speeds: of computation and messages beside each other, likewise.
        moved: seconds in which DataParallel moves parameters and gradients, likewise.
    """

    spec: Spec
    facts: Facts
    rounds: dict[str, list[list[Round]]] = field(default_factory=dict)
    costs: list[dict[int, float]] = field(default_factory=list)
    speeds: list[Speeds] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)

    def cost(self, size: int) -> float:
        """Return the seconds of a message of a size that was measured."""
        return statistics.median(costs[size] for costs in self.costs)

    @property
    def speed(self) -> Speeds:
        if not self.speeds:
            return AS_ALONE
        return Speeds(
            statistics.median(each.computation for each in self.speeds),
            statistics.median(each.communication for each in self.speeds),
        )

    def seconds(self, way: str) -> list[float]:
        """Return a step's time in each turn, of the slowest rank."""
        return [max(round.seconds for round in ranks) for ranks in self.rounds.get(way, [])]


def measure(
    train: Callable[[Spec], None],
    specs: Sequence[Spec],
    turns: int,
    verify: bool,
    progress: Progress,
) -> list[Recorded]:
    """Let crews step by turns, and return what they have told, in the order of ``specs``."""
    with contextlib.ExitStack() as stack:
        crews = []
        for spec in specs:
            progress(f"starting {words(spec)}")
            crews.append(stack.enter_context(Crew(spec, train)))
        studies = [_Study(crew, verify) for crew in crews]
        for turn in range(turns):
            progress(f"turn {turn + 1} of {turns}")
            for study in studies if turn % 2 == 0 else reversed(studies):
                study.take_turn(turn)
    return [study.recorded for study in studies]


def words(spec: Spec) -> str:
    """Return a crew in words."""
    what = "one process" if spec.ranks == 1 else f"{spec.ranks} ranks"
    what += "" if spec.slots == 1 else f" with {spec.slots} replicas"
    return what if spec.divisor == 1 else f"{what}, a batch divided by {spec.divisor}"


class _Study:
    """What is asked of one crew."""

    def __init__(self, crew: Crew, verify: bool) -> None:
        self._crew, spec = crew, crew.spec
        self.recorded = Recorded(spec, crew.facts(_SURVEYED))
        if spec.ranks > 1:
            self._ways = ["quiet", *(["ddp"] if verify else [])]
        elif spec.slots > 1:
            self._ways = ["quiet slots", *(["slots"] if verify else [])]
        else:
            self._ways = ["plain"]
        first = [crew.round(way, _FEWEST) for way in self._ways][0]
        seconds = max(round.seconds for round in first)
        self._steps = min(_MOST, max(_FEWEST, math.ceil(_ROUND_S / seconds)))
        self._sizes = sorted({size for each in first[0].passes for size, _ in each.buckets})

    def take_turn(self, turn: int) -> None:
        """Let the crew step in each of its ways."""
        crew, recorded = self._crew, self.recorded
        for way in self._ways if turn % 2 == 0 else reversed(self._ways):
            recorded.rounds.setdefault(way, []).append(crew.round(way, self._steps))
        if turn % _EVERY:
            return
        if crew.spec.slots > 1:
            recorded.moved.append(crew.moved_by_slots(10))
        if self._sizes:
            recorded.costs.append(crew.costs(self._sizes, "all_reduce"))
            recorded.speeds.append(self._beside(self._sizes[-1], recorded.costs[-1]))

    def _beside(self, size: int, costs: dict[int, float]) -> Speeds:
        """Return the speeds of computation and messages while both go on."""
        plain = self._crew.round("plain", self._steps)
        alone = max(round.seconds for round in plain) * self._steps
        # They outlast the computation, however slow it becomes.
        messages = min(400, round(3 * alone / costs[size]) + 2)
        both = self._crew.beside(size, messages, self._steps)
        computed = max(round.seconds for round in both) * self._steps
        sent = max(round.messages[1] for round in both)
        return speeds_of(alone, computed, messages * costs[size], sent)


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
