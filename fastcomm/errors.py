"""The exceptions of fastcomm: one family under ``torch.distributed.DistBackendError``.

The same class comes out of a synchronous call, of ``Work.wait()``, of a future's ``wait()`` and of
``loss.backward()`` under DistributedDataParallel. Whoever catches torch's own ``DistBackendError``
catches these too.
"""

from __future__ import annotations

import re
from types import ModuleType

from torch.distributed import DistBackendError

# What csrc/coll/communicator.cpp puts in front: "[rank 0 of 2, peer 1, all_reduce, sequence 7] ".
_FRONT = re.compile(r"\[rank (\d+) of (\d+), (?:peer (\d+), )?(\w+), sequence (\d+)\]")


class FastcommError(DistBackendError):
    """The base of all fastcomm errors.

    What the message says is also there as attributes, ``None`` where the error is not about an
    operation of a group:

    Attributes:
        rank: this process's rank in the group.
        world_size: ranks of the group.
        peer: the rank that is to blame.
        operation: ``"all_reduce"``, ``"broadcast"``, ...
        sequence: the operation's number in the group, from 0.
    """

    rank: int | None = None
    world_size: int | None = None
    peer: int | None = None
    operation: str | None = None
    sequence: int | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        front = _FRONT.search(message)
        if front is not None:
            rank, size, peer, operation, sequence = front.groups()
            self.operation = None if operation == "none" else operation
            self.rank, self.world_size, self.sequence = int(rank), int(size), int(sequence)
            self.peer = None if peer is None else int(peer)


class CollectiveArgumentError(FastcommError, ValueError):
    """The arguments of this rank's call do not fit together; nothing was sent."""


class UnsupportedError(FastcommError, NotImplementedError):
    """Neither a native kernel nor the stock engine does this."""


class CommunicationSystemError(FastcommError, OSError):
    """A system call failed: no shared memory left, no descriptors, a lost store."""


class CollectiveMismatchError(FastcommError):
    """The ranks called different operations, sizes, dtypes, reductions or roots."""


class CollectiveTimeoutError(FastcommError, TimeoutError):
    """Not every rank arrived in time."""


class PeerLostError(FastcommError):
    """A peer died. The group cannot be used any more; the process can create a new one."""


class PeerLeftError(FastcommError):
    """A peer destroyed its process group before this operation."""


class GroupPoisonedError(FastcommError):
    """The group failed earlier, here or on a peer, and cannot be used any more."""


class ForkedProcessError(FastcommError):
    """A process group was used in a child of ``fork()``."""


# By the values of ErrorCode in csrc/core/error.h.
BY_CODE: tuple[type[FastcommError], ...] = (
    CollectiveArgumentError,
    UnsupportedError,
    CommunicationSystemError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    PeerLostError,
    PeerLeftError,
    GroupPoisonedError,
    ForkedProcessError,
)


def register(native: ModuleType) -> None:
    """Tell the native library which class each of its error codes becomes."""
    for code, error_type in enumerate(BY_CODE):
        native.register_error_type(code, error_type)
