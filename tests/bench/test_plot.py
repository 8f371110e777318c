"""Plots of benchmark records: panels, lines, labels and legends."""

from pathlib import Path
from typing import Any

import pytest

from fastcomm.bench.records import Records
from fastcomm.bench.table import backends_of

pytest.importorskip("matplotlib")

from fastcomm.bench.plot import draw, write_plot

ENVIRONMENT = {"cpu": "A Processor", "affinity": 2, "torch": "2.13.0", "date": "2026-01-02T03:04"}


def test_every_operation_has_a_panel_with_both_backends(rows: list[dict[str, Any]]) -> None:
    figure = draw(Records(ENVIRONMENT, rows))
    titles = [axes.get_title() for axes in figure.axes]
    assert {"all_reduce", "broadcast", "barrier", "speed-up: gloo / fastcomm"} <= set(titles)
    assert "A Processor" in figure.get_suptitle()
    for axes in figure.axes:
        if axes.get_title() in ("all_reduce", "broadcast"):
            assert [line.get_label() for line in axes.lines] == backends_of(rows)
            assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("op", ["all_reduce", "barrier"])
def test_one_backend_or_one_operation_is_enough(
    tmp_path: Path, rows: list[dict[str, Any]], op: str
) -> None:
    few = [row for row in rows if row["op"] == op and row["backend"] == "gloo"]
    write_plot(Records(ENVIRONMENT, few), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_types_of_elements_have_lines_of_their_own(rows: list[dict[str, Any]]) -> None:
    half = [{**row, "dtype": "float16"} for row in rows]
    figure = draw(Records({}, [*rows, *half]))
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    types = ("float32", "float16")
    assert labels == [f"{backend}, {dtype}" for dtype in types for backend in backends_of(rows)]


def test_legends_and_panels_do_not_overlap(rows: list[dict[str, Any]]) -> None:
    ops = [f"operation_{index}" for index in range(9)]
    many = [{**row, "op": op} for op in ops for row in rows if row["op"] == "all_reduce"]
    figure = draw(Records(ENVIRONMENT, [*many, *(row for row in rows if row["op"] == "barrier")]))
    figure.canvas.draw()
    of_axes = [legend for axes in figure.axes if (legend := axes.get_legend())]
    legends = [*figure.legends, *of_axes]
    assert len(legends) == 2  # of backends, and of speed-ups
    for legend in legends:
        box = legend.get_window_extent()
        assert figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1)
        for axes in figure.axes:
            assert not box.overlaps(axes.get_window_extent())
    (speed_up,) = (axes for axes in figure.axes if axes.get_title().startswith("speed-up"))
    assert [line.get_label() for line in speed_up.lines][: len(ops)] == ops
    titles = {axes.get_title() for axes in figure.axes if axes.axison}
    assert {*ops, "barrier"} <= titles


def test_nothing_to_plot_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rows"):
        draw(Records(ENVIRONMENT, []))
