"""The failure of a launch: which ranks failed, and how."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """The failure of one rank.

    Attributes:
        rank: its rank.
        text: the traceback of its exception, or how its process ended.
        when: nanoseconds of the monotonic clock, which all processes of a host share.
        consequence: whether it is a failure of another rank that this one tells of.
        status: for a shell: that of its process, or 128 and the number of the signal.
    """

    rank: int
    text: str
    when: int
    consequence: bool = False
    status: int = 1


class LaunchError(RuntimeError):
    """Ranks of `fastcomm.launch` failed; the message has the traceback of each that raised.

    The rank that failed first is told first, those that failed because of it behind it.

    Attributes:
        failures: for each rank that failed by itself, in that order, its traceback or how its
            process ended.
        ended: the ranks that were ended because others had failed.
    """

    failures: dict[int, str]
    ended: tuple[int, ...]

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.failures = {}
        self.ended = ()


def launch_error(failures: Iterable[Failure], ended: Iterable[int], ranks: int) -> LaunchError:
    """Return the error that tells of the failures of a launch of so many ranks."""
    told = in_order(failures)
    others = tuple(sorted(ended))
    lines = [f"{len(told)} of {ranks} ranks failed, rank {told[0].rank} first"]
    lines += [f"\nrank {failure.rank}: {failure.text}" for failure in told]
    if others:
        lines.append(f"\nended because of that: rank {', '.join(map(str, others))}")
    error = LaunchError("\n".join(lines))
    error.failures = {failure.rank: failure.text for failure in told}
    error.ended = others
    return error


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Return failures by time, and those that tell of another rank's behind the others."""
    return sorted(failures, key=lambda failure: (failure.consequence, failure.when, failure.rank))


def ending(status: int) -> str:
    """Return how a process ended, in words, for its status as `subprocess.Popen` has it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    hint = ", as the kernel does where memory runs out" if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
