"""What the advisor and its workers tell each other. All of it is pickled."""

from __future__ import annotations

from dataclasses import dataclass

from fastcomm._advise.loop import Parts


@dataclass(frozen=True)
class Spec:
    """Workers that step together, each a process with the script or the model.

    Attributes:
        ranks: processes, each with its share of the cores.
        slots: replicas of DataParallel in each; 1: none.
        divisor: each takes a batch of so many times fewer rows.
    """

    ranks: int = 1
    slots: int = 1
    divisor: int = 1

    def __str__(self) -> str:
        what = "one process" if self.ranks == 1 else f"{self.ranks} ranks"
        what += "" if self.slots == 1 else f" with {self.slots} replicas"
        return what if self.divisor == 1 else f"{what}, a batch divided by {self.divisor}"


@dataclass(frozen=True)
class Facts:
    """What a step needs, which is the same however often it runs.

    Attributes:
        batch: rows that the model gets: the first dimension of its first tensor.
        passes: backward passes of a step.
        gradients: of each parameter that has one: its bytes, and the part of the backward pass
            after which it is ready, in that order.
        parameter_bytes: of the module, with buffers.
        state_bytes: of the optimizer.
        saved_bytes: what the forward pass keeps for the backward pass.
        optimizer: name of its class.
        threads: of torch in each process.
        device: type of the device of the parameters.
    """

    batch: int
    passes: int
    gradients: tuple[tuple[int, float], ...]
    parameter_bytes: int
    state_bytes: int
    saved_bytes: int
    optimizer: str
    threads: int
    device: str

    @property
    def rows(self) -> int:
        """Rows of a step."""
        return self.batch * self.passes

    @property
    def gradient_bytes(self) -> int:
        return sum(size for size, _ in self.gradients)

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, gradients, the optimizer's state, and what is kept for backward."""
        return self.parameter_bytes + self.gradient_bytes + self.state_bytes + self.saved_bytes


@dataclass(frozen=True)
class Pass:
    """A backward pass whose buckets were not sent, by the clock that all processes share.

    Attributes:
        begin: when this rank came to the barrier before. Ranks meet after the last bucket of a pass
            and at the round's beginning, and go on when the last one has come.
        buckets: bytes of each, and when it was ready.
    """

    begin: float
    buckets: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Round:
    """Some steps, one after the other.

    Attributes:
        steps: parts of each.
        passes: of ``quiet``.
        busy: processor seconds of this process per second.
        messages: of ``beside``: how many went on beside, and the seconds until the last one's end.
    """

    steps: tuple[Parts, ...]
    passes: tuple[Pass, ...] = ()
    busy: float = 0.0
    messages: tuple[int, float] = (0, 0.0)

    @property
    def seconds(self) -> float:
        """Mean time of a step."""
        return sum(step.total for step in self.steps) / len(self.steps)
