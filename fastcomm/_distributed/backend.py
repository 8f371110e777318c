"""Create the backend of one process group."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from fastcomm import _native, _settings, errors
from fastcomm._distributed import descriptors, gloo
from fastcomm._distributed.announce import announce

if TYPE_CHECKING:
    from fastcomm._C import FastcommBackend


def create(options: Any, backend_options: object) -> FastcommBackend:
    """Form the group with the other ranks; collective, called by torch on every member.

    Sets ``DDP_DISABLE_COMM_MEM=0`` in the environment unless the variable is there already: then
    ``DistributedDataParallel`` allocates its buckets where peers can reach them.

    Where the ranks do not all share memory, a Gloo group of torch's does everything, and the logger
    ``fastcomm`` warns and says why (on the group's first rank). What else is to know of a group is
    told where torch is asked for it (`announce`).

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
    # Without its rules, torch.compile traces an operator by calling it.
    importlib.import_module("fastcomm._distributed.operators")
    _settings.warn_of_unknown()
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    # The store may hold keys of an earlier group, as torchrun's does after a restart. So all
    # later keys of this group carry its nonce.
    label = _label(options)
    first = dist.PrefixStore("fastcomm/first/", options.store)
    nonce = _agree(native, first, rank, size, timeout, label)
    # For operations that continuations of futures issue (csrc/c10d/engines/native/communicators.h).
    base, connection = _own_connection(options.store, size)
    backend: FastcommBackend = native.create_backend(
        dist.PrefixStore("fastcomm/", options.store),
        rank,
        size,
        _seconds(timeout),
        dist.PrefixStore(f"fastcomm/{nonce:x}/", connection),
        base,
        label,
        list(options.global_ranks_in_group) or list(range(size)),
    )
    if not backend.native:
        whole = dist.PrefixStore(f"gloo/{nonce:x}/", options.store)
        why = gloo.Why(backend.why_not_native, backend.why_not_composed)
        backend.delegate_to(*gloo.form(base, whole, rank, size, timeout, why))
    announce(backend, label, timeout)
    return backend


_connections: WeakKeyDictionary[dist.Store, dist.Store] = WeakKeyDictionary()


def _own_connection(store: dist.Store, size: int) -> tuple[dist.Store, dist.Store]:
    """Return the store behind all prefixes, and another connection to it for a group of ``size``.

    A thread that waits in a store keeps other threads out of it. All groups of the process share
    one such connection, as long as the store is in use. It is made before it is needed: a thread
    that retries a connection to a dead host does not look for dead ranks.
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
    """Return the start of the group's warnings: torch's prefix of a rank, and the group."""
    members = list(options.global_ranks_in_group)
    rank = members[options.group_rank] if members else options.group_rank
    of_ranks = f" of ranks {members}" if members else f" of all {options.group_size} ranks"
    return f"[rank{rank}]: fastcomm: group {options.group_id!r}{of_ranks}: "


def _agree(
    native: Any, store: dist.Store, rank: int, size: int, timeout: timedelta, label: str
) -> int:
    """Return the group's nonce, a number that all its ranks share and no other group has.

    Raise on every rank if one does not arrive, was started for another size, or cannot take part.
    Later steps would not name a missing rank as clearly, so this one comes first.
    """
    problem = descriptors.shortage(size)
    nonce = 0
    if size > 1:
        try:
            nonce = native.agree(store, rank, size, _seconds(timeout), problem, label)
        except dist.DistError:
            if not problem:
                raise
            # Otherwise the store got no descriptor: the same problem, raised below.
    if problem:
        raise errors.CommunicationSystemError(f"rank {rank}: {problem}")
    return nonce


def backend_of(
    group: dist.ProcessGroup | None = None, *, behind_checks: bool = False
) -> FastcommBackend | None:
    """Return the fastcomm backend that serves a group's CPU tensors, or None.

    Args:
        group: a process group; None is the default group.
        behind_checks: also find it where TORCH_DISTRIBUTED_DEBUG=DETAIL has put torch's checks in
            front of it. For queries only: a collective that bypasses the checks on one rank would
            not match those that go through them on others.
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
