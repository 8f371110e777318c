"""Create the backend of one process group."""

from __future__ import annotations

import errno
import os
import resource
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from fastcomm import _native, _settings, errors
from fastcomm._distributed import gloo

if TYPE_CHECKING:
    from fastcomm._C import FastcommBackend


def create(options: Any, backend_options: object) -> FastcommBackend:
    """Form the group with the other ranks; collective, called by torch on every member.

    Sets ``DDP_DISABLE_COMM_MEM=0`` in the environment unless the variable is there already: then
    ``DistributedDataParallel`` allocates its buckets where peers can reach them.

    Where the ranks do not all share memory, a Gloo group of torch's does everything, and the logger
    ``fastcomm`` warns and says why (on the group's first rank).

    Args:
        options: torch's ``_DistributedBackendOptions``: store, group_rank, group_size, timeout.
        backend_options: ``pg_options`` of the user; fastcomm has none.

    Raises:
        TypeError: ``backend_options`` is not None.
        CollectiveTimeoutError: a rank did not arrive within the group's timeout.
        CollectiveArgumentError: the ranks were started for groups of different sizes.
        CommunicationSystemError: a rank may not open as many descriptors as a group needs.
    """
    if backend_options is not None:
        raise TypeError(
            f"fastcomm takes no backend options, got {type(backend_options).__name__}: "
            "leave pg_options out; what can be set is set by FASTCOMM_* variables, see "
            "'fastcomm env --settings'"
        )
    # DDP takes its buckets from the backend only where this is "0". Other backends see it too.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    native = _native.load()
    _settings.warn_of_unknown()
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    # The store may be an earlier group's, as torchrun's is after a restart: nobody must read there
    # about processes that are gone.
    label = _label(options)
    first = dist.PrefixStore("fastcomm/first/", options.store)
    name = _agree(native, first, rank, size, timeout, label)
    # For what continuations of futures issue from other threads (csrc/c10d/engines/native/lanes.h).
    base, connection = _own_connection(options.store, size)
    backend: FastcommBackend = native.create_backend(
        dist.PrefixStore("fastcomm/", options.store),
        rank,
        size,
        _seconds(timeout),
        dist.PrefixStore(f"fastcomm/{name:x}/", connection),
        base,
        label,
    )
    if not backend.native:
        whole = dist.PrefixStore(f"gloo/{name:x}/", options.store)
        why = backend.why_not_native
        backend.delegate_to(gloo.form(base, whole, rank, size, timeout, why))
    return backend


_connections: WeakKeyDictionary[dist.Store, dist.Store] = WeakKeyDictionary()


def _own_connection(store: dist.Store, size: int) -> tuple[dist.Store, dist.Store]:
    """Return the store behind all prefixes, and another connection to it for a group of ``size``.

    A thread that waits in a store keeps other threads out. All groups of the process share one such
    connection, as long as somebody holds the store. It is made before it is needed: while a
    connection to a dead host is being retried, nobody looks for the death.
    """
    base: dist.Store = store
    while isinstance(base, dist.PrefixStore):
        base = base.underlying_store
    if size == 1:
        return base, base
    if (known := _connections.get(base)) is not None:
        return base, known
    try:
        connection = base.clone()
    except (RuntimeError, NotImplementedError):  # a store that cannot be cloned
        return base, base
    if connection is not base:
        _connections[base] = connection
    return base, connection


def _label(options: Any) -> str:
    """Return what a warning of the group begins with: torch's prefix of a rank, and the group."""
    members = list(options.global_ranks_in_group)
    rank = members[options.group_rank] if members else options.group_rank
    of_ranks = f" of ranks {members}" if members else f" of all {options.group_size} ranks"
    return f"[rank{rank}]: fastcomm: group {options.group_id!r}{of_ranks}: "


def _agree(
    native: Any, store: dist.Store, rank: int, size: int, timeout: timedelta, label: str
) -> int:
    """Raise on every rank unless all ranks come, for a group of one size, and can take part.

    Returns a number that all ranks have in common, and that no other group has.

    This comes first: what follows would be less clear about who is missing, Gloo least of all.
    """
    problem = _want_of_descriptors(size)
    name = 0
    if size > 1:
        try:
            name = native.agree(store, rank, size, _seconds(timeout), problem, label)
        except dist.DistError:
            if not problem:
                raise  # else the store got no descriptor, which is the same problem
    if problem:
        raise errors.CommunicationSystemError(f"rank {rank}: {problem}")
    return name


def _want_of_descriptors(size: int) -> str:
    """Say what is missing if a group of ``size`` ranks might run out of descriptors.

    Asked beforehand: if the group ends up on Gloo, that ends the whole process when its thread
    finds no descriptor for a connection.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError as error:
        if error.errno != errno.EMFILE:
            return ""  # no /proc: nobody knows
        used = limit
    # The first group takes a segment, a pidfd, a socket and an event, and a socket and two
    # descriptors for each peer; if it ends up on Gloo, that takes its own: size + 3, and more while
    # it connects.
    needed = 3 * size + 16
    if limit - used >= needed:
        return ""
    return (
        f"a group of {size} ranks needs up to {needed} descriptors, and this process may open "
        f"{max(0, limit - used)} more: raise the limit of open files (ulimit -n), which is "
        f"{limit}, or destroy groups that are not used"
    )


def backend_of(
    group: dist.ProcessGroup | None = None, *, behind_checks: bool = False
) -> FastcommBackend | None:
    """Return the fastcomm backend that serves a group's CPU tensors, or None.

    Args:
        group: a process group; None is the default group.
        behind_checks: also find it where TORCH_DISTRIBUTED_DEBUG=DETAIL has put torch's checks in
            front of it. For queries only: a call that the checks do not see would not match others
            that they hold back.
    """
    import torch

    pg = group if group is not None else dist.distributed_c10d._get_default_group()
    try:
        backend = pg._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    if behind_checks:
        backend = getattr(backend, "wrapped_pg", backend)
    return backend if isinstance(backend, _native.load().FastcommBackend) else None


def _seconds(timeout: timedelta) -> float:
    return timeout.total_seconds()
