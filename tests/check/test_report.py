"""Verdicts, settings, text and picture of a check, made from its rows."""

from __future__ import annotations

from typing import Any

import pytest

from fastcomm._machine import verdicts as _verdicts
from fastcomm.check import report
from fastcomm.check.plot import draw

Row = dict[str, Any]


def _row(path: str, verdict: str = "ok", check: str = "staged", **more: Any) -> Row:
    row = {"path": path, "check": check, "operation": "all_reduce", "bytes": 4096, "ranks": 3}
    return {**row, "verdict": verdict, "why": more.pop("why", ""), **more}


def _links(path: str, speeds: dict[tuple[int, int], float]) -> list[Row]:
    return [
        _row(path, check="pair", gbs=gbs) | {"from": source, "to": target}
        for (source, target), gbs in speeds.items()
    ]


# GB/s of links that are about equally fast.
EVEN = {(s, t): 20.0 + s for s in range(3) for t in range(3) if s != t}


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([_row("a"), _row("a")], "ok"),
        ([_row("a"), _row("a", "wrong"), _row("a", "not run")], "wrong"),
        ([_row("a", "wrong"), _row("a", "failed")], "failed"),
        ([_row("a", "not used", why="no link")], "not used"),
        ([_row("a"), _row("a", "not used", check="in place")], "ok"),
        (_links("a", EVEN), "ok"),
        (_links("a", {**EVEN, (0, 2): 5.0}), "slow links"),
    ],
)
def test_the_verdict_of_a_path(rows: list[Row], verdict: str) -> None:
    assert report.verdict_of(rows) == verdict
    assert report.is_bad(rows) == (verdict in ("wrong", "failed"))


def test_slow_links_are_named() -> None:
    rows = _links("devices, handle", {**EVEN, (0, 2): 5.0, (2, 1): 9.0})
    assert [(row["from"], row["to"]) for row in report.slow_links(rows)] == [(0, 2), (2, 1)]
    text = report.format_text(rows)
    # The third one is in the verdict.
    assert "5 slow" in text and "9 slow" in text and text.count("slow") == 3, text


@pytest.mark.parametrize(
    ("verdicts", "settings"),
    [
        ("handle: ok, pinned: ok", ""),
        ("handle: not used, descriptor: ok, pinned: ok", ""),
        ("handle: not used, pinned: ok", ""),
        ("handle: wrong, descriptor: ok", "FASTCOMM_IPC=descriptor"),
        ("handle: ok, fabric: wrong", "FASTCOMM_IPC=handle"),
        ("handle: failed, descriptor: not used, pinned: ok", "FASTCOMM_ROUTE=pinned"),
        ("handle: failed, pinned: wrong", "FASTCOMM_ROUTE=nccl"),
        ("handle: not used, pinned: wrong", "FASTCOMM_ROUTE=nccl"),
        ("memfd: failed, posix: ok", "FASTCOMM_TRANSPORT=posix"),
        ("memfd: failed, posix: failed", ""),
        ("one process: wrong, memfd: ok", "FASTCOMM_PEER_ACCESS=off"),
    ],
)
def test_settings_lead_around_what_is_wrong(verdicts: str, settings: str) -> None:
    rows = []
    for part in verdicts.split(", "):
        name, verdict = part.split(": ")
        on_host = name in ("memfd", "posix", "one process")
        rows.append(_row(name if on_host else f"devices, {name}", verdict))
    assert report.settings(rows) == dict([settings.split("=")] if settings else [])


@pytest.mark.parametrize(
    "row",
    [
        _row("devices, handle", "failed", check="speed", why="NCCL error"),
        _row("devices, handle", "failed", check="ranks", late=True, why="no result in time"),
        _row("devices, handle", "failed", why="CUDA out of memory. Tried to allocate 4 MiB"),
    ],
)
def test_what_may_be_somebody_elses_fault_leads_around_nothing(row: Row) -> None:
    rows = [_row("devices, handle"), row, _row("devices, pinned")]
    assert report.verdict_of(rows[:2]) == "failed" and report.is_bad(rows)
    assert report.settings(rows) == {}
    # Earlier verdicts stay.
    assert not report.decided(rows, all_devices=True) & {"FASTCOMM_IPC", "FASTCOMM_ROUTE"}


def test_what_a_check_decides() -> None:
    host = [_row("one process"), _row("memfd"), _row("posix")]
    rows = [*host, _row("devices, handle"), _row("devices, pinned")]
    assert report.decided(rows, all_devices=True) == set(_verdicts.SETTINGS)
    assert report.decided(rows, all_devices=False) == {"FASTCOMM_TRANSPORT"}
    assert report.decided(host, all_devices=True) == {"FASTCOMM_TRANSPORT", "FASTCOMM_PEER_ACCESS"}
    assert report.decided(host[:2], all_devices=False) == set()


def _balance(path: str, of: int, all_reduce: float, all_gather: float) -> Row:
    ratio = all_gather / all_reduce
    times = {"all_reduce_us": all_reduce, "all_gather_us": all_gather}
    return _row(path, check="balance", of=of, ratio=ratio, gap=2 * ratio) | times


def test_an_all_gather_that_reads_from_one_gpu_at_a_time_is_told() -> None:
    """Times of 16 MiB between H100s, by benchmarks/expected.py: links used at once, and not."""
    good = [_balance("devices, handle", *row) for row in ((2, 97, 57), (4, 120, 62), (8, 132, 65))]
    assert report.warnings(good) == []
    bad = [*good[:1], *(_balance("devices, handle", *row) for row in ((4, 120, 95), (8, 132, 185)))]
    told = report.warnings(bad)
    assert ["of 4 ranks" in told[0], "of 8 ranks" in told[1]] == [True, True] and len(told) == 2
    assert "gets 0.63 of" in told[0] and "gets 0.36 of" in told[1], told
    text = report.format_text(bad)
    assert "all_gather beside all_reduce" in text and "185" in text, text


def test_the_way_of_groups_is_the_first_that_is_right() -> None:
    rows = [_row("devices, handle", "not used"), _row("devices, descriptor"), _row("memfd")]
    assert report.way_of([*rows, _row("devices, pinned")]) == "descriptor"
    assert report.way_of([*rows[:1], _row("devices, pinned")]) == "pinned"
    assert report.way_of([_row("memfd")]) is None


def test_what_is_wrong_is_in_the_text() -> None:
    rows = [_row("memfd"), _row("memfd", "wrong", why="rank 1: 7 wrong elements")]
    text = report.format_text(rows)
    assert "1 of 2" in text and "rank 1: 7 wrong elements" in text, text


def test_a_picture_has_a_panel_for_each_path_with_links() -> None:
    speed = _row("memfd", check="speed", median_us=3.0, busbw_gbs=1.0, beside={"gloo": 9.0})
    rows = [speed, *_links("devices, handle", EVEN), *_links("devices, pinned", {(0, 1): 3.0})]
    titles = [axis.get_title() for axis in draw(rows).axes]
    assert [title for title in titles if title] == [
        "devices, handle [GB/s]",
        "devices, pinned [GB/s]",
    ]
    with pytest.raises(ValueError, match="nothing was timed"):
        draw([_row("memfd")])
