"""Copies and pickles of objects that belong to a process group, which itself has neither."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T", bound="OfGroup")


class OfGroup:
    """An object with an attribute ``process_group``, where None is the default group.

    A copy belongs to the same group. A pickle may only be of the default group, as with torch's
    DistributedDataParallel, and belongs to that of the process that loads it.
    """

    process_group: dist.ProcessGroup | None

    def _copied(self) -> dict[str, Any]:
        """Return what a copy has besides the group."""
        raise NotImplementedError

    def _shared(self) -> dict[str, Any]:
        """Return what a deep copy has in common with the original."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        group = self.process_group
        if group is not None and not (dist.is_initialized() and group == dist.group.WORLD):
            raise RuntimeError(
                f"{type(self).__name__} is pickled with the default process group only, and this "
                "one has another: save its state_dict, or make a new one where it is loaded"
            )
        return self._copied()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = None
        self.__dict__.update(state)

    def __copy__(self: T) -> T:
        return self._like_this(self._copied())

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        for shared in self._shared().values():
            memo.setdefault(id(shared), shared)
        other = memo[id(self)] = self.__class__.__new__(self.__class__)
        return self._like_this(copy.deepcopy(self._copied(), memo), other)

    def _like_this(self: T, state: dict[str, Any], other: T | None = None) -> T:
        if other is None:
            other = self.__class__.__new__(self.__class__)
        other.__setstate__(state)
        other.process_group = self.process_group
        return other
