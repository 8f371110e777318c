"""Peers that are no backends of torch's: right where they are, left out where they are not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import peers
import pytest

from fastcomm._measure import line_up

Row = dict[str, Any]
COPIES = ("all_gather_into_tensor", "broadcast")
# In one step, around its limit, and in blocks of which the last is short.
SIZES = (36, 1 << 20, (1 << 20) + 4, 5_000_000)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_up, "_REGISTERED", dict(line_up._REGISTERED))
    peers.register()


@pytest.mark.skipif(shutil.which("c++") is None, reason="it has to be compiled: there is no c++")
@pytest.mark.parametrize(
    ("name", "ranks", "ops"),
    [
        pytest.param("floor", 2, ("reduce_scatter_tensor", *COPIES), marks=pytest.mark.release),
        ("floor", 3, ("reduce_scatter_tensor", *COPIES)),
        ("single-copy", 3, COPIES),
    ],
)
def test_sums_and_copies_of_the_bare_program_are_right(
    sweep: Callable[..., list[Row]], name: str, ranks: int, ops: tuple[str, ...]
) -> None:
    """Every element is compared, before and after each measurement."""
    ops = ("all_reduce", *ops)
    rows = sweep(ops, SIZES, (name,), ranks=ranks, iterations=5, prepare=peers.register)
    refused = [row["left_out"] for row in rows if "left_out" in row]
    if name == "single-copy" and refused and "process_vm_readv" in refused[0]:
        pytest.skip(refused[0])
    assert len(rows) >= len(ops) * (len(SIZES) - 1)
    assert all(row["checked"] and "left_out" not in row for row in rows), rows


def test_what_one_has_not_is_left_out_and_said(sweep: Callable[..., list[Row]]) -> None:
    ops, types = ("all_reduce", "all_to_all_single"), ("float32", "bfloat16", "int32")
    said = {"floor": "the floor", "mpi": "mpi4py|mpiexec|MPI", "deepspeed": "DeepSpeed"}
    backends = ("fastcomm", *said)
    rows = sweep(ops, (4096,), backends, dtypes=types, iterations=5, prepare=peers.register)
    assert len(rows) == len(ops) * len(types) * len(backends)
    for row in rows:
        reason = row.get("left_out", "")
        if row["backend"] == "fastcomm":
            assert row["checked"]
        else:
            assert reason or row["op"] == "all_reduce", row
            assert not reason or re.search(said[row["backend"]], reason), row


@pytest.mark.skipif(
    bool(peers.by_mpiexec.missing()), reason=peers.by_mpiexec.missing() or "it is there"
)
def test_mpi_is_measured(sweep: Callable[..., list[Row]]) -> None:
    ops = ("all_reduce", *COPIES, "reduce_scatter_tensor", "barrier")
    rows = sweep(ops, (64, 100_000), ("fastcomm", "mpi"), budget_s=2, prepare=peers.register)
    ours = [row for row in rows if row["backend"] == "mpi"]
    assert len(ours) == 9 and all(row["checked"] for row in ours), ours
