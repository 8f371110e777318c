"""Namespaces of Linux: hosts on one machine, a /dev/shm and process numbers of one's own.

All of them need root, and the commands ``ip`` (iproute2) or ``unshare`` (util-linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support import programs
from support.patience import ENDS

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
# What stands at /dev/shm in the new namespace.
SMALL = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
NONE = "mount -t tmpfs -o size=4k,ro tmpfs /dev/shm"


def _call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _enter(path: str, kind: int) -> None:
    with open(path) as namespace:
        _call("setns", namespace.fileno(), kind)


def _why_not(*command: str) -> str | None:
    """Say why a command cannot make a namespace here; None if it can."""
    if shutil.which(command[0]) is None:
        return f"there is no command {command[0]}"
    tried = subprocess.run(command, capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def why_no_mounts() -> str | None:
    return _why_not("unshare", "-m", "sh", "-c", SMALL)


def why_no_pids() -> str | None:
    return _why_not("unshare", "-p", "-f", "true")


def why_no_hosts() -> str | None:
    name = f"fctry{os.getpid()}"
    reason = _why_not("ip", "netns", "add", name)
    if reason is None:
        _ip("netns", "delete", name)
    return reason


@contextlib.contextmanager
def shared_memory_folder(command: str) -> Iterator[str]:
    """Yield the name of a mount namespace for `enter`, in which ``command`` has made /dev/shm."""
    script = f"{command} && echo ready && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "ready\n", "no mounts"
        yield f"/proc/{holder.pid}/ns/mnt"
    finally:
        holder.kill()
        holder.wait()


def enter(namespace: str) -> None:
    """Let this process see the namespace's mounts; it may have one thread only."""
    folder = os.getcwd()
    _enter(namespace, _CLONE_NEWNS)
    os.chdir(folder)


def fork_apart(play: Callable[[], Any], end: Callable[[int], None] | None) -> Any:
    """Fork a child into a new PID namespace and return what ``play`` returns there.

    With ``end``, call that with the child's process number and return None.
    """
    _call("unshare", _CLONE_NEWPID)
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sender, pickle.dumps(play()))
        finally:
            os._exit(0)
    os.close(sender)
    if end is not None:
        end(child)
    with os.fdopen(receiver, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if end is None else None


@dataclass(frozen=True)
class Host:
    """One end of a cable: its processes have no socket in common with the other's."""

    namespace: str
    interface: str
    address: str
    address6: str

    def enter(self, *, name_interface: bool = True) -> None:
        """Move the calling thread, and those it starts later, to this host.

        Args:
            name_interface: set GLOO_SOCKET_IFNAME, as a user would.
        """
        _enter(f"/run/netns/{self.namespace}", _CLONE_NEWNET)
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if name_interface:
            os.environ["GLOO_SOCKET_IFNAME"] = self.interface

    def command(self, *words: str) -> list[str]:
        """Return a command that is to run on this host."""
        return ["ip", "netns", "exec", self.namespace, *words]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=ENDS)


def has_ipv6() -> bool:
    """Return whether this machine's kernel knows IPv6."""
    return os.path.exists("/proc/net/if_inet6")


def why_no_switch() -> str | None:
    """Say why more than two hosts cannot be connected here; None if they can."""
    if (reason := why_no_hosts()) is not None:
        return reason
    name = f"fctry{os.getpid()}"
    _ip("netns", "add", name)
    try:
        reason = _why_not("ip", "-n", name, "link", "add", "switch", "type", "bridge")
    finally:
        _ip("netns", "delete", name)
    return reason and f"no switch: {reason}"


def _named(number: int, letter: str) -> Host:
    name = f"fc{os.getpid()}{letter}"
    address6 = f"fd00:207:13::{number + 1}" if has_ipv6() else ""
    return Host(name, name, f"10.207.13.{number + 1}", address6)


def _start(host: Host) -> None:
    _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
    if host.address6:
        at = [f"{host.address6}/64", "dev", host.interface, "nodad"]
        _ip("-n", host.namespace, "address", "add", *at)
    _ip("-n", host.namespace, "link", "set", host.interface, "up")
    _ip("-n", host.namespace, "link", "set", "lo", "up")


@contextlib.contextmanager
def _apart(letters: str, *others: str) -> Iterator[list[Host]]:
    """Create hosts without cables, and other namespaces; they are gone afterwards."""
    hosts = [_named(number, letter) for number, letter in enumerate(letters)]
    names = [*others, *(host.namespace for host in hosts)]
    try:
        for name in names:
            _ip("netns", "add", name)
        yield hosts
    finally:
        for name in names:  # the interfaces go with them
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextlib.contextmanager
def two_hosts() -> Iterator[list[Host]]:
    """Create two connected hosts; they are gone afterwards, whatever happens.

    fastcomm cannot hand memory over between them, which have no abstract sockets in common.
    """
    with _apart("ab") as hosts:
        first, second = hosts
        cable = ["type", "veth", "peer", "name", second.interface, "netns", second.namespace]
        _ip("-n", first.namespace, "link", "add", first.interface, *cable)
        for host in hosts:
            _start(host)
        yield hosts


_SWITCHED = "stuvwxyz"  # a host's letter


@contextlib.contextmanager
def switched_hosts(count: int) -> Iterator[list[Host]]:
    """Create hosts at one switch, at most eight; as `two_hosts`."""
    switch = f"fc{os.getpid()}r"
    with _apart(_SWITCHED[:count], switch) as hosts:
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host in hosts:
            cable = ["type", "veth", "peer", "name", host.interface, "netns", host.namespace]
            _ip("-n", switch, "link", "add", host.interface, *cable)
            _ip("-n", switch, "link", "set", host.interface, "master", "switch", "up")
            _start(host)
        yield hosts


def why_no_delay() -> str | None:
    """Say why cables cannot be long here; None if they can."""
    if not os.path.exists("/dev/net/tun"):
        return "no TAP devices here: there is no /dev/net/tun"
    return why_no_hosts()


@contextlib.contextmanager
def delayed_hosts(count: int, delay_us: int) -> Iterator[list[Host]]:
    """Create hosts as `switched_hosts`, between which a frame takes ``delay_us`` microseconds."""
    switch = f"fc{os.getpid()}r"
    program = str(programs.get("delayed_wire", programs.OPTIMIZED))
    with _apart(_SWITCHED[:count], switch) as hosts:
        interfaces = [host.interface for host in hosts]
        wire = subprocess.Popen(
            ["ip", "netns", "exec", switch, program, str(delay_us), *interfaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert wire.stdout and wire.stdout.readline() == "ready\n", "no TAP devices"
            for host in hosts:
                _ip("-n", switch, "link", "set", host.interface, "netns", host.namespace)
                _start(host)
            yield hosts
        finally:
            wire.kill()
            wire.communicate()


def cut(host: Host) -> None:
    """Cut the cable at a host's end, without a word to either: packets are lost from here on."""
    _ip("-n", host.namespace, "link", "set", host.interface, "down")


def mend(host: Host) -> None:
    """Connect the cable again; without the IPv6 address that the interface had."""
    _ip("-n", host.namespace, "link", "set", host.interface, "up")
