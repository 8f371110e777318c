"""The advice that follows from records with known times, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import advised as made

from fastcomm._advise.advice import Advice, advice_from
from fastcomm._advise.told import Round


def _advice(ddp: float, cost: float = 0.004, apart: float = 1.0) -> Advice:
    """Return it where one process takes 30 ms for 64 rows and 18 ms for 32.

    Args:
        ddp: seconds of two ranks with 64 rows each; with 32 each they take 4 ms less.
        cost: of the exchange of gradients, in seconds.
        apart: times as long that a rank takes without messages whose others rest.
    """
    return advice_from(
        [
            made.one(0.030),
            made.one(0.018, divisor=2),
            made.ranks(ddp - cost, cost, apart=apart, measured=1.1 * ddp),
            made.ranks(ddp - cost - 0.004, cost, divisor=2),
            made.slots(0.035, moved=0.001),
        ],
        [10.0],
        ["something was left out"],
    )


def test_yes() -> None:
    advice = _advice(0.024)
    assert [(each.way, each.devices, each.rows) for each in advice.predictions] == [
        ("one process", 1, 64),
        ("DDP", 2, 128),
        ("DDP, batch divided", 2, 64),
        ("DataParallel", 2, 64),
    ]
    assert advice.times_as_fast(advice.best) == pytest.approx(2 * 30 / 24)
    assert advice.sentence == (
        "Yes: DDP on 2 ranks trains 2.50 times (2.50 to 2.50) as many samples a second as one "
        "process, with 64 rows a step on each, 128 together. Use torchrun --nproc-per-node 2 and "
        'init_process_group("fastcomm"): docs/advise.md says what to change.'
    )


def test_a_setting_that_helps_much() -> None:
    """Gradients of 16 bits take half of 20 ms."""
    advice = _advice(0.040, cost=0.020)
    assert "With 16 bits on the wire it is 2.00 times. Use" in advice.sentence
    advice.settings = [replace(each, measured=0.1) for each in advice.settings]
    assert "With" not in advice.sentence


def test_turns_that_disagree() -> None:
    """One process takes 30 or 60 ms, two ranks 40 or 120."""
    one = made.one(0.030)
    one.rounds["plain"][1:2] = made.one(0.060).rounds["plain"][1:2]
    ranks = made.ranks(0.036, 0.004)
    ranks.rounds["quiet"][0] = made.ranks(0.116, 0.004).rounds["quiet"][0]
    advice = advice_from([one, ranks], [])
    assert advice.range_of(advice.best) == pytest.approx((2 * 30 / 120, 2 * 60 / 40))
    assert advice.sentence.startswith(
        "Probably: DDP on 2 ranks trains 1.50 times (0.50 to 3.00) as many samples a second"
    )
    assert "took up to 2.0 times as long in one turn" in advice.notes[0]
    slow = made.ranks(0.066, 0.004)
    slow.rounds["quiet"][0] = made.ranks(0.036, 0.004).rounds["quiet"][0]
    assert advice_from([one, slow], []).sentence.startswith("Probably not: DDP on 2 ranks would")


@pytest.mark.parametrize(
    ("cost", "apart", "why"),
    [
        (0.004, 1.0, "one process keeps the cores busy by itself"),
        (0.004, 0.4, "ranks slow each other down, as they share caches and the memory's bandwidth"),
        (0.050, 1.0, "gradients have to be exchanged"),
    ],
)
def test_no_and_why(cost: float, apart: float, why: str) -> None:
    advice = _advice(0.070, cost, apart)
    assert advice.sentence == (
        "No: DDP on 2 ranks would train 0.86 times (0.86 to 0.86) as many samples a second as one "
        f"process, since {why}. Stay with one process."
    )
    (limits,) = advice.limits
    factors = (limits.cores, limits.sharing, limits.communication)
    quiet = 0.070 - cost
    assert factors == pytest.approx((0.03 / (apart * quiet), apart, quiet / 0.070))


def test_data_come_first() -> None:
    waiting = made.one(0.030)
    waiting.rounds["plain"] = [[Round(made.steps(0.030, loading=0.020))]] * 4
    advice = advice_from([waiting, made.ranks(0.07, 0.001)], [])
    assert "since loading data takes most of the time" in advice.sentence


def test_the_batch_from_which_a_second_device_pays() -> None:
    """One process takes 6 ms and 0.375 ms a row; two ranks of half a batch other lines."""
    # 16 + 0.0625 ms a row of the whole batch, through (64, 20) and (128, 24).
    assert _advice(0.024).pays_from == {2: pytest.approx((16 - 6) / (0.375 - 0.0625))}
    steep = advice_from(
        [
            made.one(0.030),
            made.one(0.018, divisor=2),
            made.ranks(0.090, 0.001),
            made.ranks(0.040, 0.001, divisor=2),
        ],
        [],
    )
    assert steep.pays_from == {2: float("inf")}
    assert "2 ranks that divide a batch are not faster than one process up to 256 rows" in str(
        steep
    )
    assert json.loads(json.dumps(steep.as_json()))["pays_from"] == {"2": None}


def test_the_text_says_what_was_not_run() -> None:
    text = str(_advice(0.024))
    lines = text.splitlines()
    first = next(line for line in lines if line.startswith("DDP "))
    assert "26.4 (-9 %)" in first and " 2.5 " in first and "125 %" in first
    for line in lines:
        if line.startswith(("DDP, 4 hosts, 10 Gbit/s", "ShardedOptimizer", "DataParallel  ")):
            assert "unverified" in line or not line.endswith("B")
    assert (
        "off by 9 % in the median, and 9 % at most; repeats of what was run differ by 0 %" in text
    )
    assert text.startswith("Found: Adam, batches of 64 rows, 1 backward pass a step. Threads: 1 in")
    assert "2 ranks are 2.50 times as fast as one process: 2 x 1.50 (cores) x 1.00" in text
    assert "Note: something was left out." in text
    assert lines[-1].startswith("Yes: ")


def test_json_has_everything() -> None:
    advice = _advice(0.024)
    found = json.loads(json.dumps(advice.as_json()))
    assert found["sentence"] == advice.sentence
    assert [row["devices"] for row in found["predictions"]] == [1, 2, 2, 2]
    assert found["predictions"][1]["range"] == pytest.approx([2.5, 2.5])
    row = found["predictions"][1]
    assert row["times_as_fast"] == pytest.approx(2.5) and row["error"] == pytest.approx(-1 / 11)
    assert {row["hosts"] for row in found["hosts"]} == {2, 4, 16}
    assert found["limits"][0]["devices"] == 2


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    advice = _advice(0.024)
    from fastcomm._advise import plot

    axes: Any = plot.draw(advice).axes[0]
    tops: dict[float, float] = {}
    for bar in axes.patches:
        top = bar.get_y() + bar.get_height()
        place = bar.get_x() + bar.get_width() / 2
        tops[place] = max(top, tops.get(place, 0.0))
    assert [tops[place] for place in sorted(tops)] == pytest.approx([30.0, 24.0, 20.0, 36.0])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["loading", "forward", "backward", "optimizer", "communication", "measured"]
    advice.plot(tmp_path / "new" / "advice.png")
    assert (tmp_path / "new" / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_a_single_device() -> None:
    advice = advice_from([made.one(0.03)], [1.0])
    assert advice.sentence == "There is no second device: stay with one process."
    assert "0.03" not in str(advice) and advice.hosts == []
