"""A step of training in DistributedDataParallel that sends nothing, as ranks have recorded it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastcomm._advise.replay import AS_ALONE, Message, Speeds, replay


@dataclass(frozen=True)
class Bucket:
    """Gradients that DDP reduces in one call."""

    bytes: int
    ready: float  # s of computation since the backward pass began, when it is issued


@dataclass(frozen=True)
class Step:
    """Parts of a step in seconds, one after the other, and the buckets."""

    begin: float  # loading, zero_grad
    forward: float  # and the loss
    buckets: tuple[Bucket, ...]  # the last one ends the backward pass
    finish: float  # DDP takes gradients out of the buckets
    optimizer: float

    @property
    def backward(self) -> float:
        return self.buckets[-1].ready if self.buckets else 0.0

    @property
    def alone(self) -> float:
        """The step without communication."""
        return self.begin + self.forward + self.backward + self.finish + self.optimizer

    def with_communication(self, cost: Callable[[int], float], speeds: Speeds = AS_ALONE) -> float:
        """Return the step's time if reducing a bucket of so many bytes takes ``cost``."""
        messages = [Message(bucket.ready, cost(bucket.bytes)) for bucket in self.buckets]
        return self.alone - self.backward + replay(self.backward, messages, speeds).end


def median(steps: Sequence[Step]) -> Step:
    """Return the medians of each part, of the steps that have the last one's buckets.

    DDP makes its buckets anew after the first step.
    """
    sizes = [bucket.bytes for bucket in steps[-1].buckets]
    alike = [step for step in steps if [bucket.bytes for bucket in step.buckets] == sizes]
    ready = [
        statistics.median(step.buckets[place].ready for step in alike)
        for place in range(len(sizes))
    ]
    return Step(
        begin=statistics.median(step.begin for step in alike),
        forward=statistics.median(step.forward for step in alike),
        buckets=tuple(map(Bucket, sizes, ready)),
        finish=statistics.median(step.finish for step in alike),
        optimizer=statistics.median(step.optimizer for step in alike),
    )
