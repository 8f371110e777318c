"""What steps take with their messages, from steps without them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastcomm._advise.measure import EVERY, Recorded
from fastcomm._advise.replay import Message, Replayed, Speeds, replay
from fastcomm._advise.told import Pass, Round

Cost = Callable[[int], float]

FIRST_BUCKET = 1 << 20  # bytes, of DDP's buckets (dist._DEFAULT_FIRST_BUCKET_BYTES)
BUCKET = 25 << 20  # of the others
BUCKETS = (1 << 20, 5 << 20, 100 << 20)  # that are tried besides
ACCUMULATED = (2, 4, 8)  # batches of a step

# Between hosts, as measured and fitted: docs/performance.md, docs/scaling.md.
LINK_USE = 1.16  # time over the link's bound
HOST_CALL_S = 400e-6  # of a rank in a call
HOST_MESSAGE_S = 72e-6  # of a message
HOST_BYTE_S = 0.55e-9  # of a byte in a processor, at one of its ends


@dataclass(frozen=True)
class Prediction:
    """A step of one way to train.

    Attributes:
        way: in words.
        devices: on each host, ranks or replicas.
        hosts: how many.
        rows: of all devices together, in a step.
        seconds: predicted; of one device, measured.
        turns: the same from each turn alone.
        parts: seconds by part, ``communication`` being what nothing hides.
        memory_bytes: of each device: parameters, gradients, buckets, the optimizer's state, and
            what the forward pass keeps.
        sent_bytes: gradients that each device gives to be reduced, as they travel.
        measured: seconds where it was run as it is; None where it was not.
        spread: by how much halves of the measurements differ, as a part of their median.
        against: rows per second of one device that does the same, where it does not do the same as
            in its own prediction.
    """

    way: str
    devices: int
    rows: int
    seconds: float
    turns: tuple[float, ...]
    parts: dict[str, float]
    memory_bytes: int
    sent_bytes: int = 0
    hosts: int = 1
    measured: float | None = None
    spread: float | None = None
    against: float | None = None

    @property
    def share(self) -> int:
        """Rows of each device."""
        return self.rows // (self.devices * self.hosts)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def error(self) -> float | None:
        """The prediction's error, as a part of what was measured."""
        return None if self.measured is None else self.seconds / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": self.rows_per_second, "error": self.error}


def of_one(one: Recorded) -> Prediction:
    """Return what one device takes."""
    seconds = one.seconds("plain")
    return Prediction(
        way="one device" if one.facts.device != "cpu" else "one process",
        devices=1,
        rows=one.facts.rows,
        seconds=statistics.median(seconds),
        turns=tuple(seconds),
        parts=_parts(one, "plain"),
        memory_bytes=one.facts.memory_bytes,
        measured=statistics.median(seconds),
        spread=spread(seconds),
    )


def of_ddp(recorded: Recorded) -> Prediction:
    """Return what ranks take in stock DistributedDataParallel."""
    turns = ddp_seconds(recorded)
    seconds = statistics.median(turns)
    facts = recorded.facts
    return _measured(
        Prediction(
            way="DDP" if recorded.spec.divisor == 1 else "DDP, batch divided",
            devices=recorded.spec.ranks,
            rows=facts.rows * recorded.spec.ranks,
            seconds=seconds,
            turns=tuple(turns),
            parts=_with_communication(_parts(recorded, "quiet"), seconds),
            memory_bytes=facts.memory_bytes + facts.gradient_bytes,
            sent_bytes=facts.gradient_bytes,
        ),
        recorded.seconds("ddp"),
    )


def of_slots(recorded: Recorded) -> Prediction:
    """Return what replicas take in DataParallel."""
    moved = statistics.median(recorded.moved)
    turns = [seconds + moved for seconds in recorded.seconds("quiet slots")]
    seconds = statistics.median(turns)
    facts = recorded.facts
    return _measured(
        Prediction(
            way="DataParallel",
            devices=recorded.spec.slots,
            rows=facts.rows,
            seconds=seconds,
            turns=tuple(turns),
            parts=_with_communication(_parts(recorded, "quiet slots"), seconds),
            memory_bytes=facts.memory_bytes,
            sent_bytes=facts.gradient_bytes,
        ),
        recorded.seconds("slots"),
    )


def settings(recorded: Recorded, ddp: Prediction, one: Prediction) -> list[Prediction]:
    """Return what ranks take with other settings than DDP's own.

    Args:
        recorded: ranks with whole batches.
        ddp: of them.
        one: one device.
    """
    facts, ranks = recorded.facts, recorded.spec.ranks
    speeds = recorded.speed
    plain = _in_buckets(recorded, BUCKET, recorded.cost, speeds)

    def changed(way: str, by: float, **others: Any) -> Prediction:
        seconds = ddp.seconds + by
        parts = _with_communication(_parts(recorded, "quiet"), seconds)
        turns = tuple(each + by for each in ddp.turns)
        others = {"measured": None, "spread": None, "turns": turns, **others}
        return replace(ddp, way=way, seconds=seconds, parts=parts, **others)

    found = []
    for size in BUCKETS:
        if buckets(facts.gradients, size) == buckets(facts.gradients, BUCKET):
            continue
        by = _in_buckets(recorded, size, recorded.cost, speeds) - plain
        found.append(changed(f"DDP, bucket_cap_mb={size >> 20}", by))
    wire = _in_buckets(recorded, BUCKET, lambda size: recorded.cost(size, "bfloat16"), speeds)
    found.append(
        _measured(
            changed("DDP, 16 bits on the wire", wire - plain, sent_bytes=ddp.sent_bytes // 2),
            recorded.seconds("bfloat16"),
        )
    )
    both = zip(recorded.seconds("quiet views"), recorded.seconds("quiet")[::EVERY], strict=True)
    by = statistics.median(views - without for views, without in both)
    memory = ddp.memory_bytes - facts.gradient_bytes
    found.append(
        _measured(
            changed("DDP, gradient_as_bucket_view", by, memory_bytes=memory),
            recorded.seconds("views"),
        )
    )
    optimizer = recorded.parts("quiet").optimizer
    quiet = statistics.median(recorded.seconds("quiet"))
    sharded = recorded.cost(facts.gradient_bytes, "sharded") - optimizer * (1 - 1 / ranks)
    memory -= facts.state_bytes - facts.state_bytes // ranks
    found.append(changed("ShardedOptimizer", quiet + sharded - ddp.seconds, memory_bytes=memory))
    if facts.passes > 1:
        last = statistics.median(ddp_seconds(recorded, in_last_pass=True))
        found.append(changed("DDP, no_sync but in the last pass", last - ddp.seconds))
        return found
    for count in ACCUMULATED:
        longer = changed(
            f"DDP, {count} batches a step", (count - 1) * (quiet - optimizer), rows=count * ddp.rows
        )
        parts = _parts(recorded, "quiet")
        for part in ("loading", "forward", "backward"):
            parts[part] *= count
        alone = count * one.seconds - (count - 1) * one.parts["optimizer"]
        found.append(
            replace(
                longer,
                parts=_with_communication(parts, longer.seconds),
                against=count * one.rows / alone,
            )
        )
    return found


def of_hosts(recorded: Recorded, ddp: Prediction, hosts: int, gbits: float) -> Prediction:
    """Return what ranks on several such hosts take, by the speed of the links between them.

    A host sends and receives 2 (h - 1) / h of the bytes over its link, in 2 (h - 1) messages.
    """

    def cost(size: int) -> float:
        messages = 2 * (hosts - 1)
        byte = LINK_USE * max(8 / (gbits * 1e9), HOST_BYTE_S)
        between = HOST_CALL_S + messages * (HOST_MESSAGE_S + size / hosts * byte)
        return recorded.cost(size) + between

    turns = ddp_seconds(recorded, cost)
    seconds = statistics.median(turns)
    return replace(
        ddp,
        way=f"DDP, {hosts} hosts, {gbits:g} Gbit/s",
        hosts=hosts,
        rows=ddp.rows * hosts,
        seconds=seconds,
        turns=tuple(turns),
        parts=_with_communication(_parts(recorded, "quiet"), seconds),
        measured=None,
        spread=None,
    )


def ddp_seconds(
    recorded: Recorded, cost: Cost | None = None, in_last_pass: bool = False
) -> list[float]:
    """Return a step's predicted time in each turn, from rounds of ``quiet``.

    Args:
        recorded: of ranks.
        cost: seconds of a message by bytes; as measured by default.
        in_last_pass: whether only the last pass of a step sends its messages.
    """
    cost = functools.cache(recorded.cost if cost is None else cost)
    count, speeds = recorded.facts.passes, recorded.speed
    found = []
    for ranks in recorded.rounds["quiet"]:
        seconds = 0.0
        for number, passes in enumerate(_together(ranks)):
            sends = not in_last_pass or number % count == count - 1
            end = replayed(passes, cost, speeds).end if sends else _ready(passes)[-1]
            seconds += end
        found.append(seconds / len(ranks[0].steps))
    return found


def replayed(passes: Sequence[Pass], cost: Cost, speeds: Speeds) -> Replayed:
    """Replay a pass of all ranks with messages.

    A bucket is sent once the last rank has it ready, and the computation ends with the last rank's
    last bucket: what delays one rank delays all.
    """
    ready = _ready(passes)
    sizes = [size for size, _ in passes[0].buckets]
    messages = [Message(at, cost(size)) for at, size in zip(ready, sizes, strict=True)]
    return replay(ready[-1], messages, speeds)


def buckets(gradients: Sequence[tuple[int, float]], cap: int) -> list[tuple[int, float]]:
    """Return bytes of DDP's buckets, and the part of the backward pass after which each is ready.

    As ``torch.distributed`` makes them after its first pass: gradients in the order in which they
    are ready, and a bucket ends with the one that fills it.
    """
    found: list[tuple[int, float]] = []
    size, limit = 0, min(FIRST_BUCKET, cap)
    for number, (nbytes, at) in enumerate(gradients, 1):
        size += nbytes
        if size >= limit or number == len(gradients):
            found.append((size, at))
            size, limit = 0, cap
    return found


def spread(values: Sequence[float]) -> float | None:
    """Return by how much the medians of two halves differ; every other value is of one half."""
    if len(values) < 2:
        return None
    one, other = statistics.median(values[::2]), statistics.median(values[1::2])
    return abs(one - other) / statistics.median(values)


def _in_buckets(recorded: Recorded, cap: int, cost: Cost, speeds: Speeds) -> float:
    """Return the time of a step's passes with buckets of another size, on average."""
    rounds = recorded.rounds["quiet"]
    steps = sum(len(ranks[0].steps) for ranks in rounds)
    ends = [_ready(passes)[-1] for ranks in rounds for passes in _together(ranks)]
    end = statistics.fmean(ends)
    passes = len(ends) / steps  # of a step
    backward = min(end, recorded.parts("quiet").backward / passes)
    messages = [
        Message(end - (1 - part) * backward, cost(size))
        for size, part in buckets(recorded.facts.gradients, cap)
    ]
    return passes * replay(end, messages, speeds).end


def _together(ranks: Sequence[Round]) -> Iterator[tuple[Pass, ...]]:
    return zip(*(each.passes for each in ranks), strict=True)


def _ready(passes: Sequence[Pass]) -> list[float]:
    """Return when all ranks have each bucket, in seconds since the pass began."""
    begin = max(each.begin for each in passes)
    places = range(len(passes[0].buckets))
    return [max(each.buckets[place][1] for each in passes) - begin for place in places]


def _measured(prediction: Prediction, seconds: Sequence[float]) -> Prediction:
    if not seconds:
        return prediction
    median = statistics.median(seconds)
    return replace(prediction, measured=median, spread=spread(seconds))


def _parts(recorded: Recorded, way: str) -> dict[str, float]:
    parts = asdict(recorded.parts(way))
    del parts["passes"]
    return parts


def _with_communication(parts: dict[str, float], seconds: float) -> dict[str, float]:
    return {**parts, "communication": max(0.0, seconds - sum(parts.values()))}
