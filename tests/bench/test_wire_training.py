"""The training benchmark: what must be equal is, and it sees a difference."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import script

from fastcomm.bench.records import Records, read_records

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/wire-training.jsonl"
README = (ROOT / "benchmarks/README.md").read_text()
STEPS = 3
Row = dict[str, Any]


@pytest.fixture(scope="module")
def wire_training() -> ModuleType:
    return script.load("wire_training")


@pytest.fixture(scope="module")
def short_run(
    wire_training: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Row]:
    """Return rows of some steps, by the name of their variant."""
    path = tmp_path_factory.mktemp("wire") / "w.jsonl"
    names = ["fp32", "bf16 wire", "Gloo, fp32", "Gloo, bf16_compress_hook"]
    words = ["--steps", str(STEPS), "--json", str(path), "--variants", *names]
    assert wire_training.main([*words, "fp32, twice the ranks"]) == 0
    assert path.with_suffix(".png").stat().st_size > 20_000
    return {row["variant"]: row for row in read_records(path).rows}


@pytest.mark.slow
@pytest.mark.release
def test_two_ranks_train_to_the_bits_of_gloo(short_run: dict[str, Row]) -> None:
    ours, theirs = short_run["fp32"], short_run["Gloo, fp32"]
    assert len(ours["losses"]) == STEPS
    assert ours["losses"] == theirs["losses"]
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert ours["weights_equal_on_all_ranks"]


@pytest.mark.slow
@pytest.mark.release
def test_the_wire_changes_the_weights_and_hardly_the_losses(short_run: dict[str, Row]) -> None:
    ours, wire = short_run["fp32"], short_run["bf16 wire"]
    assert wire["losses"][0] == ours["losses"][0]  # with the initial weights
    assert wire["weights_sha256"] != ours["weights_sha256"]
    assert wire["losses"] == pytest.approx(ours["losses"], rel=1e-4)
    assert wire["weights_equal_on_all_ranks"]


@pytest.mark.slow
@pytest.mark.release
def test_more_ranks_see_the_same_data(short_run: dict[str, Row]) -> None:
    more = short_run["fp32, twice the ranks"]
    assert more["ranks"] == 4
    assert more["losses"] == pytest.approx(short_run["fp32"]["losses"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.release
def test_what_torch_refuses_is_recorded_in_its_words(short_run: dict[str, Row]) -> None:
    refused = short_run["Gloo, bf16_compress_hook"]
    assert "losses" not in refused
    assert refused["error"].startswith("BF16 all reduce communication hook required CUDA")


def rows(**changes: Row) -> list[Row]:
    """Return rows of a good run, with changes to some of them."""
    good = {"stock": False, "ranks": 2, "losses": [2.0] * 30, "weights_equal_on_all_ranks": True}
    return [{"variant": n, **good, **changes.get(n[:4], {})} for n in ("fp32", "bf16 wire", "fp16")]


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"bf16": {"losses": [2.0] * 10 + [2.015] * 20}}, True),
        ({"bf16": {"losses": [2.0] * 10 + [2.025] * 20}}, False),
        ({"bf16": {"losses": [1.97] * 30}}, False),
        ({"fp16": {"losses": [9.0] * 30}}, True),  # nobody claims it
        ({"fp16": {"weights_equal_on_all_ranks": False}}, False),
    ],
)
def test_the_claim(wire_training: ModuleType, changes: dict[str, Row], good: bool) -> None:
    assert wire_training.holds(rows(**changes)) is good
    assert wire_training.show(Records({}, rows(**changes)), "simple", None) == (not good)


@pytest.mark.parametrize("stock", [True, False])
def test_only_torch_may_fail(wire_training: ModuleType, stock: bool) -> None:
    failed = {"variant": "other", "ranks": 2, "stock": stock, "error": "planted"}
    assert wire_training.holds([*rows(), failed]) is stock
    assert "failed" in wire_training.format_table([*rows(), failed])


def test_a_rank_that_fails_becomes_a_row(wire_training: ModuleType) -> None:
    row = wire_training.row_of("fp32", ranks=3, steps=1)
    assert row["error"] == "16 sequences cannot be dealt evenly to 3 ranks"


@pytest.fixture(scope="module")
def committed() -> dict[str, Row]:
    return {row["variant"]: row for row in read_records(RESULTS).rows}


def test_what_was_measured_holds_and_stands_in_the_readme(
    wire_training: ModuleType, committed: dict[str, Row]
) -> None:
    assert list(committed) == list(wire_training.VARIANTS)
    assert {row["steps"] for row in committed.values()} == {500}
    assert wire_training.holds(list(committed.values()))
    assert wire_training.format_table(list(committed.values()), "github") in README
    (refused,) = (row["error"] for row in committed.values() if "error" in row)
    assert f"`{refused}`" in README


def test_the_readme_words_what_was_measured(
    wire_training: ModuleType, committed: dict[str, Row]
) -> None:
    def largest(variant: str) -> float:
        curves = (committed[name]["losses"] for name in (variant, "fp32"))
        return float(wire_training.deviation(*curves).largest)

    text = re.sub(r"\s+", " ", README)
    assert f"keeps the curve within {largest('bf16 wire'):.1e} of that of fp32" in text
    assert f"other sequences move it by up to {largest('fp32, other order'):.1e}, and" in text
    assert f"differs, by {largest('fp32, twice the ranks'):.1e}." in text
    page = re.sub(r"\s+", " ", (ROOT / "docs/gradients.md").read_text())
    assert f"keeps the loss curve within {largest('bf16 wire'):.1e} of that of fp32" in page
    for ours, theirs in (("fp32", "Gloo, fp32"), ("bf16 wire", "Gloo, the same unchecked")):
        for key in ("losses", "weights_sha256"):
            assert committed[ours][key] == committed[theirs][key]
