"""The GPUs of this machine: links, driver, MIG, displays, and what of it is in the way of fastcomm.

The native library asks CUDA about the devices that this process sees. nvidia-smi, which comes with
the driver, is asked about links and MIG; where it is missing these are unknown.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import Any

from fastcomm import _native

# As CUDA writes it. Kernels take tables of 16 to 32 KB as parameters, which CUDA 12.1 began with.
LEAST_DRIVER = 12010
LEAST_DRIVER_NAME = "R530"

Facts = dict[str, Any]

_QUERY = ("--query-gpu=index,pci.bus_id,driver_version,mig.mode.current", "--format=csv,noheader")
_SMI_S = 30  # seconds: it takes some where no process keeps the driver awake
_PCIE = {
    "PIX": "PCIe, at most one bridge",
    "PXB": "PCIe, several bridges",
    "PHB": "PCIe, through the processor",
    "NODE": "PCIe, through several host bridges",
    "SYS": "PCIe, from one processor to another",
}


def ask() -> Facts:
    """Return what is known of the devices; ``reason`` says why there are none. Values are JSON's.

    The devices' access to each other's memory is tried here, which makes a context on each.
    """
    try:
        native = _native.load()
        seen, facts = native.cuda_devices(), native.device_facts()
    except Exception as error:  # a failing device is part of the report
        return {"reason": f"asking fails: {error}"}
    if seen["reason"]:
        return {"reason": seen["reason"]}
    answers = {name: _smi(*words) for name, words in (("query", _QUERY), ("topo", ("topo", "-m")))}
    cards = parse_cards(answers["query"])
    links = parse_links(answers["topo"])
    here = [cards.get(_plain(bus), {}) for bus in facts["buses"]]
    count = len(here)
    pairs = []
    for first in range(count):
        for second in range(first + 1, count):
            ends = (here[first].get("index"), here[second].get("index"))
            kind, why = seen["access"][first][second]
            pairs.append({"of": [first, second], "link": links.get(ends), "access": [kind, why]})
    return {
        "reason": "",
        "driver": facts["driver"],
        "runtime": facts["runtime"],
        "driver_version": next((card["driver"] for card in cards.values()), None),
        "gpus": [
            {"name": name, "watchdog": watchdog, "mig": card.get("mig")}
            for name, watchdog, card in zip(seen["names"], facts["watchdogs"], here, strict=True)
        ],
        "pairs": pairs,
    }


def _smi(*words: str) -> str:
    try:
        command = ["nvidia-smi", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _plain(bus: str) -> str:
    """Return a place on the PCI bus as CUDA and nvidia-smi both write it, but for leading zeros."""
    domain, _, rest = bus.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def parse_cards(text: str) -> dict[str, Facts]:
    """Return nvidia-smi's index, driver and MIG mode of each GPU, by its place on the PCI bus."""
    found: dict[str, Facts] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and words[0].isdecimal():
            mig = {"Enabled": True, "Disabled": False}.get(words[3])  # None: it cannot be divided
            found[_plain(words[1])] = {"index": int(words[0]), "driver": words[2], "mig": mig}
    return found


def parse_links(text: str) -> dict[tuple[Any, Any], str]:
    """Return the kind of link between every two GPUs, by nvidia-smi's indices."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    names = next((row for row in rows if row and row[0] == "GPU0"), [])
    columns = [int(name[3:]) for name in names if re.fullmatch(r"GPU\d+", name)]
    found: dict[tuple[Any, Any], str] = {}
    for row in rows:
        if row is names or not row or not re.fullmatch(r"GPU\d+", row[0]):
            continue
        for column, kind in zip(columns, row[1:], strict=False):  # cards of networks follow
            found[int(row[0][3:]), column] = kind
    return found


def link_text(kind: str | None) -> str:
    """Return nvidia-smi's word for a link in words for people."""
    if kind is None:
        return "link unknown"
    if bonded := re.fullmatch(r"NV(\d+)", kind):
        return f"NVLink, {bonded[1]} link{'s' if bonded[1] != '1' else ''}"
    return _PCIE.get(kind, kind)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def lines(found: Facts) -> list[str]:
    """Return what is known of the devices, in lines; pairs that are alike share one."""
    if found["reason"]:
        return [f"GPUs: {found['reason']}"]
    version = found["driver_version"]
    text = [f"driver {version or 'unknown'}, for CUDA {_version(found['driver'])}"]
    text[0] += f"; CUDA runtime {_version(found['runtime'])}"
    for device, gpu in enumerate(found["gpus"]):
        words = [gpu["name"], f"{'a' if gpu['watchdog'] else 'no'} display watchdog"]
        if gpu["mig"] is not None:
            words.append(f"MIG {'on' if gpu['mig'] else 'off'}")
        text.append(f"{device}: {', '.join(words)}")
    alike: dict[str, list[str]] = {}
    for pair in found["pairs"]:
        kind, why = pair["access"]
        what = f"{link_text(pair['link'])}; {kind}: {why}"
        alike.setdefault(what, []).append("-".join(map(str, pair["of"])))
    return text + [f"{' '.join(pairs)}: {what}" for what, pairs in alike.items()]


def warnings(found: Facts) -> list[str]:
    """Return what is in the way of fastcomm's kernels, a line each."""
    if found["reason"]:
        return []
    text = []
    if found["driver"] < LEAST_DRIVER:
        text.append(
            f"the driver is for CUDA {_version(found['driver'])}, and fastcomm's kernels need"
            f" {_version(LEAST_DRIVER)} ({LEAST_DRIVER_NAME}): install a newer one"
        )
    watched = _named(found["gpus"], "watchdog")
    if watched:
        text.append(
            f"{watched}: the driver ends kernels that run for seconds, since a display is attached."
            " A rank that waits that long for a late one is hit: see docs/gpus.md"
        )
    divided = _named(found["gpus"], "mig")
    if divided:
        text.append(f"{divided}: divided (MIG), and parts do not reach each other's memory")
    return text


def _named(gpus: Sequence[Facts], what: str) -> str:
    """Return "GPU 0 and 2", for those of which it is true; "" for none."""
    which = [str(device) for device, gpu in enumerate(gpus) if gpu[what]]
    return f"GPU {' and '.join(which)}" if which else ""
