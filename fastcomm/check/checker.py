"""A rank's run of a check, and the ranks' agreement on the verdict.

They agree over a control group on Gloo, which is not under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fastcomm import _register
from fastcomm._measure.objects import all_gather_object
from fastcomm._measure.rank import Rank
from fastcomm.check.paths import Path

Row = dict[str, Any]
Prepare = Callable[[], None]

SHORT = 4 << 10  # bytes


@dataclass(frozen=True)
class Sizes:
    """Bytes of a long message, and of one between two devices."""

    long: int = 4 << 20
    pair: int = 32 << 20


class NotUsedError(Exception):
    """The path was not taken; the text says why."""


class Checker:
    """The checks of one path on one rank; rank 0 reports the rows."""

    def __init__(
        self,
        rank: Rank,
        path: Path,
        device: torch.device,
        sizes: Sizes,
        shares: bool,
        patience_s: float,
    ) -> None:
        self.rank, self.path, self.device, self.sizes = rank, path, device, sizes
        self.shares = shares  # whether ranks share a device, which NCCL refuses
        self.patience_s = patience_s  # of a group, so that it says who has not come
        control = dist.group.WORLD
        assert control is not None
        self.control = control
        self.broken = ""  # why nothing can be run any more

    def make_group(self, ranks: list[int] | None = None) -> dist.ProcessGroup:
        """Make a group of fastcomm for this path's tensors; all ranks have to."""
        name = _register.name_on(self.device.type)
        timeout = timedelta(seconds=self.patience_s)
        group: dist.ProcessGroup = dist.new_group(ranks, timeout=timeout, backend=name)
        return group

    def begin(self, check: str) -> None:
        """Say which check comes next, for whoever finds that the ranks have not ended."""
        if self.rank.rank == 0:
            self.rank.report({"begins": check})

    def ordinary(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return ordinary torch memory."""
        return torch.empty(numel, dtype=dtype, device=self.device)

    def placed(self, group: dist.ProcessGroup, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory that operations of the group use in place."""
        import fastcomm

        if self.device.type == "cpu":
            return fastcomm.empty(numel, dtype=dtype)
        return fastcomm.empty(numel, dtype=dtype, device=self.device, group=group)

    def surely_placed(
        self, group: dist.ProcessGroup, numel: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """As `placed`; raises where there was no room."""
        import fastcomm

        tensor = self.placed(group, numel, dtype)
        if numel and not fastcomm.is_shared(tensor):
            raise NotUsedError(f"no memory for {tensor.nbytes} bytes that operations use in place")
        return tensor

    def raise_unless_used(self, tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Raise unless such a tensor takes this path in a group that has run an operation."""
        import fastcomm

        found = fastcomm.explain("all_reduce", tensor, group=group)
        if not (found.native and self.path.words in found.reason):
            raise NotUsedError(found.reason.split("Not each other's: ")[-1])

    def synchronize(self) -> None:
        """Wait until the device has done everything; nothing on the host."""
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize(self.device)

    def report(self, row: Row) -> None:
        if self.rank.rank == 0:
            self.rank.report({"path": self.path.name, **row})

    def check(self, name: str, operation: str, size: int, body: Callable[[], int]) -> Row:
        """Run ``body``, which counts wrong elements, on all ranks; return the worst verdict."""
        mine = ("not run", self.broken)
        if not self.broken:
            try:
                wrong = body()
                mine = ("ok", "") if wrong == 0 else ("wrong", f"{wrong} wrong elements")
            except NotUsedError as error:
                mine = ("not used", str(error))
            except Exception as error:
                mine = ("failed", str(error).splitlines()[0] if str(error) else repr(error))
        all_of_them = all_gather_object(mine, self.control)
        order = ("ok", "not used", "not run", "wrong", "failed")
        worst = max(range(self.rank.size), key=lambda r: order.index(all_of_them[r][0]))
        verdict, why = all_of_them[worst]
        if verdict == "failed":
            self.broken = f"{operation} of {name} has failed"
        row: Row = {"check": name, "operation": operation, "bytes": size, "verdict": verdict}
        row["why"] = f"rank {worst}: {why}" if verdict in ("wrong", "failed") else why
        return row
