"""What a rank tells the harness: plain data, which goes through pipes and into tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from faults.schedule import Schedule

EXTRA = -1  # the number of a call that is not in the schedule


@dataclass
class Told:
    """An exception as data."""

    kind: str
    text: str
    peer: int | None = None
    sequence: int | None = None


@dataclass
class Result:
    """How one call of an operation ended on one rank. Times are of the machine-wide clock."""

    op: int
    group: int
    issued: float
    waited: float  # when the wait that ended it began; the call itself, if synchronous
    ended: float = 0.0
    error: Told | None = None
    right: bool = True  # the result's bits, where there is no error
    untouched: bool = True  # the tensors after an error
    interrupted: float = 0.0  # when a KeyboardInterrupt came out of the call or of its wait
    expired: Told | None = None  # what came out of a wait with a timeout

    @property
    def failed(self) -> bool:
        return self.error is not None


@dataclass
class Resources:
    """What a rank's process holds between two runs."""

    descriptors: int
    threads: int
    segments: frozenset[int]  # inodes of the memory files that are mapped
    sockets: int = 0  # to which ranks connect; open only while a group is formed


@dataclass
class Ended:
    """A rank has done its part of a schedule and has destroyed its groups."""

    results: list[Result] = field(default_factory=list)
    trouble: str = ""  # a traceback: the harness itself failed here
    resumed: float = 0.0  # when a stopped or delayed victim went on
    left: float = 0.0  # when it had destroyed its groups


@dataclass
class Fresh:
    """What became of the new group of the remaining ranks."""

    trouble: str
    seconds: float
    resources: Resources


@dataclass
class Now:
    """The victim's fault strikes now. ``signals``: what the harness is to send it, and when."""

    at: float
    signals: tuple[tuple[float, int], ...] = ()
    segment: int = 0  # inode of its memory file
    pid: int = 0


@dataclass
class Run:
    """What happened when a schedule was played."""

    schedule: Schedule
    ended: dict[int, Ended] = field(default_factory=dict)
    fresh: dict[int, Fresh] = field(default_factory=dict)
    exits: dict[int, int | None] = field(default_factory=dict)  # of ranks that ended
    struck: Now | None = None
    killed_at: float = 0.0  # when a signal of the fault that ends the victim was sent
    hung: list[int] = field(default_factory=list)
    evidence: str = ""
    seconds: float = 0.0
    dead_segments: frozenset[int] = frozenset()  # of ranks that ended in earlier runs
