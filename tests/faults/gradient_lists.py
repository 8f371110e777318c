"""Random lists of gradients for fused reductions, all of which their groups reduce natively."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, prod

from faults.schedule import CONFIGURATIONS, DTYPES, LARGEST, Gradients, Op

FLOATS = ("float32", "bfloat16", "float64")
WIRES = ("float32", "bfloat16", "float16")
NORMS = (2.0, 1.0, inf, None)
UNSCALES = (1.0, 1.0 / 1024, 1.0 / 3)

Shape = tuple[int, ...]

_WIDEST = max(DTYPES.values())
_UNIT = 4096  # elements that one rank reduces as a whole
_MANY = 6000  # elements of one gradient among many, at most
_MOST_RANKS = 6


def longest(configuration: str) -> int:
    """Return the elements of a gradient, of any type, whose units fit a rank's share of a block.

    By default a block is 512 KiB or more.
    """
    block = int(CONFIGURATIONS[configuration].get("FASTCOMM_BLOCK_BYTES", 512 << 10))
    fitting = (block // _MOST_RANKS - 128) // _WIDEST  # two lines: rounding, and the unit's norm
    return LARGEST // _WIDEST if fitting >= _UNIT else fitting


def operation(rng: random.Random, group: int, configuration: str) -> Op:
    """Return a fused reduction of no, a few, or many gradients; of LARGEST bytes at most."""
    draw = rng.random()
    length = 0 if draw < 0.05 else rng.randint(1, 6) if draw < 0.7 else rng.randint(20, 60)
    alike = rng.choice(FLOATS) if rng.random() < 0.4 else None
    left, tensors = LARGEST, []
    for _ in range(length):
        dtype = alike or rng.choice(FLOATS)
        limit = min(longest(configuration), left // DTYPES[dtype])
        shape = _shape(rng, min(limit, _MANY) if length > 6 else limit, length > 6)
        tensors.append((dtype, shape))
        left -= prod(shape) * DTYPES[dtype]
    gradients = Gradients(
        tuple(tensors), rng.choice(UNSCALES), rng.choice(WIRES), rng.choice(NORMS)
    )
    return Op(group, "fused_all_reduce", average=rng.random() < 0.7, gradients=gradients)


def _shape(rng: random.Random, limit: int, evenly: bool) -> Shape:
    """Return the shape of nothing, of a number, of some units, or of any size up to the limit."""
    draw = rng.random()
    if limit < 2 or draw < 0.05:
        return (0,)
    if draw < 0.1:
        return ()
    if draw < 0.25 and limit > _UNIT:
        return (_UNIT * rng.randint(1, limit // _UNIT) + rng.choice([-1, 0, 0]),)
    count = rng.randint(1, limit) if evenly else int(2 ** rng.uniform(0, limit.bit_length() - 1))
    return (2, count // 2) if draw > 0.8 else (count,)


def of_one(op: Op) -> Op:
    """Return the fused reduction most similar to an all_reduce."""
    dtype = op.dtype if op.dtype in FLOATS else "float32"
    gradients = Gradients(((dtype, (op.count,)),))
    return Op(op.group, "fused_all_reduce", average=op.average, gradients=gradients)


def unlike(rng: random.Random, op: Op) -> Op:
    """Return a call that differs from a fused reduction in one thing, or is no such reduction."""
    if (draw := rng.random()) < 0.1:
        return Op(op.group, "barrier")
    if draw < 0.2:
        return Op(op.group, "all_reduce", count=7)
    if draw < 0.3:
        return replace(op, average=not op.average)
    assert op.gradients is not None
    return replace(op, gradients=_unlike(rng, op.gradients))


def _unlike(rng: random.Random, one: Gradients) -> Gradients:
    listed = one.tensors
    changes = [
        replace(one, tensors=(*listed, ("float32", (3,)))),
        replace(one, scale=one.scale * 2),
        replace(one, norm=rng.choice([norm for norm in NORMS if norm != one.norm])),
    ]
    if any(dtype == "float32" for dtype, _ in listed):
        wire = rng.choice([wire for wire in WIRES if wire != one.wire])
        changes.append(replace(one, wire=wire))
    if listed:
        at = rng.randrange(len(listed))
        dtype, shape = listed[at]
        before, behind = listed[:at], listed[at + 1 :]
        other = rng.choice([name for name in FLOATS if name != dtype])
        for another in ((other, shape), (dtype, (1, *shape)), (dtype, (prod(shape) + 1,))):
            changes.append(replace(one, tensors=(*before, another, *behind)))
        changes.append(replace(one, tensors=before + behind))
    return rng.choice(changes)
