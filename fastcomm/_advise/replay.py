"""A step's timeline with communication that was not there when it was recorded.

Daydream (Zhu et al., ATC 2020) and FlexFlow's simulator (Jia et al., MLSys 2019) put tasks on the
timeline of each device, and start a task when those it depends on have ended. Here two tasks at
most go on at once, the backward pass and one bucket's communication, and on CPUs they share cores,
caches and memory. So each has a speed while both go on, as it was measured, and not a lane of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """A bucket of gradients: when the backward pass has it ready, and how long it takes alone."""

    ready: float  # s of computation since the backward pass began
    seconds: float


@dataclass(frozen=True)
class Speeds:
    """The speed of each side while both go on; 1: as alone."""

    computation: float = 1.0
    communication: float = 1.0

    def __post_init__(self) -> None:
        for speed in (self.computation, self.communication):
            if not 0 < speed <= 1:
                raise ValueError(f"a speed of {speed}: it lies above 0 and is at most 1")


AS_ALONE = Speeds()


@dataclass(frozen=True)
class Replayed:
    """What became of a backward pass, in seconds since it began."""

    computed: float  # the computation's end
    end: float  # the end of both
    busy: float  # time in which messages were under way

    @property
    def exposed(self) -> float:
        """Communication after the computation's end."""
        return self.end - self.computed


def replay(backward: float, messages: Sequence[Message], speeds: Speeds = AS_ALONE) -> Replayed:
    """Let messages go one after the other, each once it is ready, beside the backward pass.

    Args:
        backward: seconds of the pass alone.
        messages: in the order in which they are issued; one waits for those before it.
        speeds: of each side while both go on.
    """
    time = busy = 0.0
    done = 0.0  # of the computation, in seconds of its own
    computed: float | None = None
    for message in messages:
        ready = min(message.ready, backward)
        if ready > done:  # nothing is under way until then
            time += ready - done
            done = ready
        left = message.seconds
        if done < backward:
            until_sent = left / speeds.communication
            until_computed = (backward - done) / speeds.computation
            both = min(until_sent, until_computed)
            left = 0.0 if both == until_sent else left - both * speeds.communication
            done = backward if both == until_computed else done + both * speeds.computation
            time += both
            busy += both
        if done >= backward and computed is None:
            computed = time
        time += left
        busy += left
    if computed is None:
        computed = time + backward - done
    return Replayed(computed, max(time, computed), busy)
