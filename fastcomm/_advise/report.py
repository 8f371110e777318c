"""The advice as text."""

from __future__ import annotations

from collections.abc import Sequence

from fastcomm._advise.findings import Findings
from fastcomm._advise.predict import Prediction
from fastcomm._measure.units import format_size


def report(advice: Findings) -> str:
    """Return tables, what limits more devices, how far to believe it, and the sentence."""
    blocks = [_table(advice, advice.predictions), _parts(advice)]
    if advice.settings:
        blocks.append("Other settings\n" + _table(advice, advice.settings))
    if advice.hosts:
        blocks.append("Several hosts like this one\n" + _table(advice, advice.hosts))
    blocks += [text for text in (_limits(advice), _pays(advice), _belief(advice)) if text]
    blocks += [f"Note: {note}." for note in advice.notes]
    return "\n\n".join([*blocks, advice.sentence])


def _table(advice: Findings, predictions: Sequence[Prediction]) -> str:
    several = any(each.hosts > 1 for each in predictions)
    rows = []
    for each in predictions:
        devices = each.devices * each.hosts
        times = advice.times_as_fast(each)
        rows.append(
            {
                "way": each.way,
                **({"hosts": str(each.hosts)} if several else {}),
                "devices": str(devices),
                "batch": str(each.rows),
                "ms a step": _number(each.seconds * 1e3),
                "measured": _measured(each),
                "samples/s": _number(each.rows_per_second),
                "times as fast": f"{times:.2f}",
                "efficiency": f"{100 * times / devices:.0f} %",
                "memory each": _size(each.memory_bytes),
                "gradients": _size(each.sent_bytes) if each.sent_bytes else "",
            }
        )
    return _tabulated(rows)


def _parts(advice: Findings) -> str:
    """Return parts of each step, in milliseconds."""
    rows = []
    for each in advice.predictions:
        parts = {name: _number(1e3 * seconds) for name, seconds in each.parts.items()}
        rows.append({"parts of a step, ms": f"{each.way}, {each.devices} x {each.share}", **parts})
    return _tabulated(rows)


def _tabulated(rows: Sequence[dict[str, str]]) -> str:
    from tabulate import tabulate

    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in names] for row in rows]
    aligned = ["left", *("right" for _ in names[1:])]
    return str(tabulate(cells, headers=names, colalign=aligned, disable_numparse=True))


def _measured(prediction: Prediction) -> str:
    if prediction.measured is None:
        return "unverified"
    if prediction.devices == 1:
        return _number(prediction.measured * 1e3)
    return f"{_number(prediction.measured * 1e3)} ({100 * (prediction.error or 0):+.0f} %)"


def _limits(advice: Findings) -> str:
    lines = []
    for each in advice.limits:
        product = each.devices * each.cores * each.sharing * each.communication
        lines.append(
            f"{each.devices} ranks are {product:.2f} times as fast as {advice.one.way}: "
            f"{each.devices} x {each.cores:.2f} (cores) x {each.sharing:.2f} (beside each other) x "
            f"{each.communication:.2f} (communication). {advice.one.way.capitalize()} keeps "
            f"{each.busy:.1f} cores busy; {100 * each.loading:.0f} % of its step waits for data."
        )
    return "\n".join(lines)


def _pays(advice: Findings) -> str:
    lines = []
    for ranks, rows in advice.pays_from.items():
        if rows == float("inf"):
            lines.append(f"{ranks} ranks that divide a batch are not faster with any batch.")
        elif rows <= 1:
            lines.append(f"{ranks} ranks that divide a batch are faster with any batch.")
        else:
            lines.append(f"{ranks} ranks that divide a batch are faster from {rows:.0f} rows on.")
    if lines:
        lines[-1] += " (Unverified: lines through two sizes of batch.)"
    return "\n".join(lines)


def _belief(advice: Findings) -> str:
    everything = [*advice.predictions[1:], *advice.settings]
    errors = [abs(each.error) for each in everything if each.error is not None]
    spreads = [each.spread for each in everything if each.spread is not None]
    if not errors:
        return (
            "Nothing but one device has been run as it is: --verify (verify=True) runs what can be "
            "run here beside its prediction."
        )
    return (
        f"Predictions that were run here were off by {100 * max(errors):.0f} % at most; repeats of "
        f"what was run differ by up to {100 * max(spreads):.0f} %."
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _size(nbytes: int) -> str:
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {name}"
    return format_size(nbytes)
