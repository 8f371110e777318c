"""Cores that the quotas of control groups leave, and ranks that outnumber theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastcomm import _native

NONE = 2**31 - 1


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def _first(folder: str, quota: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": str(quota), f"{folder}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("member", "files", "cores"),
    [
        ("0::/", {}, NONE),
        ("0::/", {"cpu.max": "max 100000"}, NONE),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/a/b", {"a/b/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {"a/c/cpu.max": "100000 100000"}, NONE),
        ("0::/elsewhere", {"cpu.max": "400000 100000"}, 4),  # a container's own root
        ("4:cpu,cpuacct:/a", _first("cpu,cpuacct/a", 250000), 3),
        ("1:cpu:/a", _first("cpu", 100000), 1),
        ("1:cpu:/a", _first("cpu/a", -1), NONE),
        ("1:cpuset:/a\n2:cpuacct:/a", _first("cpuset/a", 100000), NONE),
        ("1:cpu:/a\n0::/a", _first("cpu/a", 500000) | {"a/cpu.max": "200000 100000"}, 2),
        ("", {"cpu.max": "100000 100000"}, NONE),
        ("nonsense", {"cpu.max": "nonsense"}, NONE),
    ],
)
def test_the_smallest_quota_counts(
    member: str, files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    mounted = {f"root/{name}": text for name, text in files.items()}
    _write(tmp_path, {"membership": member} | mounted)
    found = _native.load().quota_cores(str(tmp_path / "root"), str(tmp_path / "membership"))
    assert found == cores


def test_what_is_not_there_is_no_quota(tmp_path: Path) -> None:
    assert _native.load().quota_cores(str(tmp_path / "none"), str(tmp_path / "neither")) == NONE


@pytest.mark.parametrize(
    ("ranks", "too_many"),
    [
        ([[0], [1]], False),  # each bound to a core of its own
        ([[0], [0]], True),
        ([[0, 1], [0, 1]], False),
        ([[0, 1], [0, 1], [0, 1]], True),
        ([[0], [0], [1, 2, 3], [1, 2, 3]], True),  # the first two
        ([[0], [0, 1]], False),
        ([[0], [1], [0, 1]], True),
        ([[0, 1], [1, 2], [0, 2], [0, 1, 2]], True),  # all together
        ([[1023], [512]], False),
        ([[], [0], [1]], False),  # one of which the system does not tell
        ([[], []], False),
    ],
)
def test_ranks_that_outnumber_their_cores(ranks: list[list[int]], too_many: bool) -> None:
    assert _native.load().outnumber_cores(ranks) == too_many
