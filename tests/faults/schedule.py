"""What the ranks of one run do, and what goes wrong: pure data. `generate` makes it from a seed.

An operation is a collective or an exchange of messages. Every rank issues those it takes part in,
in one global order, so nothing deadlocks by itself. How it issues them is up to the rank:
synchronous or not, in which memory, when it waits for what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from support.patience import OPERATION

# One message from `source` to `root`; one from every rank to `root`, which receives from any rank;
# one from every rank of a group to the next, as a batch.
MESSAGES = ("message", "any_source", "batch")
EAGER = 2048  # bytes that travel with their announcement: a send of at most that ends at once

LISTS = ("all_reduce_coalesced", "all_gather_coalesced")
LARGE = 256 * 1024  # bytes of a tensor, on average: such a list is not one message

DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "int64": 8}
LARGEST = 1 << 20  # bytes of one rank's message

# What a rank process is started with. With small blocks a message of some KiB has many of them.
# With the next larger ones some hold a list of gradients: a unit of 4,096 elements fits a rank's
# share.
CONFIGURATIONS = {
    "default": {},
    "small blocks": {"FASTCOMM_ONE_SHOT_BYTES": "4096", "FASTCOMM_BLOCK_BYTES": "16384"},
    "unit blocks": {"FASTCOMM_ONE_SHOT_BYTES": "4096", "FASTCOMM_BLOCK_BYTES": "204800"},
}

PATIENT = OPERATION  # seconds: the timeout of a group in which nobody should be too late
WORLD = 0  # the index of the group of all ranks

# The process of the victim ends.
DEADLY = ("kill", "kill in flight", "exit", "crash", "quit", "raise")


@dataclass(frozen=True)
class Gradients:
    """The list of a fused reduction and its options; None entries are each rank's own."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # type and shape of each
    scale: float = 1.0
    wire: str = "float32"  # how gradients of fp32 travel
    norm: float | None = 2.0

    @property
    def call(self) -> tuple[object, ...]:
        """Return what the ranks compare: a wire's type only where something travels in it."""
        narrow = any(dtype == "float32" for dtype, _ in self.tensors)
        return (self.tensors, self.scale, self.wire if narrow else "", self.norm)


@dataclass(frozen=True)
class Op:
    """One collective operation, as its callers agree on it."""

    group: int
    kind: str
    dtype: str = "float32"
    count: int = 0
    average: bool = False
    root: int = -1  # rank in the world; for a message, the receiver
    gradients: Gradients | None = None  # of fused_all_reduce, instead of type and count
    reduction: str = "sum"  # for those that reduce but do not average
    source: int = -1  # rank in the world that sends a message
    tag: int = 0

    @property
    def is_message(self) -> bool:
        return self.kind in MESSAGES

    @property
    def tensors(self) -> list[int]:
        """The elements of each of its tensors on one rank, of which a list has several."""
        if self.kind not in LISTS:
            return [self.count]
        return [self.count // 3, 0, self.count - self.count // 3, 7]

    @property
    def numbers(self) -> int:
        """How many numbers of its group it takes: a list of large tensors takes one for each."""
        large = sum(self.tensors) * DTYPES[self.dtype] >= LARGE * len(self.tensors)
        return len(self.tensors) if self.kind in LISTS and large else 1

    @property
    def is_long(self) -> bool:
        """Tell whether a message ends for its sender only with its receiver."""
        return self.count * DTYPES[self.dtype] > EAGER

    @property
    def call(self) -> tuple[object, ...]:
        """Return what the ranks compare; operations that are equal here cannot be told apart."""
        if self.kind == "barrier":
            return (self.group, self.kind)
        listed = None if self.gradients is None else self.gradients.call
        reduction = "avg" if self.average else self.reduction
        return (self.group, self.kind, self.dtype, self.count, reduction, self.root, listed)


@dataclass(frozen=True)
class Step:
    """How one rank issues one operation."""

    op: int
    asynchronous: bool
    shared: bool  # in memory of fastcomm.empty
    then_wait: tuple[int, ...] = ()  # operations, in this order


@dataclass(frozen=True)
class Fault:
    """What goes wrong: on ``victim``, just before it would issue operation ``at``.

    ``at`` is the number of operations if the fault happens after the last. ``seconds`` is how long
    something lasts, ``after`` how long after that point it begins. ``helper`` is a rank that is
    late, so that the victim has somebody to wait for.
    """

    kind: str = "none"
    victim: int = -1
    at: int = -1
    seconds: float = 0.0
    after: float = 0.0
    other: Op | None = None
    helper: int = -1


@dataclass(frozen=True)
class Schedule:
    seed: int
    size: int
    configuration: str
    groups: tuple[tuple[int, ...], ...]
    ops: tuple[Op, ...]
    steps: tuple[tuple[Step, ...], ...]  # one sequence per rank
    fault: Fault
    timeout: float = PATIENT  # of the world's group; the others are patient

    def members(self, op: int) -> tuple[int, ...]:
        return self.groups[self.ops[op].group]

    def players(self, op: int) -> tuple[int, ...]:
        return players(self.ops[op], self.groups)


def players(op: Op, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the ranks that issue an operation."""
    return (op.source, op.root) if op.kind == "message" else groups[op.group]
