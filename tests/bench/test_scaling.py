"""The cost model of sums over hosts, by benchmarks/scaling.py: what it counts, and how it fits."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("tabulate")

import scaling
from hosts import bound_ms

ROOT = Path(__file__).resolve().parents[2]
# Milliseconds of processor time for the attributes of Work, and how calls wait.
KNOWN = scaling.Model((0.2, 0.01, 0.04, 1.5e-6, 0.8e-6), call_ms=0.4, share=1.3, overlap=3.0)


def _made(known: scaling.Model) -> list[dict[str, Any]]:
    """Rows as they would be if the model were right."""
    rows: list[dict[str, Any]] = []
    for hosts, each in scaling.SHAPES:
        at = {"shape": f"{hosts}x{each}", "rate": scaling.RATE, "delay_us": 0}
        ranks = hosts * each
        formed = 0.1 + 0.01 * ranks + 0.002 * ranks * (ranks - 1) / 2
        rows.append({**at, "op": "form", "fastcomm_s": formed, "gloo_s": formed / 2})
        for size in scaling.SIZES:
            used = hosts * known.busy_ms(scaling.work(hosts, each, size))
            row = {**at, "op": "all_reduce", "bytes": size, "fastcomm_cpu_ms": used + 1.5}
            rows.append({**row, "fastcomm_ms": scaling.model_ms(known, row)})
        rows.append({**at, "op": "barrier", "bytes": 0, "gloo_cpu_ms": 3.0})
    return rows


def test_figures_are_found_again_in_the_times_that_they_make() -> None:
    found = scaling.fit(_made(KNOWN))
    assert found.costs == pytest.approx(KNOWN.costs, rel=1e-3)
    assert (found.call_ms, found.share, found.overlap) == pytest.approx((0.4, 1.3, 3.0), rel=1e-2)
    assert scaling.fit_forming(_made(KNOWN), "fastcomm") == pytest.approx((0.1, 0.01, 0.002))
    _, errors = scaling.errors_table(_made(KNOWN))
    assert all(float(re.sub(r" .*", "", cell)) < 1 for line in errors[:2] for cell in line[1:])


@pytest.mark.parametrize(("hosts", "each"), scaling.SHAPES)
def test_long_messages_send_what_the_link_has_to_carry(hosts: int, each: int) -> None:
    size = 25 << 20
    sent = scaling.work(hosts, each, size).sent
    least = bound_ms("all_reduce", size, hosts, hosts * each, "1gbit") / 8e3 * 1e9
    assert least <= sent < 1.01 * least


def test_constants_are_those_of_the_sources() -> None:
    headers = ("csrc/coll/host_thresholds.h", "csrc/c10d/engines/hosts/host_exchange.h")
    header = "".join((ROOT / name).read_text() for name in headers)
    for name, value in (("kShortBytes", scaling.SHORT), ("kEnclosedBytes", scaling.ENCLOSED)):
        (text,) = re.findall(rf"{name} = ([0-9 *]+);", header)
        assert math.prod(int(word) for word in text.split("*")) == value
    chunks = [scaling.chunk_bytes(size << 20) >> 20 for size in (1, 8, 12, 25, 100)]
    assert chunks == [1, 1, 2, 4, 4]


def test_more_hosts_cost_more_on_paper() -> None:
    for size in scaling.SIZES:
        times = [scaling.paper_ms(KNOWN, hosts, size)[0] for hosts in scaling.PAPER_HOSTS]
        assert all(less < more for less, more in itertools.pairwise(times))
