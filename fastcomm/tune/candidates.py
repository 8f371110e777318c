"""Candidates of ``fastcomm tune``, and the rule that chooses among them.

A step chooses one value, on top of the choices of earlier steps. The first candidate is always the
default. It stays unless another is better by the step's gain over all messages. The time of one
counts as a ratio to the best candidate's, so that no size outweighs the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

LEAST_GAIN = 0.03  # of the chosen candidate's time
LEAST_GAIN_BETWEEN_HOSTS = 0.1  # threads that wake on several hosts make times differ more


@dataclass(frozen=True)
class Message:
    """An operation of `fastcomm._measure.cases`, or `OVERLAPPED`, and its size in bytes."""

    operation: str
    size: int


# Reductions beside computation, as in a backward pass; not one of the cases.
OVERLAPPED = "overlapped step"


@dataclass(frozen=True)
class Step:
    """One choice of tuning.

    Attributes:
        name: its name in tables.
        candidates: values to try, by the names of `fastcomm._machine.tuning.SETTINGS`, or between
            hosts `HOSTS_SETTINGS`; an empty one is the default.
        messages: the messages to time.
        share: the fraction of the time for all steps that this one gets.
        gain: by how much another candidate must be better than the default.
    """

    name: str
    candidates: tuple[dict[str, int], ...]
    messages: tuple[Message, ...]
    share: float
    gain: float = LEAST_GAIN


def _messages(operations: Sequence[str], sizes: Sequence[int]) -> tuple[Message, ...]:
    return tuple(Message(operation, size) for operation in operations for size in sizes)


def _values(name: str, values: Sequence[int]) -> tuple[dict[str, int], ...]:
    return ({}, *({name: value} for value in values))


ON_THE_HOST = (
    Step(
        "one-shot limit",
        _values("payload_bytes", [16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]),
        _messages(["all_reduce", "all_gather", "broadcast"], [16 * KIB, 64 * KIB, 256 * KIB, MIB]),
        0.7,
    ),
    Step(
        "block",
        _values("block_bytes", [512 * KIB, MIB, 4 * MIB]),
        _messages(["all_reduce", "all_gather"], [4 * MIB, 16 * MIB]),
        0.3,
    ),
)

ON_DEVICES = (
    Step(
        "one-launch limit",
        _values("slot_bytes", [16 * KIB, 32 * KIB, 128 * KIB, 256 * KIB, 512 * KIB]),
        _messages(["all_reduce", "all_gather"], [8 * KIB, 32 * KIB, 128 * KIB, 256 * KIB]),
        0.4,
    ),
    Step(
        "blocks of a kernel",
        _values("device_blocks", [8, 16, 32, 64, 128]),
        _messages([OVERLAPPED], [25 * MIB]),
        0.4,
    ),
    Step("results", _values("pulls", [1]), _messages([OVERLAPPED], [25 * MIB]), 0.2),
)


BETWEEN_HOSTS = (
    Step(
        "short limit",
        _values("short_bytes", [16 * KIB, 32 * KIB, 128 * KIB, 256 * KIB, MIB]),
        _messages(["all_reduce", "broadcast"], [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, MIB]),
        0.4,
        LEAST_GAIN_BETWEEN_HOSTS,
    ),
    # The default is of 1 to 4 MiB, of these messages 1 MiB.
    Step(
        "chunk",
        _values("chunk_bytes", [256 * KIB, 512 * KIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB]),
        (*_messages(["all_reduce"], [4 * MIB, 25 * MIB]), *_messages(["all_gather"], [4 * MIB])),
        0.6,
        LEAST_GAIN_BETWEEN_HOSTS,
    ),
)


def scores(times: Sequence[Sequence[float]]) -> list[float]:
    """Return each candidate's time over that of the best, as the geometric mean over messages.

    Args:
        times: for each message, the times of all candidates, above 0 and in any unit.
    """
    logs = [[math.log(time / min(of_message)) for time in of_message] for of_message in times]
    return [math.exp(sum(column) / len(logs)) for column in zip(*logs, strict=True)]


def best(scored: Sequence[float], gain: float = LEAST_GAIN) -> int:
    """Return the index of the chosen candidate: 0, unless another is better by ``gain``."""
    index = min(range(len(scored)), key=scored.__getitem__)
    return index if scored[index] * (1 + gain) < scored[0] else 0
