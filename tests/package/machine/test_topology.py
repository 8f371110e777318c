"""Reading of cores, NUMA nodes and quotas, from folders that look like the kernel's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from fastcomm._machine import division, topology
from fastcomm._machine.division import Cpu


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_hyper_threads_and_nodes(tmp_path: Path) -> None:
    pairs = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    files = {
        f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list": pair for cpu, pair in pairs.items()
    }
    files["devices/system/node/node0/cpulist"] = "0-1,4-5"
    files["devices/system/node/node1/cpulist"] = "2-3,6-7"
    seen = topology.cpus(write(tmp_path, files), allowed={0, 2, 4, 7})
    # Of core 3 the mask leaves one thread.
    assert seen == [Cpu(0, 0, 0), Cpu(2, 2, 1), Cpu(4, 0, 0), Cpu(7, 3, 1)]
    assert division.physical_cores(seen) == 3


def test_an_old_kernel_and_one_that_tells_nothing(tmp_path: Path) -> None:
    old = {f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": "0-1" for cpu in (0, 1)}
    assert topology.cpus(write(tmp_path, old), {0, 1, 5}) == [
        Cpu(0, 0, 0),
        Cpu(1, 0, 0),
        Cpu(5, 5, 0),
    ]


def test_this_machine() -> None:
    assert {cpu.number for cpu in topology.cpus()} == os.sched_getaffinity(0)
    quota = topology.quota()
    assert quota is None or quota > 0


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "200000 100000"}, 0.5),
        # The host's path, which a container does not see: its own group is the root.
        ("0::/docker/1f", {"cpu.max": "300000 100000"}, 3.0),
        (
            "5:cpu,cpuacct:/a\n0::/",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "1e5"},
            None,  # no whole number: not what the kernel writes
        ),
        (
            "5:cpu,cpuacct:/a\n0::/",
            {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        (
            "5:cpu:/a\n4:memory:/b",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        (None, {"cpu.max": "100000 100000"}, 1.0),
    ],
)
def test_quotas(
    tmp_path: Path, group: str | None, files: Mapping[str, str], expected: float | None
) -> None:
    proc = write(tmp_path / "proc", {} if group is None else {"self/cgroup": group})
    write(tmp_path / "sys/fs/cgroup", files)
    assert topology.quota(tmp_path / "sys", proc) == expected


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("", []), ("7", [7])])
def test_lists(text: str, numbers: list[int]) -> None:
    assert topology.parse_list(text) == numbers
