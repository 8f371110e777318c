"""What is predicted of machines that nobody has measured: made anew, and held against a record."""

from __future__ import annotations

import json
from pathlib import Path

import expected
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_committed_predictions_are_those_of_the_model() -> None:
    lines = (RESULTS / "expected.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(expected.records()))
    assert {json.loads(line)["kind"] for line in lines} == {"predicted"}


def test_the_model_meets_what_one_gpu_has_measured() -> None:
    """Two ranks share a GPU there, so that its memory is the link."""
    records = [json.loads(line) for line in (RESULTS / "h100-2-ranks-shared.jsonl").open()]
    rows = [row for row in records if row.get("backend") == "fastcomm"]
    assert len(rows) == 20
    for row in rows:
        found = expected.predict(expected.SHARED, row["op"], row["bytes"], row["ranks"])
        assert 0.75 < found["time_us"] / row["median_us"] < 1.35, (row, found)


def test_launches_are_those_of_the_code() -> None:
    """The page of launches is counted from graphs: one round, and three."""
    plans, in_slices, seen = expected.plans(3), expected.plans(3, sliced=True), set()
    for line in (ROOT / "docs/launches.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.replace("`", "").split("|")][1:-1]
        op, _, sliced = cells[0].partition(", in ") if cells else ("", "", "")
        busiest = "others" if op == "broadcast" else "root"
        if op not in plans or cells[1] not in ("all", busiest):
            continue
        first, more = (in_slices if sliced == "slices" else plans)[op].launches
        assert (first, first + 2 * more) == (int(cells[4]), int(cells[5])), line
        if op == "all_reduce":
            assert plans["all_reduce_shared"].launches[0] == int(cells[7])
        seen.add(op)
    assert len(seen) == len(plans) - 1


@pytest.mark.parametrize("machine", expected.MACHINES, ids=lambda machine: machine.name)
def test_no_link_carries_more_than_it_can(machine: expected.Machine) -> None:
    """Bus bandwidth counts the least that a link has to carry."""
    for op in expected.plans(machine.ranks, machine.by_host):
        for size in expected.SIZES:
            found = expected.predict(machine, op, size)
            assert 0 <= found["busbw_gbs"] < machine.link_gbs, found


def test_machines_are_found_by_their_gpus() -> None:
    def names(device: str, gpus: int, ranks: int) -> list[str]:
        return [machine.name for machine in expected.machines_like(device, gpus, ranks)]

    assert names("NVIDIA H200", 8, 8) == ["8 x H100, NVSwitch"]
    assert names("NVIDIA GeForce RTX 4090", 4, 4) == ["4 x RTX 4090, pinned"]
    assert names("NVIDIA RTX A6000", 2, 2) == ["2 x RTX A6000, bridge", "2 x RTX A6000, PCIe"]
    assert names("NVIDIA H200", 1, 2) == names("NVIDIA B200", 8, 8) == []
    row = {"backend": "fastcomm", "op": "broadcast", "bytes": 8, "ranks": 8, "median_us": 9.0}
    (line,) = expected.beside([row], "NVIDIA B200", 8)
    assert line == "nothing is predicted for 8 x NVIDIA B200"
