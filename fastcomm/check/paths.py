"""The ways that data takes between ranks, each of which is checked by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Path:
    """One way, and how ranks are made to take it.

    Attributes:
        name: what reports call it.
        settings: environment variables that select it.
        on_devices: a device for each rank; else tensors in the host's memory.
        words: part of what ``fastcomm.explain`` says where the path is taken.
        alone: one rank that has all devices, as with DataParallel; without devices, two slots.
    """

    name: str
    settings: dict[str, str]
    on_devices: bool
    words: str
    alone: bool = False


ON_THE_HOST = (
    Path("memfd", {"FASTCOMM_TRANSPORT": "memfd"}, False, ""),
    Path("posix", {"FASTCOMM_TRANSPORT": "posix"}, False, ""),
)

ONE_PROCESS = Path("one process", {}, False, "", alone=True)

_DIRECT = "reach each other's memory"
# The first that works is the one that groups take by themselves.
BETWEEN_DEVICES = (
    *(
        Path(f"devices, {way}", {"FASTCOMM_IPC": way}, True, _DIRECT)
        for way in ("handle", "descriptor", "fabric")
    ),
    Path("devices, pinned", {"FASTCOMM_ROUTE": "pinned"}, True, "share pinned memory of the host"),
)

# Full names of all paths by the short ones that the command line has.
PATHS = {
    path.name.removeprefix("devices, "): path.name
    for path in (ONE_PROCESS, *ON_THE_HOST, *BETWEEN_DEVICES)
}
