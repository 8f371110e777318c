"""torch's own tests for Gloo, on fastcomm: a selection of them, and the runner itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.rank import HANG
from conformance.short import SHORT
from support.namespaces import why_no_switch

TESTS = Path(__file__).resolve().parents[1]


def _run(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str, int]:
    """Run tests in a new process, with two ranks if the arguments do not say how many.

    Returns:
        Its report, output and exit status.
    """
    path = tmp_path / "report.json"
    known = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, [known])])
    done = subprocess.run(
        [sys.executable, "-m", "conformance.run", "--ranks", "2", "--json", str(path), *arguments],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert path.exists(), done.stdout + done.stderr
    (report,) = json.loads(path.read_text())["reports"]
    return report, done.stdout, done.returncode


def test_torchs_tests_pass(tmp_path: Path) -> None:
    report, output, status = _run(tmp_path, "--short")
    assert status == 0, output
    outcomes = {test: result["outcome"] for test, result in report["tests"].items()}
    # Another torch may lack or skip some of them.
    ran = [test for test, outcome in outcomes.items() if outcome != "skipped"]
    assert len(ran) >= 0.8 * len(SHORT), outcomes


@pytest.mark.release
@pytest.mark.serial  # network namespaces
@pytest.mark.parametrize("ranks", ["2", "4"])
def test_torchs_tests_pass_over_two_hosts(tmp_path: Path, ranks: str) -> None:
    if (reason := why_no_switch()) is not None:
        pytest.skip(reason)
    report, output, status = _run(tmp_path, "--short", "--ranks", ranks, "--hosts", "2")
    assert status == 0, output
    assert report["groups of Gloo"] > 0


def test_a_failure_and_a_hang_are_reported(tmp_path: Path) -> None:
    """Gloo fails in all_to_all on lists of tensors of different sizes."""
    report, _, status = _run(tmp_path, "--only", "test_all_to_all", "--backend", "gloo")
    failed = report["tests"]["test_all_to_all"]
    assert status == 1
    assert "ProcessGroupGloo::alltoall" in failed["reason"]
    # The time limit is a few times the seconds of the failed test.
    chosen = ["--only", HANG, "--timeout", f"{3 * failed['seconds'] + 1:g}"]
    report, output, status = _run(tmp_path, *chosen, "--backend", "gloo")
    assert status == 1
    assert report["counts"] == {"failed": 1}
    assert "no end after" in report["tests"][HANG]["reason"]
    assert "in barrier" in output
