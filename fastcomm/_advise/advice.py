"""The advice that follows from what crews have told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from fastcomm._advise import predict
from fastcomm._advise.findings import Findings, Limits
from fastcomm._advise.measure import Recorded
from fastcomm._advise.plot import write_plot
from fastcomm._advise.predict import Prediction
from fastcomm._advise.report import report

HOSTS = (2, 4, 16)
UNSTEADY = 1.25  # times as long as in another turn


class Advice(Findings):
    """What `fastcomm.advise` returns; printed, it is tables and the recommendation."""

    def plot(self, path: str | Path) -> None:
        """Draw time per step, by part, against the number of devices, as a PNG.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        write_plot(self, Path(path))

    def __str__(self) -> str:
        return report(self)


def advice_from(
    recorded: Sequence[Recorded], links: Sequence[float], notes: Sequence[str] = ()
) -> Advice:
    """Return the advice that follows from what was recorded.

    Args:
        recorded: one process with the whole batch first.
        links: between hosts, in Gbit/s.
        notes: what was left out.
    """
    one = recorded[0]
    facts = one.facts
    found = Advice([predict.of_one(one)], notes=list(notes))
    found.environment = {
        "device": facts.device,
        "optimizer": facts.optimizer,
        "batch": facts.batch,
        "passes": facts.passes,
        "threads": {each.spec.ranks: each.facts.threads for each in recorded},
    }
    for each in recorded:
        if each.spec.slots > 1:
            found.predictions.append(predict.of_slots(each))
        if each.spec.ranks == 1:
            continue
        ddp = predict.of_ddp(each)
        found.predictions.append(ddp)
        if each.spec.divisor == 1:
            found.settings += predict.settings(each, ddp, found.one)
            found.limits.append(_limits(one, each, ddp))
            found.hosts = [predict.of_hosts(each, ddp, h, link) for h in HOSTS for link in links]
    by_ranks = {each.devices for each in found.predictions if each.way.startswith("DDP")}
    for ranks in sorted(by_ranks):
        found.pays_from.update(_pays_from(found, recorded, ranks))
    if (spread := max(found.one.turns) / min(found.one.turns)) > UNSTEADY:
        found.notes.append(
            f"this machine was unsteady: steps of {found.one.way} took up to {spread:.1f} times as "
            "long in one turn as in another; more turns, or less beside it, would tell more"
        )
    return found


def _limits(one: Recorded, ranks: Recorded, ddp: Prediction) -> Limits:
    alone, quiet = one.seconds("plain"), ranks.seconds("quiet")
    both = list(zip(alone, ranks.apart, quiet, ddp.turns, strict=True))
    busy = [round.busy for turn in one.rounds["plain"] for round in turn]
    return Limits(
        devices=ranks.spec.ranks,
        cores=statistics.median(single / apart for single, apart, _, _ in both),
        sharing=statistics.median(apart / beside for _, apart, beside, _ in both),
        communication=statistics.median(min(1.0, beside / sent) for _, _, beside, sent in both),
        busy=statistics.median(busy),
        loading=one.parts("plain").loading / statistics.median(alone),
    )


def _pays_from(found: Advice, recorded: Sequence[Recorded], ranks: int) -> dict[int, float]:
    """Return the batch from which ranks that divide it are faster, by lines through two sizes."""
    ones = [
        (each.facts.rows, statistics.median(each.seconds("plain")))
        for each in recorded
        if each.spec.ranks == each.spec.slots == 1
    ]
    several = [
        (each.rows, each.seconds)
        for each in found.predictions
        if each.way.startswith("DDP") and each.devices == ranks
    ]
    if len({rows for rows, _ in ones}) < 2 or len({rows for rows, _ in several}) < 2:
        return {}
    (base, slope), (their_base, their_slope) = _line(ones), _line(several)
    if their_slope >= slope:
        whole = ones[0][0]  # as far as it was run
        return {ranks: 1.0 if their_base + their_slope * whole < ones[0][1] else float("inf")}
    return {ranks: max(1.0, (their_base - base) / (slope - their_slope))}


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    slope, base = statistics.linear_regression(*zip(*points, strict=True))
    return base, slope
