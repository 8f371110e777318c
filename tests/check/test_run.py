"""Checks of paths that are right, missing, wrong or broken. Devices are simulated."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sim.loading import load
from support import measured
from support.patience import ENDS

from fastcomm.check import Options, Path, report, results, run, speeds
from fastcomm.check.checker import Sizes
from fastcomm.check.paths import BETWEEN_DEVICES, ON_THE_HOST, ONE_PROCESS
from fastcomm.check.run import ask_devices, planned

SIZES = Sizes(long=64 << 10, pair=256 << 10)
HANDLE, PINNED = BETWEEN_DEVICES[0], BETWEEN_DEVICES[-1]
Row = dict[str, Any]


def _checked(path: Path, ranks: int, prepare: Any = None, timeout_s: float = ENDS) -> list[Row]:
    options = Options(
        budget_s=0.2, sizes=SIZES, prepare=prepare, timeout_s=timeout_s, start=measured.start
    )
    seen: list[Row] = []
    rows = run(options, [(path, ranks)], seen.append)
    assert seen == rows and all(row["ranks"] == ranks for row in rows)
    return rows


def _check_settings() -> None:
    """Assert that the path's settings have replaced those of the environment."""
    assert "FASTCOMM_ROUTE" not in os.environ and os.environ["FASTCOMM_TRANSPORT"] == "posix"


@pytest.fixture(scope="module")
def usual() -> tuple[list[Row], float]:
    """Return a path's rows where nothing is wrong, and the seconds that it takes here and now."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("FASTCOMM_ROUTE", "nccl")
        monkeypatch.setenv("FASTCOMM_TRANSPORT", "gloo")
        begun = time.monotonic()
        return _checked(ON_THE_HOST[1], 2, _check_settings), time.monotonic() - begun


def _spoil_a_gather() -> None:
    """Let all_gather give rank 1 one wrong element."""
    original = dist.all_gather

    def spoiled(parts: list[torch.Tensor], *arguments: Any, **options: Any) -> None:
        original(parts, *arguments, **options)
        if dist.get_rank() == 1:
            parts[0][:1] += 1

    dist.all_gather = spoiled


def test_a_wrong_element_is_found() -> None:
    rows = _checked(ON_THE_HOST[0], 2, _spoil_a_gather)
    wrong = [row for row in rows if row["verdict"] != "ok"]
    # Three kinds of messages by two types.
    assert {row["operation"] for row in wrong} == {"all_gather"} and len(wrong) == 6, wrong
    assert all(row["why"] == "rank 1: 1 wrong elements" for row in wrong), wrong
    assert report.verdict_of(rows) == "wrong"


def _raise_in_a_scatter() -> None:
    def raising(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("out of order\nmore")

    if dist.is_available():
        dist.scatter = raising


def test_what_raises_ends_a_path_and_is_said() -> None:
    rows = _checked(ON_THE_HOST[0], 2, _raise_in_a_scatter)
    verdicts = [row["verdict"] for row in rows]
    first = verdicts.index("failed")
    assert rows[first]["operation"] == "scatter" and "out of order" in rows[first]["why"]
    assert set(verdicts[:first]) == {"ok"} and set(verdicts[first + 1 :]) == {"not run"}
    assert report.verdict_of(rows) == "failed"


def _raise_on_one_rank() -> None:
    original = dist.scatter

    def raising(*arguments: Any, **options: Any) -> None:
        if dist.get_rank() == 1:
            raise RuntimeError("no room here")
        original(*arguments, **options)

    dist.scatter = raising


def test_what_raises_on_one_rank_is_said_of_that_rank_and_ends_in_time(
    usual: tuple[list[Row], float],
) -> None:
    rows = _checked(ON_THE_HOST[0], 2, _raise_on_one_rank, timeout_s=12 + 4 * usual[1])
    (failed,) = [row for row in rows if row["verdict"] == "failed"]
    assert failed["operation"] == "scatter", rows
    # After a quarter of the time the other rank names the one that is missing.
    assert "no room here" in failed["why"] or "rank 1" in failed["why"], failed
    assert not report.is_excused(failed)


def _hang_beside_gloo() -> None:
    """Let the first contender of the speed measurement, Gloo, hang."""
    original = speeds.make  # type: ignore[attr-defined]

    def hanging(*arguments: Any) -> Any:
        contenders: list[Any] = original(*arguments)
        contenders[0].check = lambda *_: time.sleep(600)
        return contenders

    speeds.make = hanging  # type: ignore[assignment, attr-defined]


def test_a_stock_backend_that_hangs_leads_around_nothing(
    usual: tuple[list[Row], float],
) -> None:
    timeout_s = 2 + 2 * usual[1]
    rows = _checked(ON_THE_HOST[0], 2, _hang_beside_gloo, timeout_s=timeout_s)
    while rows[-1]["check"] != "speed" and timeout_s < ENDS:  # too short for what comes before
        timeout_s *= 2
        rows = _checked(ON_THE_HOST[0], 2, _hang_beside_gloo, timeout_s=timeout_s)
    assert [row["verdict"] for row in rows[:-1]] == ["ok"] * (len(rows) - 1)
    assert (rows[-1]["check"], rows[-1]["verdict"]) == ("speed", "failed")
    assert "no result in time" in rows[-1]["why"] and report.is_excused(rows[-1])
    assert report.settings([*rows, {**rows[0], "path": "posix"}]) == {}


def test_a_path_has_its_own_settings(usual: tuple[list[Row], float]) -> None:
    assert {row["verdict"] for row in usual[0]} == {"ok"}, usual


def test_ranks_that_end_are_a_row() -> None:
    (row,) = _checked(Path("none", {"FASTCOMM_TRANSPORT": "none"}, False, ""), 2)
    assert row["verdict"] == "failed" and "FASTCOMM_TRANSPORT=none: may be one of" in row["why"]


def _use_the_first_device() -> None:
    """Let every rank make a context on the first device, as a library might."""
    load()
    torch.ones(1, device="sim:0")


def _extra_contexts(rows: list[Row]) -> list[list[int]]:
    (contexts,) = [row for row in rows if row["check"] == "contexts"]
    extra: list[list[int]] = contexts["extra_contexts"]
    return extra


@pytest.mark.usefixtures("simulated")
def test_devices_that_reach_each_other() -> None:
    """And a context on a device that is not a rank's own is told."""
    rows = _checked(HANDLE, 2, _use_the_first_device)
    assert {row["verdict"] for row in rows} == {"ok"}, rows
    assert report.verdict_of(rows) in ("ok", "slow links")  # simulated links have no fixed speed
    checks = {row["check"] for row in rows}
    assert {"one-shot", "staged", "in place", "same bits", "two groups at once"} < checks
    assert {"under a graph", "under load", "speed"} < checks
    assert {(row["from"], row["to"]) for row in rows if row["check"] == "pair"} == {(0, 1), (1, 0)}
    (balance,) = [row for row in rows if row["check"] == "balance"]
    assert balance["of"] == 2 and balance["ratio"] > 0
    assert balance["gap"] == pytest.approx(2 * balance["ratio"], abs=0.01)
    assert report.way_of(rows) == "handle"
    assert _extra_contexts(rows) == [[], [0]]
    (warning,) = [text for text in report.warnings(rows) if "context" in text]
    assert warning.startswith("devices, handle: rank 1 has a context on GPU 0, which it does not")


@functools.cache
def _past_a_link(link: str) -> list[Row]:
    """Return the rows of the path that uses no link, for two devices with such a one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SIM_LINKS", link)
        return _checked(PINNED, 2, load)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("link", [pytest.param("0-1 none", marks=pytest.mark.release), "0-1 reads"])
def test_the_path_that_uses_no_link_is_right_whatever_a_link_does(link: str) -> None:
    rows = _past_a_link(link)
    assert {row["verdict"] for row in rows} == {"ok", "not used"}
    assert [row["check"] for row in rows if row["verdict"] != "ok"] == ["in place"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("link", "words"), [("0-1 none", "peer access is not"), ("0-1 reads", "wrong numbers")]
)
def test_a_link_that_is_missing_or_wrong(
    link: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_LINKS", link)
    (row,) = _checked(HANDLE, 2, load)
    assert row["verdict"] == "not used" and words in row["why"], row


@pytest.mark.usefixtures("simulated")
def test_a_link_that_is_wrong_under_load_alone_is_gone_around(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIM_LINKS", "0-1 tired")
    rows = _checked(HANDLE, 2, load)
    verdicts = {row["check"]: row["verdict"] for row in rows if row["verdict"] != "ok"}
    assert verdicts.pop("under load") == "wrong", rows
    assert set(verdicts) <= {"two groups at once"}, rows  # also a load
    assert report.settings(rows + _past_a_link("0-1 reads")) == {"FASTCOMM_ROUTE": "pinned"}
    assert _extra_contexts(rows) == [[], []]


def _measure_links_alone() -> None:
    """Leave out all checks but the first and those of pairs."""
    load()
    for name in ("operations", "bits", "two_at_once", "under_graph", "under_load", "contexts"):
        setattr(results, name, lambda *_: None)
    for name in ("balance", "speed"):
        setattr(speeds, name, lambda *_: None)


@pytest.mark.serial
@pytest.mark.usefixtures("simulated")
def test_a_link_that_is_slow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link counts by its best turn, since other work can only slow it."""
    monkeypatch.setenv("SIM_LINKS", "0-1 slow")
    best: dict[tuple[int, int], Row] = {}
    for _ in range(20):
        rows = _checked(HANDLE, 3, _measure_links_alone)
        for link, row in report.links_of(rows).items():
            best[link] = max(row, best.get(link, row), key=lambda each: each["gbs"])
        rows = [row for row in rows if row["check"] != "pair"] + list(best.values())
        slow = {(row["from"], row["to"]) for row in report.slow_links(rows)}
        if slow == {(0, 1), (1, 0)}:
            break
    assert slow == {(0, 1), (1, 0)}, best
    assert report.verdict_of(rows) == "slow links"


@pytest.mark.usefixtures("simulated")
def test_devices_of_one_process() -> None:
    rows = _checked(ONE_PROCESS, 1, load)
    operations = {"broadcast", "reduce_add", "scatter_and_gather"}
    assert {row["operation"] for row in rows} == operations and len(rows) == 8
    assert {row["verdict"] for row in rows} == {"ok"}, rows


@pytest.mark.usefixtures("simulated")
def test_devices_are_asked_for() -> None:
    found = ask_devices(Options(prepare=load))
    assert (found["kind"], found["count"]) == ("sim", 8)
    names = [(path.name, ranks) for path, ranks in planned(Options(ranks=3), 8)]
    assert names[:3] == [("one process", 1), ("memfd", 3), ("posix", 3)]
    assert names[3:] == [(path.name, 8) for path in BETWEEN_DEVICES]
    of_the_host = [(ONE_PROCESS, 1), *((path, 2) for path in ON_THE_HOST)]
    assert planned(Options(), 1) == planned(Options(devices=2), 0) == of_the_host
    assert len(planned(Options(devices=2), 1)) == 3 + len(BETWEEN_DEVICES)
    chosen = frozenset(["memfd", "devices, pinned"])
    assert planned(Options(paths=chosen), 4) == [(ON_THE_HOST[0], 2), (PINNED, 4)]
