"""The advice as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fastcomm._advise.findings import Findings
from fastcomm._advise.predict import Prediction
from fastcomm._measure.units import rounded_size


def report(advice: Findings) -> str:
    """Return tables, what limits more devices, how far to believe it, and the sentence."""
    blocks = [_found(advice), _table(advice, advice.predictions), _parts(advice)]
    if advice.settings:
        blocks.append("Other settings\n" + _table(advice, advice.settings))
    if advice.hosts:
        blocks.append("Several hosts like this one\n" + _table(advice, advice.hosts))
    blocks += [text for text in (_limits(advice), _pays(advice), _belief(advice)) if text]
    blocks += [f"Note: {note}." for note in advice.notes]
    return "\n\n".join([*blocks, advice.sentence])


def _found(advice: Findings) -> str:
    """Return what kind of training was found."""
    found = advice.environment
    threads = [
        f"{count} in {'one process' if ranks == 1 else f'each of {ranks} ranks'}"
        for ranks, count in found["threads"].items()
    ]
    passes = found["passes"]
    return (
        f"Found: {found['optimizer']}, batches of {found['batch']} rows, {passes} backward "
        f"{'pass' if passes == 1 else 'passes'} a step. Threads: {', '.join(threads)}."
    )


def _table(advice: Findings, predictions: Sequence[Prediction]) -> str:
    rows = []
    for each in predictions:
        devices = each.devices * each.hosts
        times = advice.times_as_fast(each)
        rows.append(
            {
                "way": each.way,
                "rows": f"{devices} x {each.share}",
                "ms a step": _number(each.seconds * 1e3),
                "measured": _measured(each),
                "samples/s": _number(each.rows_per_second),
                "times as fast": f"{times:.3g}",
                "efficiency": f"{100 * times / devices:.0f} %",
                "memory": rounded_size(each.memory_bytes),
                "gradients": rounded_size(each.sent_bytes) if each.sent_bytes else "",
            }
        )
    return _tabulated(rows)


def _parts(advice: Findings) -> str:
    """Return parts of each step, in milliseconds."""
    rows = []
    for each in advice.predictions:
        parts = {name: _number(1e3 * seconds) for name, seconds in each.parts.items()}
        rows.append({"parts of a step, ms": each.way, "rows": f"{each.devices} x {each.share}"})
        rows[-1] |= parts
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
    """Return from which batch ranks pay that divide it, near the sizes that were run."""
    lines = []
    for ranks, rows in advice.pays_from.items():
        batch = advice.one.rows
        if rows < batch / 4:
            when = f"faster than {advice.one.way} with {batch / 4:.0f} rows already"
        elif rows > 4 * batch:
            when = f"not faster than {advice.one.way} up to {4 * batch} rows"
        else:
            when = f"faster than {advice.one.way} from about {rows:.0f} rows on"
        lines.append(f"{ranks} ranks that divide a batch are {when} (unverified).")
    return "\n".join(lines)


def _belief(advice: Findings) -> str:
    everything = [*advice.predictions[1:], *advice.settings]
    errors = [abs(each.error) for each in everything if each.error is not None]
    spreads = [each.spread for each in everything if each.spread is not None]
    if not errors:
        return (
            f"Nothing but {advice.one.way} has been run as it is: --verify (in Python verify=True) "
            "runs what can be run here beside its prediction."
        )
    return (
        f"Predictions that were run here were off by {100 * statistics.median(errors):.0f} % in "
        f"the median, and {100 * max(errors):.0f} % at most; repeats of what was run differ by "
        f"{100 * statistics.median(spreads):.0f} %, and {100 * max(spreads):.0f} % at most."
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
