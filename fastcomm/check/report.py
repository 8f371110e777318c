"""What a check has found, in words: a verdict for each path, and what is wrong with it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fastcomm.bench.units import format_size
from fastcomm.check.checker import Row

# A link of less than this part of the median of all is called slow.
SLOW = 0.5


def paths_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each path, in order of appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["path"], []).append(row)
    return found


def links_of(rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Return the rows of one path that are about two devices, by (from, to)."""
    return {(row["from"], row["to"]): row for row in rows if row["check"] == "pair"}


def slow_links(rows: Sequence[Row]) -> list[Row]:
    """Return the links of one path that are much slower than most."""
    timed = [row for row in links_of(rows).values() if "gbs" in row]
    if not timed:
        return []
    median = statistics.median(row["gbs"] for row in timed)
    return [row for row in timed if row["gbs"] < SLOW * median]


def verdict_of(rows: Sequence[Row]) -> str:
    """Return what to say of a path: ``ok``, ``slow links``, ``not used``, ``wrong``, ``failed``."""
    found = {row["verdict"] for row in rows}
    for verdict in ("failed", "wrong"):
        if verdict in found:
            return verdict
    if rows[0]["verdict"] == "not used":
        return "not used"
    return "slow links" if slow_links(rows) else "ok"


def is_bad(rows: Sequence[Row]) -> bool:
    """Tell whether anything is wrong or has failed."""
    return any(row["verdict"] in ("wrong", "failed") for row in rows)


def settings(rows: Sequence[Row]) -> dict[str, str]:
    """Return environment variables that lead groups around what is wrong."""
    found = {}
    verdicts = {name: verdict_of(of_path) for name, of_path in paths_of(rows).items()}
    bad = ("wrong", "failed")
    good = ("ok", "slow links")
    ways = {way: verdicts.get(f"devices, {way}") for way in ("handle", "descriptor", "fabric")}
    if any(verdict in bad for verdict in ways.values()):
        right = [way for way, verdict in ways.items() if verdict in good]
        if right:
            found["FASTCOMM_IPC"] = right[0]
        else:
            pinned = verdicts.get("devices, pinned") in good
            found["FASTCOMM_ROUTE"] = "pinned" if pinned else "nccl"
    elif verdicts.get("devices, pinned") in bad and not any(v in good for v in ways.values()):
        found["FASTCOMM_ROUTE"] = "nccl"
    if verdicts.get("memfd") in bad and verdicts.get("posix") in good:
        found["FASTCOMM_TRANSPORT"] = "posix"
    return found


def format_text(rows: Sequence[Row]) -> str:
    """Return tables: paths with their verdicts, what is wrong, speeds, links."""
    from tabulate import tabulate

    parts = []
    body = []
    for name, of_path in paths_of(rows).items():
        verdict = verdict_of(of_path)
        good = sum(row["verdict"] == "ok" for row in of_path)
        why = next((row["why"] for row in of_path if row["verdict"] == "not used"), "")
        body.append([name, of_path[0]["ranks"], verdict, f"{good} of {len(of_path)}", _cut(why)])
    parts.append(tabulate(body, ["path", "ranks", "verdict", "checks right", ""]))
    wrong = [
        [
            row["path"],
            row["check"],
            row["operation"],
            format_size(row["bytes"]),
            row["verdict"],
            _cut(row["why"]),
        ]
        for row in rows
        if row["verdict"] in ("wrong", "failed")
    ]
    if wrong:
        parts.append(tabulate(wrong, ["path", "check", "operation", "size", "", ""]))
    speeds = [
        [
            row["path"],
            row["operation"],
            format_size(row["bytes"]),
            row["median_us"],
            row["busbw_gbs"],
            ", ".join(f"{name}: {us}" for name, us in row["beside"].items()),
        ]
        for row in rows
        if row["check"] == "speed"
    ]
    if speeds:
        parts.append(tabulate(speeds, ["speed", "", "size", "µs", "busbw GB/s", "beside, µs"]))
    for name, of_path in paths_of(rows).items():
        if links_of(of_path):
            parts.append(f"GB/s between devices, {name}\n" + _matrix(of_path))
    return "\n\n".join(parts)


def _cut(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _matrix(rows: Sequence[Row]) -> str:
    from tabulate import tabulate

    links = links_of(rows)
    count = 1 + max(max(pair) for pair in links)
    slow = {(row["from"], row["to"]) for row in slow_links(rows)}
    body = []
    for source in range(count):
        cells: list[str] = []
        for target in range(count):
            row = links.get((source, target))
            if row is None:
                cells.append("")
            elif "gbs" in row:
                cells.append(f"{row['gbs']:.3g}{' slow' if (source, target) in slow else ''}")
            else:
                cells.append(row["verdict"])
        body.append([f"from {source}", *cells])
    heads = ["", *(f"to {target}" for target in range(count))]
    return str(tabulate(body, heads, disable_numparse=True))
