"""The picture of a job's collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.made_ranks import left_alone, made_job, made_rank

from fastcomm._records.picture import draw, write_picture


def test_a_bar_for_each_part_and_a_mark_for_who_came_last(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    ranks = made_job(4, 10, late=2)
    axis: Any = draw(ranks).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        f"rank {rank}" for rank in range(4)
    ]
    bars = [patch for patch in axis.patches if patch.get_y() > -5]
    assert len(bars) == 4 * 10 * 2
    rows = [line.get_ydata()[0] for line in axis.lines if len(line.get_ydata())]
    assert rows.count(2 - 0.4) == 8  # of ten, two are others' turns
    write_picture(tmp_path / "job.png", ranks)
    assert (tmp_path / "job.png").read_bytes().startswith(b"\x89PNG")


def test_an_open_call_lasts_until_now() -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    ranks = left_alone(3, skipped=2, by=1)
    axis: Any = draw(ranks).axes[0]
    ends = [patch.get_x() + patch.get_width() for patch in axis.patches if patch.get_y() > -5]
    begin = min(call.issued for rank in ranks for call in rank.snapshot.calls)
    assert max(ends) == pytest.approx((max(rank.now for rank in ranks) - begin) / 1e6)


def test_nothing_to_draw() -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    with pytest.raises(ValueError, match="no collective"):
        draw([made_rank(0, 1, [])])
