"""Give fastcomm the name "gloo" in this process, so that torch's tests for Gloo run on fastcomm.

torch makes Gloo's groups in two places: ``_new_process_group_helper``, for every group whose
backend is named "gloo", and ``_create_process_group_wrapper``, for the checks of
``TORCH_DISTRIBUTED_DEBUG=DETAIL``. Only the first gets fastcomm. All other users of
``torch.distributed.ProcessGroupGloo`` get Gloo; one is fastcomm itself, if ranks share no memory.
`GlooCount` counts Gloo's groups, without those of the checks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

GLOO = "gloo"
FASTCOMM = "fastcomm"
BACKENDS = (FASTCOMM, GLOO)


class GlooCount:
    """Counts Gloo's groups made in this process, other than those of torch's own checks."""

    def __init__(self) -> None:
        self.made = 0
        self._here = threading.local()

    def install(self) -> None:
        """Count from now on, under every name of the class."""
        original = dist.ProcessGroupGloo.__init__

        @functools.wraps(original)
        def counted(group: Any, *arguments: Any, **named: Any) -> None:
            self.made += not self.in_checks
            original(group, *arguments, **named)

        dist.ProcessGroupGloo.__init__ = counted

        make_wrapper = c10d._create_process_group_wrapper

        @functools.wraps(make_wrapper)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            with self._checks():
                return make_wrapper(*arguments, **named)

        c10d._create_process_group_wrapper = wrapper

    @property
    def in_checks(self) -> bool:
        return getattr(self._here, "checks", False)

    @contextmanager
    def _checks(self) -> Iterator[None]:
        self._here.checks = True
        try:
            yield
        finally:
            self._here.checks = False


def install(count: GlooCount) -> None:
    """Make every group named "gloo" a fastcomm group; ``count`` is installed already."""
    from fastcomm import _native
    from fastcomm._distributed.backend import create

    gloo = dist.ProcessGroupGloo
    ours = _native.load().FastcommBackend

    if not hasattr(ours, "options"):  # torch writes the group's name and ranks there
        ours.options = property(lambda _: SimpleNamespace())

    class Substitute(type):
        """A class whose name, attributes and ``isinstance`` still mean Gloo's."""

        def __call__(
            cls, store: dist.Store, rank: int, size: int, timeout: timedelta, **named: Any
        ) -> Any:
            if count.in_checks:
                return gloo(store, rank, size, timeout=timeout, **named)
            options = c10d._DistributedBackendOptions()
            options.store = store
            options.group_rank = rank
            options.group_size = size
            options.timeout = timeout
            return create(options, None)

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, (gloo, ours))

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    # In distributed_c10d alone: fastcomm takes the class from torch.distributed.
    c10d.ProcessGroupGloo = Substitute("ProcessGroupGloo", (), {})


def rename_events(tests: Any) -> None:
    """Rename profiler events for torch's tests: "fastcomm:send" becomes "gloo:send"."""
    find = tests.get_profiling_event

    @functools.wraps(find)
    def renaming(event_name: str, profiler: Any, *arguments: Any, **named: Any) -> Any:
        is_new = isinstance(profiler, torch.profiler.profile)
        for event in profiler.events() if is_new else profiler.function_events:
            if event.name.startswith(f"{FASTCOMM}:"):
                event.name = event.name.replace(FASTCOMM, GLOO, 1)
        return find(event_name, profiler, *arguments, **named)

    tests.get_profiling_event = renaming


def check(native: bool) -> None:
    """Raise unless the default group, named "gloo", is fastcomm's, on shared memory or not."""
    from fastcomm._distributed.backend import backend_of

    backend = backend_of(behind_checks=True)
    assert dist.get_backend() == GLOO
    assert backend is not None, "the default group is not fastcomm's"
    assert backend.native == native, f"not on shared memory: {backend.why_not_native}"
