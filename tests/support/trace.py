"""What torch's profiler writes of the calls that it has watched."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Event = dict[str, Any]


def written(profile: torch.profiler.profile) -> list[Event]:
    """Return the events of the trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        found: list[Event] = json.loads(path.read_text())["traceEvents"]
    return found


def traced(calls: Callable[[], object]) -> list[Event]:
    """Make the calls with a profiler, and return the events of its trace."""
    with torch.profiler.profile() as profile:
        calls()
    return written(profile)


def comms_of(events: list[Event]) -> list[Event]:
    """Return the arguments of record_param_comms, in the order of calls."""
    named = [event for event in events if event["name"] == "record_param_comms"]
    return [event["args"] for event in sorted(named, key=lambda event: float(event["ts"]))]


def tracks_of(events: list[Event]) -> dict[str, list[Event]]:
    """Return the slices of fastcomm's tracks by their name, in the order of time."""
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"].startswith("fastcomm")
    }
    found: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in sorted(events, key=lambda event: float(event.get("ts", 0))):
        if event["ph"] == "X" and event["tid"] in names:
            found[names[event["tid"]]].append(event)
    return found
