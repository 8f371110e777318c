"""Random schedules, each made from its seed alone."""

from __future__ import annotations

import random
from dataclasses import replace

from faults import gradient_lists
from faults.schedule import (
    CONFIGURATIONS,
    DTYPES,
    EAGER,
    LARGEST,
    PATIENT,
    WORLD,
    Fault,
    Op,
    Schedule,
    Step,
    players,
)

# How often each fault comes up.
WEIGHTS = {
    "none": 10,
    "kill": 8,
    "kill in flight": 14,
    "exit": 4,
    "crash": 3,
    "quit": 4,
    "raise": 4,
    "leave": 7,
    "raise and leave": 3,
    "abort": 4,
    "stop": 5,
    "stop in flight": 6,
    "stop past timeout": 4,
    "delay": 4,
    "delay past timeout": 4,
    "mismatch": 12,
    "misfit": 10,
    "skip": 5,
    "extra": 5,
    "expire": 6,
    "interrupt": 6,
}

# How often each operation comes up.
_COLLECTIVES = {
    "all_reduce": 10,
    "fused_all_reduce": 6,
    "broadcast": 4,
    "all_gather": 4,
    "all_gather_into_tensor": 2,
    "reduce_scatter_tensor": 4,
    "barrier": 2,
    "reduce": 2,
    "gather": 2,
    "scatter": 2,
    "all_to_all": 2,
    "all_to_all_single": 3,
    "all_gather_uneven": 2,
    "reduce_scatter_uneven": 2,
    "all_reduce_coalesced": 2,
    "all_gather_coalesced": 2,
    "all_reduce_sparse": 2,
}
_MESSAGES = {"message": 14, "any_source": 3, "batch": 4}

_ROOTED = ("broadcast", "reduce", "scatter", "gather", "any_source")
_AVERAGING = ("all_reduce", "reduce_scatter_tensor")
_REDUCING = (*_AVERAGING, "reduce", "reduce_scatter_uneven", "all_reduce_coalesced")
_OF_PARTS = ("all_to_all", "all_to_all_single", "gather", "scatter", "any_source")
_TAGS = (0, 1, 7)  # of messages; what is received from any rank has a tag of its own

# Bytes up to which an operation is done in one step if more than two ranks do it; many sizes lie
# around them.
_ONE_SHOT = {"default": 256 << 10, "small blocks": 4096, "unit blocks": 4096}
_ONE_SHOT_OF_TWO = 1 << 20  # by default


def make_schedule(seed: int) -> Schedule:
    """Return a seed's schedule, the same on every machine."""
    rng = random.Random(seed)
    kinds, weights = zip(*WEIGHTS.items(), strict=True)
    kind = rng.choices(kinds, weights)[0]
    size = rng.randint(2, 6)
    configuration = rng.choice(list(CONFIGURATIONS))
    single = kind in ("skip", "extra", "stop past timeout") or rng.random() < 0.7
    groups = [tuple(range(size))]
    if not single:
        for _ in range(rng.randint(1, 2)):
            groups.append(tuple(sorted(rng.sample(range(size), rng.randint(1, size)))))
    # A rank that skips a collective and then sends or receives waits for one that waits for it.
    kinds_of_ops = _COLLECTIVES if kind == "skip" else _COLLECTIVES | _MESSAGES
    ops = _operations(rng, groups, configuration, kinds_of_ops)
    steps = tuple(_steps(rng, rank, groups, ops) for rank in range(size))
    schedule = Schedule(
        seed, size, configuration, tuple(groups), tuple(ops), steps, Fault(), PATIENT
    )
    return _with_fault(rng, schedule, kind)


def _operations(
    rng: random.Random,
    groups: list[tuple[int, ...]],
    configuration: str,
    weights: dict[str, int],
) -> list[Op]:
    return [
        _operation(
            rng, rng.choice([WORLD, rng.randrange(len(groups))]), groups, configuration, weights, n
        )
        for n in range(rng.randint(3, 16))
    ]


def _operation(
    rng: random.Random,
    group: int,
    groups: list[tuple[int, ...]],
    configuration: str,
    weights: dict[str, int],
    number: int,
) -> Op:
    members = groups[group]
    if len(members) == 1:
        weights = _COLLECTIVES
    kind = rng.choices(list(weights), list(weights.values()))[0]
    if kind == "fused_all_reduce":
        return gradient_lists.operation(rng, group, configuration)
    if kind == "barrier":
        return Op(group, kind)
    dtype = rng.choice(list(DTYPES))
    count = _count(rng, DTYPES[dtype], len(members), kind, configuration)
    if kind == "message":
        source, root = rng.sample(members, 2)
        return Op(group, kind, dtype, count, root=root, source=source, tag=rng.choice(_TAGS))
    average = kind in _AVERAGING and rng.random() < 0.3
    reduction = "sum"
    if kind in _REDUCING and not average and rng.random() < 0.4:
        reduction = rng.choice(_reductions(dtype))
    return Op(
        group,
        kind,
        dtype,
        count,
        average,
        rng.choice(members) if kind in _ROOTED else -1,
        reduction=reduction,
        tag=100 + number if kind in _MESSAGES else 0,
    )


def _reductions(dtype: str) -> list[str]:
    return ["min", "max", "product", *(["bor"] if dtype == "int64" else [])]


def _count(rng: random.Random, width: int, size: int, kind: str, configuration: str) -> int:
    """Return the elements of a message: none, few, about the one-shot limit, or up to the most."""
    parts = {"all_reduce": max(1, size - 1), "reduce_scatter_tensor": size}.get(kind, 1)
    most = EAGER if kind in _MESSAGES else _ONE_SHOT[configuration]
    if kind not in _MESSAGES and size == 2 and configuration == "default" and rng.random() < 0.5:
        most = _ONE_SHOT_OF_TWO
    limit = most // parts // width
    draw = rng.random()
    if draw < 0.05:
        return 0
    if draw < 0.3:
        return rng.randint(1, 64)
    if draw < 0.5:
        return limit + rng.randint(-2, 2)
    longest = LARGEST // (size if kind in _OF_PARTS else 1) // width
    return int(2 ** rng.uniform(0, longest.bit_length() - 1))


def _steps(
    rng: random.Random, rank: int, groups: list[tuple[int, ...]], ops: list[Op]
) -> tuple[Step, ...]:
    """Return a rank's own way through the operations, with a window of pending ones."""
    window = rng.choice([0, 1, 2, 4, 16])
    ordered = rng.random() < 0.7
    pending: list[int] = []
    steps = []
    for number, op in enumerate(ops):
        if rank not in players(op, groups):
            continue
        asynchronous = rng.random() < 0.6
        if asynchronous:
            pending.append(number)
        waits = []
        while len(pending) > window:
            waits.append(pending.pop(0 if ordered else rng.randrange(len(pending))))
        steps.append(Step(number, asynchronous, rng.random() < 0.3, tuple(waits)))
    if steps and pending:
        if not ordered:
            rng.shuffle(pending)
        steps[-1] = replace(steps[-1], then_wait=steps[-1].then_wait + tuple(pending))
    return tuple(steps)


_MET = ("skip", "extra", "mismatch", "expire", "interrupt", "delay past timeout")


def _with_fault(rng: random.Random, schedule: Schedule, kind: str) -> Schedule:
    """Add a fault; where the kind does not fit anywhere, there is none."""
    if kind == "none":
        return schedule
    victim = rng.randrange(schedule.size)
    mine = [step.op for step in schedule.steps[victim]]
    end = len(schedule.ops)
    fault = Fault(kind, victim)
    if kind == "misfit":
        return _with_misfit(rng, schedule, fault, mine)
    if kind in _MET:
        return _with_meeting(rng, schedule, fault, mine)
    at = rng.choice([*mine, end] if rng.random() < 0.3 or not mine else mine)
    fault = replace(fault, at=at)
    if kind == "kill in flight":
        return replace(schedule, fault=replace(fault, after=_soon(rng)))
    if kind in ("stop", "stop in flight"):
        after = _soon(rng) if kind == "stop in flight" else 0.0
        seconds = rng.uniform(0.02, 0.3)
        return replace(schedule, fault=replace(fault, after=after, seconds=seconds))
    if kind == "delay":
        return replace(schedule, fault=replace(fault, seconds=rng.uniform(0.02, 0.3)))
    if kind == "stop past timeout":
        mine = [op for op in mine if not schedule.ops[op].is_message]
        fault = replace(fault, at=rng.choice([*mine, end]))
        return _too_late(rng, schedule, fault)
    return replace(schedule, fault=fault)


def _soon(rng: random.Random) -> float:
    """Return seconds of the order that operations take."""
    return float(10 ** rng.uniform(-4, -1.7))


def _too_late(rng: random.Random, schedule: Schedule, fault: Fault) -> Schedule:
    timeout = rng.uniform(0.8, 1.2)
    fault = replace(fault, seconds=timeout + rng.uniform(0.8, 1.2))
    return replace(schedule, fault=fault, timeout=timeout)


def _with_meeting(
    rng: random.Random, schedule: Schedule, fault: Fault, mine: list[int]
) -> Schedule:
    """Add a fault that shows in one operation of a group of several ranks."""
    met = [op for op in mine if _is_met(schedule, fault, op)]
    if fault.kind == "delay past timeout":
        met = [op for op in met if schedule.ops[op].group == WORLD]
    if fault.kind == "skip":
        met = [op for op in met if _skip_shows(schedule, mine, op)]
    if not met:
        return schedule
    at = rng.choice(met)
    fault = replace(fault, at=at)
    if fault.kind == "delay past timeout":
        return _too_late(rng, schedule, fault)
    if fault.kind == "skip":
        return replace(schedule, fault=fault)
    if fault.kind == "mismatch":
        return replace(schedule, fault=replace(fault, other=_unlike(rng, schedule, at)))
    if fault.kind == "extra":
        other = _unlike(rng, schedule, at)
        if rng.random() < 0.2:
            fault = replace(fault, at=len(schedule.ops))
        return replace(schedule, fault=replace(fault, other=other))
    helper = rng.choice([rank for rank in schedule.players(at) if rank != fault.victim])
    if fault.kind == "expire":
        fault = replace(fault, after=rng.uniform(0.01, 0.15), seconds=rng.uniform(0.05, 0.3))
    else:
        fault = replace(fault, after=rng.uniform(0.01, 0.05), seconds=0.25)
    wait = fault.kind == "expire" or rng.random() < 0.5
    steps = tuple(
        _waiting_at(steps, at, wait) if rank == fault.victim else steps
        for rank, steps in enumerate(schedule.steps)
    )
    return replace(schedule, fault=replace(fault, helper=helper), steps=steps)


def _is_met(schedule: Schedule, fault: Fault, op: int) -> bool:
    """Tell whether the victim waits for others in it; for some faults only, a receive counts."""
    if schedule.ops[op].is_message:
        mine = schedule.ops[op].kind == "message" and schedule.ops[op].root == fault.victim
        return mine and fault.kind in ("expire", "interrupt")
    return len(schedule.members(op)) > 1


def _with_misfit(rng: random.Random, schedule: Schedule, fault: Fault, mine: list[int]) -> Schedule:
    """Let the victim send or receive something other than its peer says."""
    fitting = [
        op
        for op in mine
        if schedule.ops[op].kind == "message"
        or (schedule.ops[op].kind == "any_source" and schedule.ops[op].root != fault.victim)
    ]
    if not fitting:
        return schedule
    at = rng.choice(fitting)
    op = schedule.ops[at]
    changes = [replace(op, dtype=rng.choice([d for d in DTYPES if d != op.dtype]))]
    changes.append(replace(op, count=op.count + rng.choice([1, 100, 10000])))
    if op.count > 0:
        changes.append(replace(op, count=rng.randrange(op.count)))
    return replace(schedule, fault=replace(fault, at=at, other=rng.choice(changes)))


def _waiting_at(steps: tuple[Step, ...], at: int, asynchronous: bool) -> tuple[Step, ...]:
    """Let a rank issue ``at`` as wanted and wait for it at once."""
    changed = []
    for step in steps:
        waits = tuple(op for op in step.then_wait if op != at)
        if step.op == at:
            step = replace(step, asynchronous=asynchronous)
            waits = (at, *waits) if asynchronous else waits
        changed.append(replace(step, then_wait=waits))
    return tuple(changed)


def _skip_shows(schedule: Schedule, mine: list[int], op: int) -> bool:
    """Tell whether peers find something else, or nothing at all, where the victim skips ``op``."""
    later = mine[mine.index(op) + 1 :]
    return not later or schedule.ops[later[0]].call != schedule.ops[op].call


def _unlike(rng: random.Random, schedule: Schedule, at: int) -> Op:
    """A call that differs from operation ``at`` in one thing, or in everything."""
    op = schedule.ops[at]
    if op.kind == "fused_all_reduce":
        return gradient_lists.unlike(rng, op)
    members = schedule.groups[op.group]
    changes = [
        replace(op, kind="barrier")
        if op.kind != "barrier"
        else replace(op, kind="all_reduce", count=7)
    ]
    if op.kind != "barrier":
        changes.append(replace(op, count=op.count + rng.choice([1, 100, 10000])))
        changes.append(replace(op, dtype=rng.choice([d for d in DTYPES if d != op.dtype])))
    if op.kind in _REDUCING:
        others = [name for name in _reductions(op.dtype) if name != op.reduction]
        changes.append(replace(op, average=False, reduction=rng.choice(others)))
        if op.reduction == "bor":  # for integers only
            changes = [change for change in changes if change.dtype == op.dtype]
    if op.kind == "all_reduce":
        op = replace(op, reduction="sum")
        changes.append(replace(op, average=not op.average))
        changes.append(replace(op, kind="all_gather", average=False))
        changes.append(replace(op, kind="all_reduce_sparse", average=False))
        changes.append(gradient_lists.of_one(op))
        changes.append(replace(op, kind="broadcast", average=False, root=rng.choice(members)))
    if op.root >= 0:
        changes.append(replace(op, root=rng.choice([m for m in members if m != op.root])))
    return rng.choice(changes)
