"""The benchmark of errors of sums: its sides sum in the order of the tree; its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from support import fused, script, tree
from support.ranks import World, run_ranks

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/reduction-error.jsonl"
NUMEL = 5000


@pytest.fixture(scope="module")
def reduction_error() -> ModuleType:
    return script.load("reduction_error")


def _sides(world: World) -> dict[str, torch.Tensor]:
    world.init()
    bench = script.load("reduction_error")
    gloo = dist.new_group(backend="gloo")
    return {
        side.name: side.sum(bench.values_of(world.rank, NUMEL, side.dtype), gloo).view(torch.uint8)
        for side in bench.SIDES
    }


@pytest.mark.parametrize("ranks", [2, 5])
def test_fastcomms_sides_are_the_tree(reduction_error: ModuleType, ranks: int) -> None:
    results = run_ranks(ranks, _sides)
    for side in reduction_error.SIDES:
        terms = [reduction_error.values_of(r, NUMEL, side.dtype) for r in range(ranks)]
        wire = reduction_error.TYPES[side.wire] if side.wire else None
        wanted = fused.reduced(terms, average=False, scale=1.0, wire=wire)
        for of_rank in results:
            result = of_rank[side.name].view(reduction_error.TYPES[side.dtype])
            if side.how == "Gloo" and ranks > 2:
                # Another order and more roundings, but still a sum of these terms.
                tolerance = ranks * torch.finfo(wanted.dtype).eps
                torch.testing.assert_close(result, wanted, rtol=tolerance, atol=4 * tolerance)
            else:
                assert tree.same_bits(result, wanted), side.name


def test_values_differ_between_ranks_and_cover_magnitudes(reduction_error: ModuleType) -> None:
    first, second = (reduction_error.values_of(rank, 10_000, "fp32") for rank in range(2))
    assert not (first == second).any()
    assert first.abs().max() > 1 and first.abs().median() < 2**-8
    ratio = (first / second).abs()  # one magnitude at each place
    assert 0.5 < ratio.median() < 2


@pytest.mark.slow
def test_a_short_run(
    reduction_error: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    assert reduction_error.main(["--ranks", "3", "--numel", "999", "--json", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [row["side"] for row in rows] == [side.name for side in reduction_error.SIDES]
    sha = {row["side"]: row["sha256"] for row in rows}
    assert sha["fused, bf16"] == sha["all_reduce, bf16"] != sha["Gloo, bf16"]
    assert "error, rms; ranks:" in capsys.readouterr().out


def test_ranks_that_differ_are_status_1(
    reduction_error: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"side": "fused, bf16", "ranks": 3, "same_bits_on_all_ranks": True}
    row |= dict.fromkeys(reduction_error.MEASURES, 0.25)
    assert reduction_error.show([row], "simple") == 0
    assert reduction_error.show([row, {**row, "same_bits_on_all_ranks": False}], "simple") == 1
    assert "different results: fused, bf16, 3 ranks" in capsys.readouterr().err


def committed() -> list[dict[str, object]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()][1:]


def test_what_was_measured_is_one_rounding(reduction_error: ModuleType) -> None:
    rows = committed()
    assert {(row["side"], row["ranks"]) for row in rows} == {
        (side.name, ranks) for side in reduction_error.SIDES for ranks in range(2, 9)
    }
    for row in rows:
        assert row["same_bits_on_all_ranks"]
        if row["side"] in ("all_reduce, bf16", "all_reduce, fp16", "fused, bf16", "fused, fp16"):
            # The fp32 sum below is rounded itself: some millionths of an ulp.
            assert float(str(row["max_ulp"])) < 0.5001, row


def test_the_page_says_what_was_measured() -> None:
    gloo = [float(str(r["max_ulp_of_terms"])) for r in committed() if r["side"] == "Gloo, fp16"]
    front = re.sub(r"\s+", " ", (ROOT / "docs/numerics.md").read_text())
    assert f"with 2 to 8 ranks, where Gloo's error grows to {max(gloo):.1f}" in front


@pytest.mark.parametrize("measure", ["max_ulp_of_terms", "rms_from_fp32"])
def test_the_readme_has_the_tables(reduction_error: ModuleType, measure: str) -> None:
    table = reduction_error.format_table(committed(), measure, "github")
    readme = (ROOT / "benchmarks/README.md").read_text()
    assert table in readme
