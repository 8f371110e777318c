"""Records of crews as workers would tell them, with known times."""

from __future__ import annotations

from collections.abc import Sequence

from fastcomm._advise.loop import Parts
from fastcomm._advise.measure import Recorded
from fastcomm._advise.replay import Speeds
from fastcomm._advise.told import Facts, Pass, Round, Spec

MIB = 1 << 20


def facts(rows: int = 64, gradients: Sequence[tuple[int, float]] = ((4 * MIB, 1.0),)) -> Facts:
    """Return facts of a model whose parameters all have gradients."""
    whole = sum(size for size, _ in gradients)
    return Facts(
        batch=rows,
        passes=1,
        gradients=tuple(gradients),
        parameter_bytes=whole,
        state_bytes=2 * whole,
        saved_bytes=1000 * rows,
        optimizer="Adam",
        threads=1,
        device="cpu",
    )


def steps(seconds: float, count: int = 4, loading: float = 0.0) -> tuple[Parts, ...]:
    """Return equal steps: a quarter forward, a half backward, a quarter the optimizer."""
    rest = seconds - loading
    return (Parts(loading, rest / 4, rest / 2, rest / 4, 1),) * count


def one(seconds: float, rows: int = 64, divisor: int = 1, turns: int = 4) -> Recorded:
    """Return what one process has told."""
    rounds = [[Round(steps(seconds), busy=2.0)] for _ in range(turns)]
    return Recorded(Spec(divisor=divisor), facts(rows // divisor), {"plain": rounds})


def ranks(
    seconds: float,
    cost: float,
    rows: int = 64,
    divisor: int = 1,
    count: int = 2,
    measured: float | None = None,
    apart: float = 0.5,
) -> Recorded:
    """Return what ranks have told whose steps have one bucket, of 4 MiB, at the end.

    A rank whose others rest takes ``apart`` times as long.
    """
    passes = tuple(Pass(i * seconds, ((4 * MIB, (i + 1) * seconds),)) for i in range(4))
    quiet = [Round(steps(seconds), passes) for _ in range(count)]
    recorded = Recorded(Spec(count, divisor=divisor), facts(rows // divisor))
    recorded.rounds = {"quiet": [quiet] * 4, "quiet views": [quiet] * 2}
    if measured is not None:
        recorded.rounds["ddp"] = [[Round(steps(measured))] * count] * 4
    recorded.costs = {
        "all_reduce": [{MIB: cost / 4, 4 * MIB: cost}],
        "bfloat16": [{MIB: cost / 8, 4 * MIB: cost / 2}],
        "sharded": [{4 * MIB: cost}],
    }
    recorded.speeds = [Speeds(0.5, 0.5)]
    recorded.apart = [apart * seconds] * 4
    return recorded


def slots(seconds: float, moved: float, rows: int = 64) -> Recorded:
    """Return what two replicas have told."""
    rounds = {"quiet slots": [[Round(steps(seconds))]] * 4}
    return Recorded(Spec(slots=2), facts(rows), rounds, moved=[moved])
