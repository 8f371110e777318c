"""The Gloo group that does everything where ranks do not all share memory."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import logging
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastcomm import errors
from fastcomm._distributed import descriptors, device_engines

logger = logging.getLogger("fastcomm")

_NO_PORT = 9  # nothing is sent
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR
_LONGEST_NAME = 15  # of an interface


@dataclass(frozen=True)
class Place:
    """A rank's place, as it tells the others.

    Attributes:
        network: the same for ranks that reach each other by a loopback interface.
        host: the host's name, for people.
        addresses: its own addresses on the way to the group's store, at most one of a family; where
            the user has named an interface, the one that Gloo takes of that.
        chosen: the user's GLOO_SOCKET_IFNAME, "" if there is none.
    """

    network: str
    host: str
    addresses: list[str]
    chosen: str


@dataclass(frozen=True)
class Why:
    """Why a group needs Gloo.

    Attributes:
        not_native: why its ranks do not share memory.
        not_composed: why no operation is composed of what hosts do; ``""`` if some are.
    """

    not_native: str
    not_composed: str

    def told(self, size: int, hosts: str) -> str:
        """Say what serves a group of ``size`` ranks; ``hosts`` as from `describe`, or ``""``."""
        if not self.not_composed:
            return (
                f"this group of {size} ranks runs on shared memory inside each host, and on Gloo "
                f"between them; what is not composed of the two runs on Gloo as a whole (see "
                f"docs/limits.md): {self.not_native}" + (f". {hosts}" if hosts else "")
            )
        text = f"this group of {size} ranks runs on Gloo, not on shared memory: {self.not_native}"
        if not hosts:
            return text
        return f"{text}. {hosts}. It is not composed of hosts, because {self.not_composed}"


def form(
    base: dist.Store, store: dist.Store, rank: int, size: int, timeout: timedelta, why: Why
) -> tuple[dist.ProcessGroupGloo, str, str]:
    """Form the Gloo group; collective. The group's first rank warns, before Gloo connects.

    Gloo alone takes the interface that the host's name resolves to, which is a loopback interface
    on many machines: no other host reaches that. So where ranks lie on several hosts, each takes
    the interface on its way to the store, unless the user has set GLOO_SOCKET_IFNAME.

    Args:
        base: the store behind `store`; if it is a TCPStore, its host is where the others are.
        store: the group's own.
        timeout: the group's.
        why: for the warning.

    Returns:
        The group; in words which ranks lie on which host, ``""`` if all lie on one; and the
        address of the interface, ``""`` if Gloo chooses it.
    """
    places = _exchange(base, store, rank, size, _countable(timeout))
    several = len({place.network for place in places}) > 1
    own = places[rank]
    address = (own_address(rank, places) if several and not own.chosen else None) or ""
    hosts = describe(places) if several else ""
    if rank == 0:
        # Before Gloo: where that finds no way to a rank, it says so after minutes.
        logger.warning(
            "fastcomm: %s%s%s",
            why.told(size, hosts),
            f". {interface_used(places, address)}" if several else "",
            device_engines.besides(),
        )
    return _make(store, rank, size, timeout, address), hosts, address


def make_lane(
    store: dist.Store, rank: int, size: int, timeout_s: float, address: str
) -> dist.ProcessGroupGloo:
    """Make a further Gloo group of such ranks, for what continuations issue; collective.

    Raises:
        CommunicationSystemError: this process may not open as many descriptors as it needs.
    """
    if problem := descriptors.shortage(size):
        raise errors.CommunicationSystemError(f"rank {rank}: {problem}")
    return _make(store, rank, size, timedelta(seconds=timeout_s), address)


def _make(
    store: dist.Store, rank: int, size: int, timeout: timedelta, address: str
) -> dist.ProcessGroupGloo:
    timeout = _countable(timeout)
    if not address:
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    options: Any = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._threads = 2  # for one device, as torch has it
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _countable(timeout: timedelta) -> timedelta:
    """Return a timeout that Gloo can add to its clock: a century where it is never."""
    century = timedelta(days=36500)
    return timeout if timedelta(0) < timeout < century else century


def own_place(masters: Iterable[str]) -> Place:
    """Return this rank's place; ``masters`` are hosts that all ranks reach."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "")
    addresses = addresses_of(chosen.partition(",")[0]) if chosen else []
    if not addresses:
        addresses = addresses_towards(masters)
    return Place(_network(), socket.gethostname(), addresses, chosen)


def _exchange(
    base: dist.Store, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> list[Place]:
    masters = [getattr(base, "host", None), os.environ.get("MASTER_ADDR")]
    own = own_place(master for master in masters if master)
    if size == 1:
        return [own]
    store.set(f"place/{rank}", json.dumps(asdict(own)))
    keys = [f"place/{peer}" for peer in range(size)]
    store.wait(keys, timeout)
    return [Place(**json.loads(text)) for text in store.multi_get(keys)]


def _network() -> str:
    """Name this machine and, as containers have their own, the network namespace."""
    names = [socket.gethostname()]
    try:
        names = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        names.append(os.readlink("/proc/self/ns/net"))
    except OSError:
        pass  # no /proc
    return " ".join(names)


def addresses_of(interface: str) -> list[str]:
    """Return the address that Gloo takes of an interface: of IPv4 where it has one; or none."""
    request = struct.pack("256s", interface.encode()[:_LONGEST_NAME])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            found = fcntl.ioctl(probe, _ADDRESS_OF_INTERFACE, request)
        return [socket.inet_ntop(socket.AF_INET, found[20:24])]
    except OSError:
        pass
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, *_, name = line.split()
        if name == interface:
            return [str(ipaddress.IPv6Address(bytes.fromhex(number)))]
    return []


def addresses_towards(hosts: Iterable[str]) -> list[str]:
    """Return own addresses from which packets go to ``hosts``, at most one of a family.

    Loopback addresses are left out, such as 127.0.1.1, which the host's own name has on Debian,
    and those of one link only. Nothing is sent.
    """
    found: dict[int, str] = {}
    for host in hosts:
        try:
            ways = socket.getaddrinfo(host, _NO_PORT, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, protocol, _, target in ways:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(target)
                    address = ipaddress.ip_address(probe.getsockname()[0])
            except (OSError, ValueError):
                continue
            if not (address.is_loopback or address.is_link_local or address.is_unspecified):
                found.setdefault(address.version, str(address))
    return [found[version] for version in sorted(found)]


def own_address(rank: int, places: list[Place]) -> str | None:
    """Return the address at which this rank's Gloo listens, None if none is known to be right.

    All ranks take addresses of one family: that of the interfaces that users have named, else IPv4
    where every rank has one. A rank without such an address on its way to the store takes the one
    on its way to the other hosts, and to those interfaces; so does the host of the store, which may
    know itself by a loopback address only.
    """
    known = [place for place in places if place.addresses]
    deciding = [place for place in known if place.chosen] or known
    families = [{_version(address) for address in place.addresses} for place in deciding]
    common = set.intersection(*families) if families else set()
    family = min(common, default=None)
    own = places[rank]
    others = [
        address
        for place in places
        if place.network != own.network or place.chosen
        for address in place.addresses
    ]
    for addresses in (own.addresses, addresses_towards(others)):
        for address in addresses:
            if family in (None, _version(address)):
                return address
    return None


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def describe(places: list[Place]) -> str:
    """Say which ranks lie on which host."""
    hosts: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place.network, []).append(rank)
    parts: list[str] = []
    for ranks in hosts.values():
        place = places[ranks[0]]
        another = "on another host, " if parts else "on "
        at = f" ({', '.join(place.addresses)})" if place.addresses else ""
        parts.append(f"{_ranks(ranks)} {another}{place.host}{at}")
    return f"The ranks lie on {len(hosts)} hosts: {'; '.join(parts)}"


def interface_used(places: list[Place], address: str) -> str:
    """Say what Gloo uses of the first rank's interfaces, and how to choose another."""
    if places[0].chosen:
        return f"Gloo uses GLOO_SOCKET_IFNAME={places[0].chosen} here"
    if address:
        return (
            f"Gloo uses the interface with the address {address} here; "
            "set GLOO_SOCKET_IFNAME to the name of another one, if that is wrong"
        )
    return (
        "no address is known at which the other hosts reach this one: if Gloo does not "
        "connect, set GLOO_SOCKET_IFNAME to the name of the network interface, on every host"
    )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
