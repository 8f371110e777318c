"""A step's time with its messages, from steps without them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from fastcomm._advise.measure import Recorded
from fastcomm._advise.replay import Message, Replayed, Speeds, replay
from fastcomm._advise.told import Pass, Round


def ddp_seconds(
    recorded: Recorded, cost: Callable[[int], float], speeds: Speeds
) -> list[float]:
    """Return a step's predicted time in each turn, from rounds of ``quiet``."""
    return [
        sum(replayed.end for replayed in replays(ranks, cost, speeds)) / len(ranks[0].steps)
        for ranks in recorded.rounds["quiet"]
    ]


def replays(
    ranks: Sequence[Round], cost: Callable[[int], float], speeds: Speeds
) -> Iterator[Replayed]:
    """Replay each pass of a round with messages.

    A bucket is sent once the last rank has it ready, and the computation ends with the last rank's
    last bucket: what delays one rank delays all.
    """
    for passes in zip(*(each.passes for each in ranks), strict=True):
        ready = _ready(passes)
        sizes = [size for size, _ in passes[0].buckets]
        messages = [Message(at, cost(size)) for at, size in zip(ready, sizes, strict=True)]
        yield replay(ready[-1], messages, speeds)


def _ready(passes: Sequence[Pass]) -> list[float]:
    """Return when all ranks have each bucket, in seconds since the pass began."""
    begin = max(each.begin for each in passes)
    places = range(len(passes[0].buckets))
    return [max(each.buckets[place][1] for each in passes) - begin for place in places]


def slots_seconds(recorded: Recorded) -> list[float]:
    """Return a step's predicted time in DataParallel in each turn."""
    moved = statistics.median(recorded.moved)
    return [seconds + moved for seconds in recorded.seconds("quiet slots")]
