"""Candidates, and the rule that judges them.

A step chooses one value, given what the steps before have chosen. The first candidate is always the
default. It stays unless another is better by `LEAST_GAIN` over all messages: the time of a message
counts by its ratio to the best candidate's, so that no size outweighs the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Message:
    """An operation of `fastcomm._measure.cases` and its bytes; or a step of training."""

    operation: str
    size: int


# Not one of the cases: reductions beside computation, as in a backward pass.
OVERLAPPED = "overlapped step"


@dataclass(frozen=True)
class Step:
    """One choice.

    Attributes:
        name: for people.
        candidates: values to try, on top of what has been chosen; an empty one is the default.
        messages: what is timed.
        share: its share of the time for all steps.
    """

    name: str
    candidates: tuple[dict[str, int], ...]
    messages: tuple[Message, ...]
    share: float


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


def scores(times: Sequence[Sequence[float]]) -> list[float]:
    """Return how many times as long as the best each candidate takes.

    The geometric mean over the messages.

    Args:
        times: for each message, every candidate's; above 0.
    """
    logs = [[math.log(time / min(of_message)) for time in of_message] for of_message in times]
    return [math.exp(sum(column) / len(logs)) for column in zip(*logs, strict=True)]


def best(scored: Sequence[float]) -> int:
    """Return which candidate is chosen: the first, unless another is clearly better."""
    index = min(range(len(scored)), key=scored.__getitem__)
    return index if scored[index] * (1 + LEAST_GAIN) < scored[0] else 0
