"""Measurements by ranks on the host and on simulated devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sim.loading import load

from fastcomm.tune import Options, plan, run
from fastcomm.tune.candidates import ON_DEVICES, ON_THE_HOST, OVERLAPPED, Message

KIB = 1 << 10
SHORT = (
    replace(
        ON_THE_HOST[0],
        candidates=({}, {"payload_bytes": 64}, {"payload_bytes": 1 << 20}),
        messages=(Message("all_reduce", 16 * KIB), Message("broadcast", 32 * KIB)),
    ),
    replace(ON_THE_HOST[1], messages=(Message("all_gather", 512 * KIB),)),
)


def _measured(options: Options) -> tuple[dict[Any, dict[str, int]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    begun: list[str] = []
    found = run(options, rows.append, begun.append)
    assert len(begun) == sum(len(step.messages) for _, steps in plan(options) for step in steps)
    return found, rows


def test_ranks_on_the_host() -> None:
    options = Options(ranks=(2, 3), budget_s=0.5, host_steps=SHORT)
    found, rows = _measured(options)
    assert set(found) == {2, 3}
    for ranks, values in found.items():
        of_ranks = [row for row in rows if row["ranks"] == ranks]
        assert [row["candidate"] for row in of_ranks] == [
            candidate for step in SHORT for candidate in step.candidates
        ]
        assert {row["step"] for row in of_ranks if row["chosen"]} == {step.name for step in SHORT}
        assert all(row["ratio"] >= 1 and row["on"] == "cpu" for row in of_ranks), of_ranks
        chosen = [row["candidate"] for row in of_ranks if row["chosen"]]
        assert values == {name: v for candidate in chosen for name, v in candidate.items()}


DEVICES = (
    replace(
        ON_DEVICES[0],
        candidates=({}, {"slot_bytes": 512}),
        messages=(Message("all_reduce", 4 * KIB),),
    ),
    replace(
        ON_DEVICES[1],
        candidates=({}, {"device_blocks": 2}),
        messages=(Message(OVERLAPPED, 16 * KIB),),
    ),
    replace(ON_DEVICES[2], messages=(Message(OVERLAPPED, 16 * KIB),)),
)


@pytest.mark.usefixtures("simulated")
def test_ranks_on_devices() -> None:
    options = Options(ranks=(), devices=(2,), budget_s=0.5, device_steps=DEVICES, prepare=load)
    found, rows = _measured(options)
    assert set(found) == {2}
    assert [row["candidate"] for row in rows] == [
        {}, {"slot_bytes": 512}, {}, {"device_blocks": 2}, {}, {"pulls": 1}
    ]  # fmt: skip
    assert all(row["on"] == "sim" for row in rows)
    assert list(rows[2]["us"]) == [f"{OVERLAPPED} {16 * KIB}"] and rows[2]["us"]
