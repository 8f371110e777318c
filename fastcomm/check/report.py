"""Findings of a check: a verdict for each path, tables, and settings that avoid faults."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fastcomm._measure.units import format_size
from fastcomm.check.checker import Row
from fastcomm.check.paths import BETWEEN_DEVICES

# A link with less than this fraction of the median bandwidth is called slow.
SLOW = 0.5
# all_reduce and all_gather fill links alike, and all_reduce copies more besides. If ranks read from
# one GPU at a time, all_gather has 0.6 to 0.7 of its bandwidth with 4 ranks, 0.4 with 8.
GAP = 1.3


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
    """Return the links of one path with less than `SLOW` of the median bandwidth."""
    timed = [row for row in links_of(rows).values() if "gbs" in row]
    if not timed:
        return []
    median = statistics.median(row["gbs"] for row in timed)
    return [row for row in timed if row["gbs"] < SLOW * median]


def verdict_of(rows: Sequence[Row]) -> str:
    """Return the verdict on a path: ``ok``, ``slow links``, ``not used``, ``wrong``, ``failed``."""
    found = {row["verdict"] for row in rows}
    for verdict in ("failed", "wrong"):
        if verdict in found:
            return verdict
    if rows[0]["verdict"] == "not used":
        return "not used"
    return "slow links" if slow_links(rows) else "ok"


def way_of(rows: Sequence[Row]) -> str | None:
    """Return the way that groups take between these devices: the first that is right."""
    paths = paths_of(rows)
    for path in BETWEEN_DEVICES:
        if path.name in paths and verdict_of(paths[path.name]) in ("ok", "slow links"):
            return path.name.removeprefix("devices, ")
    return None


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return what is right, but should not be so, a line each."""
    text = []
    for row in rows:
        for rank, extra in enumerate(row.get("extra_contexts", ())):
            if extra:
                named = " and ".join(map(str, extra))
                text.append(
                    f"{row['path']}: rank {rank} has a context on GPU {named}, which it does not"
                    " use: hundreds of MB there"
                )
        if row.get("gap", 0) >= GAP:
            text.append(
                f"{row['path']}: all_gather of {row['of']} ranks gets {1 / row['gap']:.2f} of the"
                " bandwidth of all_reduce, which should not be faster"
            )
    return text


def is_bad(rows: Sequence[Row]) -> bool:
    """Tell whether anything is wrong or has failed."""
    return any(row["verdict"] in ("wrong", "failed") for row in rows)


def is_excused(row: Row) -> bool:
    """Tell whether a failure may have a cause outside of the path.

    A stock backend took part, a rank was late, or memory was used up.
    """
    if row["verdict"] != "failed":
        return False
    return row["check"] == "speed" or bool(row.get("late")) or "out of memory" in row["why"].lower()


def settings(rows: Sequence[Row]) -> dict[str, str]:
    """Return the environment variables, by name, with which groups avoid the faults found."""
    found = {}
    paths = paths_of(rows)
    bad = {name for name, of in paths.items() if is_bad([r for r in of if not is_excused(r)])}
    good = {name for name, of in paths.items() if verdict_of(of) in ("ok", "slow links")}
    ways = {way: f"devices, {way}" for way in ("handle", "descriptor", "fabric")}
    pinned = "devices, pinned"
    working = [way for way, name in ways.items() if name in good]
    if bad & set(ways.values()):
        if working:
            found["FASTCOMM_IPC"] = working[0]
        else:
            found["FASTCOMM_ROUTE"] = "pinned" if pinned in good else "nccl"
    elif pinned in bad and not working:
        found["FASTCOMM_ROUTE"] = "nccl"
    if "memfd" in bad and "posix" in good:
        found["FASTCOMM_TRANSPORT"] = "posix"
    if "one process" in bad:
        found["FASTCOMM_PEER_ACCESS"] = "off"
    return found


def decided(rows: Sequence[Row], all_devices: bool) -> set[str]:
    """Return the names of the settings that this check can decide.

    Args:
        rows: those of the check.
        all_devices: True if it used every device of the machine.
    """
    paths = paths_of(rows)
    known = {name for name, of_path in paths.items() if not any(map(is_excused, of_path))}
    found = {"FASTCOMM_TRANSPORT"} if {"memfd", "posix"} <= known else set()
    if all_devices and "one process" in known:
        found.add("FASTCOMM_PEER_ACCESS")
    on_devices = {name for name in paths if name.startswith("devices, ")}
    if all_devices and on_devices and on_devices <= known:
        found |= {"FASTCOMM_IPC", "FASTCOMM_ROUTE"}
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
            row["algbw_gbs"],
            row.get("busbw_gbs", ""),
            ", ".join(f"{name}: {us}" for name, us in row["beside"].items()),
        ]
        for row in rows
        if row["check"] == "speed" and "median_us" in row
    ]
    if speeds:
        heads = ["speed", "", "size", "µs", "algbw GB/s", "busbw GB/s", "beside, µs"]
        parts.append(tabulate(speeds, heads))
    beside = [
        [row["path"], row["of"], row["all_reduce_us"], row["all_gather_us"], row["ratio"]]
        for row in rows
        if "gap" in row
    ]
    if beside:
        heads = ["all_gather beside all_reduce", "ranks", "all_reduce µs", "all_gather µs", "ratio"]
        parts.append(tabulate(beside, heads))
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
