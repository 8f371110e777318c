"""The exceptions of fastcomm: one family under ``torch.distributed.DistBackendError``.

The same class comes out of a synchronous call, of ``Work.wait()``, of a future's ``wait()`` and of
``loss.backward()`` under DistributedDataParallel. Whoever catches torch's own ``DistBackendError``
catches these too.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

from torch.distributed import DistBackendError

__all__ = [
    "CollectiveArgumentError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "CommunicationSystemError",
    "FastcommError",
    "ForkedProcessError",
    "GroupPoisonedError",
    "PeerLeftError",
    "PeerLostError",
    "UnsupportedError",
]

# The front of the communicator's messages: "[rank 0 of 2, peer 1, all_reduce, sequence 7] ".
_FRONT = re.compile(r"\[rank (\d+) of (\d+), (?:peer (\d+), )?(\w+), sequence (\d+)\]")


class FastcommError(DistBackendError):
    """The base of all fastcomm errors.

    The attributes repeat the front of the message. They are None where the error is not about an
    operation of a group.

    Attributes:
        rank: this process's rank in the group.
        world_size: ranks of the group.
        peer: the rank that is to blame.
        operation: ``"all_reduce"``, ``"broadcast"``, ...
        sequence: the operation's number in the group, from 0; a list of large tensors takes one
            for each.
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
    """The call is valid, but nothing here implements it; nothing was sent."""


class CommunicationSystemError(FastcommError, OSError):
    """A system call failed: no shared memory left, no descriptors, a lost store."""


class CollectiveMismatchError(FastcommError):
    """The ranks called different operations, sizes, dtypes, reductions or roots."""


class CollectiveTimeoutError(FastcommError, TimeoutError):
    """Not every rank arrived in time."""


class PeerLostError(FastcommError):
    """A peer died. The group cannot be used any more; the process can create a new one."""


class PeerLeftError(FastcommError):
    """A peer left its process group before this operation, or ended because of an exception."""


class GroupPoisonedError(FastcommError):
    """The group failed earlier, here or on a peer, and cannot be used any more."""


class ForkedProcessError(FastcommError):
    """A process group was used in a child of ``fork()``."""


# Indexed by the values of ErrorCode in csrc/core/error.h.
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


def failure_in_progress(at_the_end: bool) -> str:
    """Return the type and first line of an exception, for peers; "" if there is none.

    It is the exception being handled, as in a ``finally`` that destroys the group. With
    ``at_the_end``, at the end of the program, it may be the unhandled one.
    """
    error = sys.exc_info()[1]
    interactive = hasattr(sys, "ps1") or sys.flags.interactive  # may be an earlier line's error
    if error is None and at_the_end and not interactive:
        error = getattr(sys, "last_value", None)
    clean_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    if error is None or clean_exit or isinstance(error, GeneratorExit):
        return ""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def register(native: ModuleType) -> None:
    """Tell the native library which class each of its error codes becomes."""
    for code, error_type in enumerate(BY_CODE):
        native.register_error_type(code, error_type)
