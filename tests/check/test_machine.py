"""What a check says of the GPUs themselves: CUDA's facts are simulated, nvidia-smi's are texts."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from sim.loading import load

from fastcomm import _native
from fastcomm.check import Options, machine
from fastcomm.check.run import ask_devices

# As drivers print them: between tabs or blanks, the heads underlined, cards of networks beside.
CARDS = """\
0, 00000000:10:00.0, 580.159.04, Disabled
1, 00000000:11:00.0, 580.159.04, Enabled
2, 00000000:12:00.0, 580.159.04, [N/A]
not a line of it
"""
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV1\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tSYS\tNV1\t X \tSYS\t56-111,168-223\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PCIE = """\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     NODE    0-7,16-23       0               N/A
GPU1    PHB      X      PXB     0-7,16-23       0               N/A
GPU2    NODE    PXB      X      0-7,16-23       0               N/A
"""


def test_cards_are_known_by_their_places_on_the_bus() -> None:
    found = machine.parse_cards(CARDS)
    assert [(bus, card["index"], card["mig"]) for bus, card in found.items()] == [
        ("0000:10:00.0", 0, False),
        ("0000:11:00.0", 1, True),
        ("0000:12:00.0", 2, None),
    ]
    assert machine.parse_cards("No devices were found\n") == {}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [(NVLINK, ["NV18", "SYS", "NV1"]), (PCIE, ["PHB", "NODE", "PXB"]), ("", [None] * 3)],
)
def test_links_of_every_two(text: str, kinds: list[str | None]) -> None:
    found = machine.parse_links(text)
    assert [found.get(pair) for pair in ((0, 1), (0, 2), (1, 2))] == kinds
    assert [found.get(pair) for pair in ((1, 0), (2, 0), (2, 1))] == kinds
    assert set(found) <= {(a, b) for a in range(3) for b in range(3)}


def test_links_in_words() -> None:
    assert machine.link_text("NV18") == "NVLink, 18 links"
    assert machine.link_text("NV1") == "NVLink, 1 link"
    assert machine.link_text("PIX") == "PCIe, at most one bridge"
    assert machine.link_text("C2C") == "C2C" and machine.link_text(None) == "link unknown"


def _asked(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> dict[str, Any]:
    """Ask about simulated devices, with a program of the shell in nvidia-smi's place."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found: dict[str, Any] = ask_devices(Options(prepare=load))["machine"]
    return found


@pytest.mark.usefixtures("simulated")
def test_what_is_in_the_way_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIM_DISPLAY", "2")
    monkeypatch.setenv("SIM_DRIVER", "12000")
    monkeypatch.setenv("SIM_LINKS", "0-2 none")
    (tmp_path / "cards").write_text(CARDS)
    (tmp_path / "topo").write_text(NVLINK)
    body = f"""cd {tmp_path}; if [ "$*" = "topo -m" ]; then cat topo; else cat cards; fi"""
    found = _asked(monkeypatch, tmp_path, body)
    lines = machine.lines(found)
    assert lines[0] == "driver 580.159.04, for CUDA 12.0; CUDA runtime 13.0"
    assert lines[1].startswith("0: ") and lines[1].endswith(", no display watchdog, MIG off")
    assert lines[2].endswith(", no display watchdog, MIG on")
    assert lines[3].endswith(", a display watchdog")
    assert any(line.startswith("0-1: NVLink, 18 links; direct: ") for line in lines), lines
    assert any(
        line.startswith("0-2: PCIe, from one processor to another; staged: ") for line in lines
    )
    # nvidia-smi does not know the others.
    assert any(line.startswith("0-3 0-4 ") and "link unknown" in line for line in lines), lines
    driver, display, divided = machine.warnings(found)
    assert "for CUDA 12.0" in driver and "need 12.1 (R530)" in driver
    assert display.startswith("GPU 2: ") and divided.startswith("GPU 1: divided")


@pytest.mark.usefixtures("simulated")
def test_nothing_is_told_of_devices_that_are_as_they_should(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = _asked(monkeypatch, tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9")
    lines = machine.lines(found)
    assert lines[0] == "driver unknown, for CUDA 13.0; CUDA runtime 13.0"
    assert len(lines) == 1 + 8 + 1 and "MIG" not in "".join(lines)
    assert "0-1 0-2 " in lines[-1] and "link unknown; direct: " in lines[-1]
    assert machine.warnings(found) == []


def test_without_devices_the_reason_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.ask()
    assert machine.lines({"reason": "no CUDA device"}) == ["GPUs: no CUDA device"]
    assert machine.warnings({"reason": "no CUDA device"}) == []
    if found["reason"]:
        assert "built without CUDA" in found["reason"] or "no CUDA device" in found["reason"]

    def fail() -> None:
        raise RuntimeError("cudaGetDeviceCount: unknown error")

    monkeypatch.setattr(_native, "load", fail)
    assert machine.ask() == {"reason": "asking fails: cudaGetDeviceCount: unknown error"}
