"""Two hosts on one machine: network namespaces with a cable between them.

Processes of different namespaces have no socket in common, abstract ones included, so fastcomm
cannot hand memory over, as between machines. Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.patience import ENDS

_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Host:
    """One end of the cable."""

    namespace: str
    interface: str
    address: str
    address6: str

    def enter(self, *, name_interface: bool = True) -> None:
        """Move the calling thread, and those it starts later, to this host.

        Args:
            name_interface: set GLOO_SOCKET_IFNAME, as a user would.
        """
        descriptor = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {self.namespace}")
        finally:
            os.close(descriptor)
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if name_interface:
            os.environ["GLOO_SOCKET_IFNAME"] = self.interface


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=ENDS)


def has_ipv6() -> bool:
    """Return whether this machine's kernel knows IPv6."""
    return os.path.exists("/proc/net/if_inet6")


def why_no_hosts() -> str | None:
    """Return why this machine cannot have namespaces as hosts, None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    name = f"fctry{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or error
        return f"this machine creates no network namespaces: {str(said).strip()}"
    _ip("netns", "delete", name)
    return None


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Create two connected hosts; they are gone afterwards, whatever happens."""
    hosts = [
        Host(
            f"fc{os.getpid()}{end}",
            f"fc{os.getpid()}{end}",
            f"10.207.13.{number}",
            f"fd00:207:13::{number}" if has_ipv6() else "",
        )
        for number, end in ((1, "a"), (2, "b"))
    ]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        first, second = hosts
        cable = ["type", "veth", "peer", "name", second.interface, "netns", second.namespace]
        _ip("-n", first.namespace, "link", "add", first.interface, *cable)
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
            if host.address6:
                at = [f"{host.address6}/64", "dev", host.interface, "nodad"]
                _ip("-n", host.namespace, "address", "add", *at)
            _ip("-n", host.namespace, "link", "set", host.interface, "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:  # the interfaces go with them
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)
